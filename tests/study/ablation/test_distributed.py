"""Two processes give one process's numbers, whole or sharded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dualpath_cli.cli import main
from tests.study.conftest import OPEN
from tests.training.conftest import Fit

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_give_the_numbers_of_one(strategy: str, fit: Fit, tmp_path: Path) -> None:
    run = fit(**OPEN)
    # An odd number of windows, each a batch of its own: one process scores a batch of padding.
    words = ["--ckpt_path", str(run), "--suite", "paper", "halting", "--loops", "1,2,3"]
    words += ["--max_tokens", "130", "--run.micro_batch", "1", "--out"]
    assert main(["ablate", *words, str(tmp_path / "one")]) == 0
    command = [sys.executable, "-m", "dualpath_cli", "ablate", *words, str(tmp_path / "two")]
    command += ["--trainer.strategy", strategy, "--trainer.devices", "2"]
    subprocess.run(command, check=True, timeout=300)
    one, two = (
        json.loads((tmp_path / name / "ablations.json").read_text()) for name in ("one", "two")
    )
    assert (one["devices"], two["devices"]) == (1, 2)
    assert one["sources"] == two["sources"]
    assert one["sources"]["held_out"]["sequences"] % 2 == 1
    assert len(one["rows"]) == len(two["rows"]) == 9 + 8
    for expected, row in zip(one["rows"], two["rows"], strict=True):
        assert row["intervention"] == expected["intervention"]
        for key in ("loss", "difference", "low", "high", "expected_loops", "loops_run"):
            assert row[key] == pytest.approx(expected[key], abs=1e-6), (row["intervention"], key)
    assert len({round(row["loss"], 5) for row in one["rows"]}) > 8
    # Each pass is kept once, and found again by the same command.
    kept = list((tmp_path / "two" / "scores").iterdir())
    assert len(kept) == len(two["rows"])
