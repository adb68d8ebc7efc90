"""Runs that fit has trained, compared."""

import csv

import pytest

from dualpath_cli.cli.main import main
from dualpath_cli.flops.count import parameters
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.run.run_folder import read_recipe
from tests.tiny_run import prepare


def test_runs_of_fit_are_compared(trained, tmp_path, monkeypatch):
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


def test_runs_validated_on_a_data_folder_are_told_by_its_fingerprint(fit, texts, tmp_path, capsys):
    def run(name: str, text: str, seed: int) -> str:
        folder = tmp_path / text / "val"
        if not folder.exists():
            prepare(folder, texts / f"{text}.jsonl")
        recipe = {"run": {"name": name}, "data": {"val": {"set": str(folder)}}}
        return str(fit(**recipe, seed_everything=seed))

    runs = [run("default", "val", 0), run("seed_1", "val", 1), run("other", "train", 2)]
    assert main(["compare", *runs[:2], "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert main(["compare", *runs, "--out", str(tmp_path / "out")]) == 2
    assert "cannot be compared: validation set set " in capsys.readouterr().err
