"""The words of a sweep that trains nothing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dualpath_cli.command import launch
from dualpath_cli.run.run_folder import AVERAGES
from dualpath_cli.sweep import runner, worker
from dualpath_cli.sweep.runs import Run
from tests.sweep import fake_fit
from tests.sweep.sweeps import write_recipe

WORDS = ["--budget", "100K", "--alphas", "50", "--loops", "2", "--seeds", "2", "--tflops", "0.01"]


def start(run: Run, slot: int, jobs: int) -> Any:
    """Has the stand-in write a run in this process: one that has ended at once."""
    run.log.parent.mkdir(parents=True, exist_ok=True)
    if run.words[0] == "validate":
        count, scores = run.words[run.words.index("--average") + 1], run.folder / AVERAGES
        with scores.open("a") as table:
            print(f"step,average,set,loss,bits_per_byte\n{run.steps},{count},held_out,1.5,0.5",
                  file=table)  # fmt: skip
        return SimpleNamespace(poll=lambda: 0, returncode=0)
    with run.log.open("a") as log:
        code = fake_fit.fit(run.path, worker.environment(run, slot, jobs), log)
    return SimpleNamespace(poll=lambda: code, returncode=code)


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words of a sweep whose runs are the stand-in's, written in this process."""
    monkeypatch.setattr(runner, "start", start)
    monkeypatch.setattr(runner, "POLL", 0.0)
    monkeypatch.setattr(launch, "to_train", lambda *_: None)  # there are no data
    recipe, out = write_recipe(tmp_path), tmp_path / "sweep"
    return ["sweep", "--config", str(recipe), "--out", str(out), *WORDS]
