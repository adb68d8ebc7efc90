"""TensorBoard and W&B across continuations: each step once, one run; their failures end nothing."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.tiny_run import Fit, back_to_step, rows

wandb = pytest.importorskip("wandb")
from wandb.proto.wandb_internal_pb2 import Record  # noqa: E402


def points(run: Path, purge: bool) -> dict[str, list[int]]:
    """The steps of each tag in TensorBoard, as it shows them or with all that was ever written."""
    events = EventAccumulator(str(run / "tensorboard"), purge_orphaned_data=purge)
    events.Reload()
    return {tag: [point.step for point in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.parametrize("step", [2, None])
def test_tensorboard_shows_each_step_once_after_a_continuation(step: int | None, fit: Fit) -> None:
    """Also of a run that ended before its first checkpoint."""
    run = fit(run={"tensorboard": True})
    before = points(run, purge=True)
    assert before["loss"] == [1, 2, 3, 4, 5, 6]
    assert before["val/held_out/loss"] == [0, 3, 6]
    if step is None:
        shutil.rmtree(run / "checkpoints")
    else:
        back_to_step(run, step)
    fit(run={"tensorboard": True})
    assert points(run, purge=False)["loss"] == [1, 2, 3, 4, 5, 6, *range((step or 0) + 1, 7)]
    assert points(run, purge=True) == before


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """W&B writes to the run folder alone."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "wandb-home"))


def records(path: Path) -> Iterator[Any]:
    """What a .wandb file holds: LevelDB's log format after seven bytes."""
    content, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def logged(run: Path) -> list[tuple[str, dict[int, dict[str, Any]]]]:
    """Of each part of a W&B run: its id, and its rows by their step."""
    parts = []
    for path in sorted(run.glob("wandb/*run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        name, history = "", {}
        for record in records(path):
            if record.WhichOneof("record_type") == "run":
                name = record.run.run_id
            elif record.WhichOneof("record_type") == "history":
                items = record.history.item
                row = {".".join(item.nested_key) or item.key: item.value_json for item in items}
                history[int(row["_step"])] = row
        parts.append((name, history))
    return parts


@pytest.mark.usefixtures("offline")
def test_a_continued_run_is_one_run_of_wandb(fit: Fit, tmp_path: Path) -> None:
    run = fit(run={"wandb": "project"})
    back_to_step(run, 4)
    moved = run.rename(run.with_name("moved"))
    fit(run={"wandb": "project", "name": "moved"})
    (first, history), (second, continued) = logged(moved)
    assert first == second == (moved / "wandb_id").read_text().strip()
    assert sorted(history) == [0, 1, 2, 3, 4, 5, 6]
    assert sorted(continued) == [5, 6], "nothing that was trained before is sent again"
    for row in rows(moved / "metrics.csv"):
        step = int(row["step"])
        for part in (history, continued) if step > 4 else (history,):
            assert json.loads(part[step]["loss"]) == pytest.approx(float(row["loss"]), rel=1e-5)
    assert "val/held_out/loss" in history[3]
    assert "routing/layer_01/gate_deep" in history[3]
    assert (fit(run={"wandb": "project"}) / "wandb_id").read_text().strip() != first


@pytest.mark.slow
@pytest.mark.usefixtures("offline")
def test_where_wandb_cannot_be_reached_rows_are_kept_for_later(
    fit: Fit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    init = wandb.init

    def unreachable(**settings: Any) -> Any:
        if settings.get("mode") != "offline":
            raise wandb.errors.CommError("no route to\nhost")
        return init(**settings)

    monkeypatch.setattr(wandb, "init", unreachable)
    run = fit(run={"wandb": "project"})
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("W&B")]
    assert said == [
        f"W&B: CommError: no route to host; rows go to {run / 'wandb'}, `wandb sync` sends them "
        "later"
    ]
    ((_, history),) = logged(run)
    assert sorted(history) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.usefixtures("offline")
def test_where_wandb_fails_altogether_training_goes_on(
    fit: Fit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("its service is gone")

    monkeypatch.setattr(wandb.sdk.wandb_run.Run, "log", broken)
    run = fit(run={"wandb": "project"})
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("W&B")]
    assert said == [
        "W&B: RuntimeError: its service is gone; from step 0 on, rows are in metrics.csv alone"
    ]
    assert len(rows(run / "metrics.csv")) == 6
