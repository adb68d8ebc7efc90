"""The words of a sweep that trains nothing."""

from pathlib import Path

import pytest

from dualpath_cli.command import launch
from dualpath_cli.sweep import worker
from tests.sweep.sweeps import write_fake_fit, write_recipe

WORDS = ["--budget", "100K", "--alphas", "50", "--loops", "2", "--seeds", "2", "--tflops", "0.01"]


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words of a sweep whose runs are the stand-in's."""
    fake = write_fake_fit(tmp_path)
    monkeypatch.setattr(worker, "command_of", lambda recipe: [*fake, str(recipe)])
    monkeypatch.setattr(launch, "read", lambda *_: None)  # there are no data
    recipe, out = write_recipe(tmp_path), tmp_path / "sweep"
    return ["sweep", "--config", str(recipe), "--out", str(out), *WORDS]
