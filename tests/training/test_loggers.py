"""What watches a run: TensorBoard, W&B, the progress, a profiler, MFU's peak."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dualpath_cli.report.console import plain_console
from dualpath_cli.training import session
from dualpath_cli.training.tables import peak_tflops
from tests.training.tiny_run import back_to_step, rows

wandb = pytest.importorskip("wandb")


def points(run: Path, purge: bool) -> dict[str, list[int]]:
    """The steps of each tag in TensorBoard, as it shows them or with all that was ever written."""
    events = EventAccumulator(str(run / "tensorboard"), purge_orphaned_data=purge)
    events.Reload()
    return {tag: [point.step for point in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.parametrize("step", [2, None])
def test_tensorboard_shows_each_step_once_after_a_continuation(step, fit):
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
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """W&B writes to the run folder alone; returns all rows that it gets."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "wandb-home"))
    sent: list[dict[str, Any]] = []
    log = wandb.sdk.wandb_run.Run.log

    def watched(run: Any, row: dict[str, Any], *more: Any, **named: Any) -> None:
        sent.append({"id": run.id, **row})
        log(run, row, *more, **named)

    monkeypatch.setattr(wandb.sdk.wandb_run.Run, "log", watched)
    return sent


def test_a_continued_run_is_one_run_of_wandb(fit, offline):
    run = fit(run={"wandb": "project"})
    wandb.finish()  # as the end of the process does
    whole = list(offline)
    back_to_step(run, 4)
    moved = run.rename(run.with_name("moved"))
    fit(run={"wandb": "project", "name": "moved"})
    wandb.finish()
    kept = (moved / "wandb_id").read_text().strip()
    assert {row["id"] for row in offline} == {kept}
    assert len(list(moved.glob(f"wandb/offline-run-*-{kept}/*.wandb"))) == 2
    assert {row["trainer/global_step"] for row in offline[len(whole) :]} == {5, 6}
    losses = {row["trainer/global_step"]: row["loss"] for row in offline if "loss" in row}
    for row in rows(moved / "metrics.csv"):
        assert losses[int(row["step"])] == pytest.approx(float(row["loss"]), rel=1e-5)
    assert any("val/held_out/loss" in row for row in whole)
    assert any("routing/layer_01/gate_deep" in row for row in whole)


def test_where_wandb_cannot_be_reached_one_line_names_the_way_out(refused, monkeypatch):
    def unreachable(**_: Any) -> Any:
        raise wandb.errors.CommError("no route to\nhost")

    monkeypatch.setattr(wandb, "init", unreachable)
    assert "run.wandb=project: CommError: no route to host" in refused(run={"wandb": "project"})


def test_a_terminal_shows_steps_time_left_and_loss_and_nothing_is_drawn_without(
    fit, monkeypatch, capsys
):
    fit(run={"name": "no-terminal"})
    said = capsys.readouterr().out
    assert re.search(r"^training: 6 of 6 steps, loss \d\.\d{3}, .* tokens/s, 0\.0 min left$", said,
                     re.MULTILINE)  # fmt: skip
    assert "\x1b" not in said

    for name, value in {"TERM": "xterm", "COLUMNS": "120", "FORCE_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(session, "plain_console",
                        lambda **named: plain_console(force_terminal=True, **named))  # fmt: skip
    fit(run={"name": "terminal"})
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out)
    assert re.search(r"training .* 6 of 6 steps, loss \d\.\d{3}, .* tokens/s \d:\d\d:\d\d", shown)
    assert "min left" not in shown


def test_a_profiler_reports_to_the_user_or_into_the_run_folder(fit, capfd, caplog):
    fit(run={"name": "profiled"}, trainer={"profiler": "simple"})
    assert "FIT Profiler Report" in capfd.readouterr().err + caplog.text
    run = fit(run={"name": "traced"}, trainer={"profiler": "pytorch"})
    assert list(run.glob("*.pt.trace.json"))


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        # NVIDIA's datasheets print the sparse peak, twice the dense one, beside it or alone.
        ("NVIDIA H200", 989.4),
        ("NVIDIA GH200 480GB", 989.4),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L4", 121),
        *((f"NVIDIA {name}", None) for name in ("H100 NVL", "L40S", "A40", "H20")),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_mfu_is_measured_against_the_dense_peak_of_the_very_chip_or_not_at_all(
    name, peak, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_tflops(torch.device("cuda", 0)) == peak
    assert peak_tflops(torch.device("cpu")) is None
