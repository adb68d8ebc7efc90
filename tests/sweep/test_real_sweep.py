"""A sweep whose runs are trained by `dualpath fit`: in this process, or as users have it."""

import contextlib
import re
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from dualpath_cli.cli.main import main
from dualpath_cli.files import read_csv
from dualpath_cli.sweep import runner
from dualpath_cli.sweep.runs import Run
from tests.sweep.conftest import write_recipe


def train_here(run: Run, slot: int, jobs: int) -> Any:
    run.log.parent.mkdir(parents=True, exist_ok=True)
    with run.log.open("w") as log, contextlib.redirect_stdout(log):
        code = main(["fit", "--config", str(run.path)])
    return SimpleNamespace(poll=lambda: code, returncode=code)


@pytest.mark.parametrize("where", ["here", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_sweep_plans_trains_and_ends(where, texts, tmp_path, output_of, monkeypatch):
    if where == "here":
        monkeypatch.setattr(runner, "start", train_here)
        monkeypatch.setattr("dualpath_cli.training.logs.curve.draw", lambda run: run)
    val = {"held_out": str(texts / "val.jsonl")}
    recipe = write_recipe(tmp_path, data={"path": str(texts / "train"), "val": val})
    out = tmp_path / "sweep"
    words = ["sweep", "--config", recipe, "--budget", "100K", "--alphas", "50", "--loops", "2",
             "--controls", "wide", "--tune", "off", "--yes", "--out", out]  # fmt: skip
    said = output_of(*words, "--seeds", "1")
    assert "hours are not known before a run of each family has begun" in " ".join(said.split())
    assert said.splitlines()[-1] == f"next: dualpath compare {out}"
    said = output_of(*words, "--seeds", "2", "--slurm")
    assert re.search(r"in all \d+\.\d min", " ".join(said.split()))
    plan = {row["configuration"]: row for row in read_csv(out / "plan.csv")}
    assert set(plan) == {"wide", "a50_k2"}
    for name, row in plan.items():
        folder = out / "runs" / name / "seed_0"
        ends = [r for r in read_csv(folder / "validation.csv") if int(r["step"]) == 10]
        assert [r["set"] for r in ends] == ["held_out"]
        speeds = [float(r["tokens_per_second"]) for r in read_csv(folder / "metrics.csv")]
        assert min(speeds) <= 640 / 3600 / float(row["hours"]) <= max(speeds)
        model = yaml.safe_load((folder / "recipe.yaml").read_text())["model"]
        assert (model["block"] == "wide") == (name == "wide")
        printed = (out / "logs" / f"{name}-seed_0.log").read_text()
        assert f"{float(row['linear_flops']) / 1e6:.2f}M linear" in printed
