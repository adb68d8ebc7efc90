"""Runs that fit has trained, compared."""

import csv
from pathlib import Path

import pytest

from dualpath_cli.cli import main
from dualpath_cli.flops.count import parameters
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.run.run_folder import read_recipe


def test_runs_of_fit_are_compared(trained, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("dualpath_cli.compare.figures.draw", lambda groups, rows: {})
    runs = {
        "dual": trained(run={"name": "dual"}),
        "wide": trained(run={"name": "wide"}, model={"block": "wide", "d_ffn_wide": 96}),
    }
    out = tmp_path / "out"
    assert main(["compare", *map(str, runs.values()), "--out", str(out)]) == 0
    with (out / "table.csv").open(newline="") as file:
        rows = {row["configuration"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["tiny/wide", "tiny/dual"]
    for name, run in runs.items():
        row, settings = rows[f"tiny/{name}"], settings_from(read_recipe(run))
        last = (run / "validation.csv").read_text().splitlines()[-1].split(",")
        assert float(row["held_out"]) == float(row["aggregate"]) == pytest.approx(float(last[-1]))
        assert int(row["parameters"]) == parameters(settings.model)
        assert (row["family"], row["training_tokens"]) == (name, "384")
