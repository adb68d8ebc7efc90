"""How fast a sweep's runs are: measured once, stopped as runs are, by a stand-in for `fit`."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dualpath_cli import cli
from dualpath_cli.command import launch
from dualpath_cli.output.csv_text import read_csv
from dualpath_cli.sweep import worker
from tests.sweep.sweeps import SWEEP, write_fake_fit, write_recipe


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
    monkeypatch.setattr(worker, "command_of", lambda recipe: [*fake, str(recipe)])
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


def running(of: Path) -> bool:
    return str(of) in subprocess.run(["ps", "axww"], capture_output=True, text=True).stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_measuring_and_leaves_nothing_behind(
    number: int, code: int, words: list[str], tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", SWEEP, *write_fake_fit(tmp_path), *words], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "FAKE_SECONDS": "60", "TMPDIR": str(scratch)},
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(scratch.glob("*/*/*/metrics.csv")) and not list(scratch.glob("**/starts")):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(number)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert said.endswith("dualpath sweep: stopped; the same command continues\n")
    assert not running(tmp_path), "no process of it"
    assert list(scratch.iterdir()) == []
