"""A sweep whose runs are trained by `dualpath fit`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dualpath_cli.output.csv_text import read_csv
from tests.sweep.sweeps import write_recipe

pytestmark = pytest.mark.slow


def test_a_sweep_measures_trains_and_ends(texts: Path, tmp_path: Path) -> None:
    val = {"held_out": str(texts / "val.jsonl")}
    recipe = write_recipe(tmp_path, data={"path": str(texts / "train"), "val": val})
    out = tmp_path / "sweep"
    words = ["sweep", "--config", str(recipe), "--budget", "100K", "--alphas", "50", "--loops", "2",
             "--controls", "wide", "--seeds", "1", "--tune", "off", "--jobs", "2", "--yes",
             "--out", str(out)]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "dualpath_cli", *words], text=True, capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"next: dualpath compare {out}"
    plan = {row["configuration"]: row for row in read_csv(out / "plan.csv")}
    assert set(plan) == {"wide", "a50_k2"}
    assert all(float(row["hours"]) > 0 for row in plan.values()), "measured here"
    for name, row in plan.items():
        folder = out / "runs" / name / "seed_0"
        ends = [r for r in read_csv(folder / "validation.csv") if int(r["step"]) == 10]
        assert [r["set"] for r in ends] == ["held_out"]
        model = yaml.safe_load((folder / "recipe.yaml").read_text())["model"]
        assert (model["block"] == "wide") == (name == "wide")
        printed = (out / "logs" / f"{name}-seed_0.log").read_text()
        assert f"{float(row['linear_flops']) / 1e6:.2f}M linear" in printed
