"""How fast a sweep's runs are: measured once, by a stand-in for `fit`."""

from pathlib import Path

import pytest

from dualpath_cli import cli
from dualpath_cli.command import launch
from dualpath_cli.output.csv_text import read_csv
from dualpath_cli.sweep import speed, worker
from tests.sweep.sweeps import write_fake_fit, write_recipe


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The words of a sweep of one family, whose speed is measured."""
    recipe = write_recipe(tmp_path, optim={"lr": 3e-3})
    return ["sweep", "--config", str(recipe), "--out", str(tmp_path / "sweep"), "--budget", "100K",
            "--alphas", "50", "--loops", "2", "--seeds", "1", "--controls", "none",
            "--tune", "2e-3,4e-3", "--yes"]  # fmt: skip


def test_speed_is_measured_once_while_nothing_that_decides_it_changes(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    fake, out = write_fake_fit(tmp_path), tmp_path / "sweep"
    for module in (speed, worker):
        monkeypatch.setattr(module, "command_of", lambda recipe: [*fake, str(recipe)])
    monkeypatch.setattr(launch, "read", lambda *_: None)  # there are no data
    assert cli.main(words) == 0
    assert "measuring how fast this machine trains: dual" in capsys.readouterr().out
    assert [row["tokens_per_second"] for row in read_csv(out / "speed.csv")] == ["1000.0"]
    assert "lr: 0.004" in (out / "recipes" / "a50_k2-seed_0.yaml").read_text(), "not the recipe's"
    assert cli.main([*words, "--seeds", "2"]) == 0
    assert "measuring" not in capsys.readouterr().out
    assert cli.main([*words, "--seeds", "3", "--jobs", "2"]) == 0
    assert "measuring" in capsys.readouterr().out, "on fewer threads each"
    (out / "speed.csv").unlink()
    assert cli.main([*words, "--seeds", "3"]) == 0
    assert "measuring" not in capsys.readouterr().out, "all runs are finished"
