"""Own callbacks, loggers and profilers: found as own gates are, and as docs/custom.md
shows."""

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch import Callback

from dualpath_cli.cli.main import main
from dualpath_cli.compare.sweep import runner
from tests.training.tiny_run import back_to_step

PAGE = (Path(__file__).parents[2] / "docs" / "custom.md").read_text()
SPY = """
from lightning.pytorch import Callback

class Spy(Callback):
    def __init__(self, monitor=None): self.monitor = monitor

class NoCallback: ...
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the page's file and `my_spy.py`, which Python does not
    look in."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "my_watch.py").write_text(blocks[-1])
    (tmp_path / "my_spy.py").write_text(SPY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    importlib.invalidate_caches()
    yield tmp_path
    for module in ("my_watch", "my_spy"):
        sys.modules.pop(module, None)


def test_the_classes_of_the_page_work_as_it_prints(fit, here):
    section = re.search(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None
    fit(**yaml.safe_load(section[1]))
    rows = [json.loads(line) for line in (here / "rows.jsonl").read_text().splitlines()]
    norms = {
        row["step"]: row["embedding_rms"] for row in rows if "embedding_rms" in row
    }
    assert list(norms) == [2, 4, 6], "once a step, of several micro-batches"
    assert 0.015 < norms[2] < 0.025, "init_std is 0.02"
    kept = (
        (here / "runs/tiny/default/metrics.csv").read_text().splitlines()[0].split(",")
    )
    (logged,) = [row for row in rows if row["step"] == 3 and "grad_norm" in row]
    assert {*kept} - {"step", "seconds", "mfu"} == logged.keys() - {"step"}
    assert any("val/held_out/bits_per_byte" in row for row in rows)
    assert any("routing/layer_00/expected_loops" in row for row in rows)
    longest = (here / "fit-slowest.txt").read_text().splitlines()
    assert len(longest) == 3
    assert all(re.fullmatch(r".+: \d+\.\d\d s", line) for line in longest)


CALLED: list[str] = []


class EachHook(Callback):
    """Keeps the hooks that are called, in the order of their first call."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_") or name in ("setup", "teardown"):
            CALLED.append(name)
        return super().__getattribute__(name)


def test_the_page_lists_the_hooks_that_run_and_no_other(fit):
    listed = PAGE.partition("In the order of their first call:")[2].partition("`. ")[0]
    CALLED.clear()
    run = fit(trainer={"callbacks": {"class_path": f"{__name__}.EachHook"}})
    assert re.findall(r"\w+", listed) == list(dict.fromkeys(CALLED))
    CALLED.clear()
    callback = json.dumps([{"class_path": f"{__name__}.EachHook"}])
    assert (
        main(["validate", "--ckpt-path", str(run), "--trainer.callbacks", callback])
        == 0
    )
    assert {name for name in CALLED if "validation" not in name} == {
        "setup",
        "teardown",
    }


class Forgetful(Callback):
    """Loads another key than it saves, as after a change of its source."""

    def state_dict(self) -> dict[str, Any]:
        return {"best": 1}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.worst = state_dict["worst"]


def test_an_own_callback_that_cannot_load_its_state_is_named(fit, refused):
    trainer = {"callbacks": {"class_path": f"{__name__}.Forgetful"}}
    back_to_step(fit(trainer=trainer), 4)
    error = refused(trainer=trainer)
    assert f"{__name__}.Forgetful cannot load its state" in error
    assert "(KeyError: 'worst')" in error


WRONG = {
    "no such file": (
        "my_spi.Spy",
        {},
        "'my_spi.Spy': importing .* looks in {here}, .* PYTHONPATH",
    ),
    "no such class": (
        "my_spy.Spi",
        {},
        "'my_spy.Spi': importing .* looks in {here}, .*PYTHONPATH",
    ),
    # No class of another test, which would be found while it is in memory.
    "a class of Lightning's, without its file": (
        "Watcher",
        {},
        "'?Watcher.* {{class_path: PACKAGE.CLASS",
    ),
    "another kind of class": (
        "my_spy.NoCallback",
        {},
        "not correspond to a subclass of Callback",
    ),
    "an argument": ("my_spy.Spy", {"moniter": "x"}, "'moniter' is not accepted"),
    "a metric": (
        "EarlyStopping",
        {"monitor": "loss"},
        "monitors 'loss', which is not a metric; there are val",
    ),
    "what cannot work": (
        "StochasticWeightAveraging",
        {"swa_lrs": 0.1},
        "use a falling rate",
    ),
    "what fails at the first checkpoint": (
        "EMAWeightAveraging",
        {"decay": 0.99},
        "use a falling rate",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_class_is_one_line_before_a_run_and_before_a_sweep(
    mistake, trained, said, here, monkeypatch
):
    path, arguments, message = WRONG[mistake]
    trained()  # writes the recipe
    callback = json.dumps([{"class_path": path, "init_args": arguments}])
    words = ["--config", "recipe.yaml", "--trainer.callbacks", callback]
    first = said("fit", *words, "--run.name", "new")
    assert re.search(message.format(here=re.escape(str(here))), first)
    monkeypatch.setattr(runner, "start", None)  # a run would end in a traceback
    options = "--budget 100K --alphas none --seeds 1 --out sweep --yes"
    second = said("sweep", *words, *options.split())
    assert second.partition("error: ")[2] == first.partition("error: ")[2]
    assert not (here / "sweep").exists()


def test_a_class_inside_of_the_run_that_is_read_is_not_imported(trained, said, here):
    run = trained()
    (run / "planted.py").write_text("raise SystemExit('it ran')")
    callback = json.dumps(
        [{"class_path": f"{'.'.join(run.relative_to(here).parts)}.planted.Spy"}]
    )
    error = said("validate", "--ckpt-path", run, "--trainer.callbacks", callback)
    assert "which is read; move a trusted file out of there" in error
