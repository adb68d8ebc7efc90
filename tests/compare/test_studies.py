"""Ablations and routings of a configuration's runs, read together by compare."""

import csv
import json
from pathlib import Path

import pytest

from dualpath_cli.base.system import read_csv
from dualpath_cli.cli.main import main
from dualpath_cli.compare.studies import excess_over_runs
from tests.compare.run_folders import write_sweep

EXCESS = {"token_class": "arithmetic", "path": "wide", "source": "gsm8k", "per_forced": 1.25}


def write_reports(sweep: Path, excesses: list[float]) -> None:
    for seed, value in enumerate(excesses):
        folder = sweep / f"runs/wide/seed_{seed}/ablations/step-00000010"
        folder.mkdir(parents=True)
        row = {"suite": "forced", "intervention": "K=1", "source": "gsm8k", "loss": 3.0}
        report = {"rows": [row | {"difference": value}], "excess": [EXCESS | {"excess": value}]}
        (folder / "ablations.json").write_text(json.dumps(report))
        (folder.parent / "step-00000005").mkdir()  # an older one, which does not count
        (folder.parent / "step-00000005/ablations.json").write_text("{}")


def test_compare_sets_the_ablations_of_its_runs_side_by_side(tmp_path, capsys):
    sweep = write_sweep(tmp_path / "sweep", ["wide", "a50_k2"], range(6))
    write_reports(sweep, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert main(["compare", str(sweep)]) == 0
    said = capsys.readouterr().out
    assert "excess over random tokens" in said
    assert "fewer than six" not in said
    with (sweep / "comparison/ablations.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["configuration"], row["intervention"], row["runs"]) == ("wide", "K=1", "6")
    assert float(row["difference"]) == pytest.approx(0.35)
    assert float(row["difference_sd"]) == pytest.approx(0.035**0.5)
    with (sweep / "comparison/ablation_classes.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["mean"]) == pytest.approx(0.35)
    assert (row["forced"], row["above"]) == ("arithmetic wide", "6")
    assert float(row["p"]) == float(row["p_holm"]) == 2 / 64


def test_few_runs_and_losses_that_are_no_numbers_are_said(tmp_path, capsys):
    sweep = write_sweep(tmp_path / "sweep", ["wide"], range(3))
    write_reports(sweep, [0.1, -0.2, 0.3])
    report = sweep / "runs/wide/seed_2/ablations/step-00000010/ablations.json"
    report.write_text(report.read_text().replace("3.0", "null"))
    assert main(["compare", str(sweep)]) == 0
    said = capsys.readouterr().out
    assert "with fewer than six runs the test cannot give p < 0.05" in " ".join(said.split())
    assert f"{report}: left out, losses that are no numbers" in said


@pytest.mark.parametrize("damaged", ['{"rows": [', '{"rows": []}', '{"rows": [{"loss": 1}]}', "[]"])
def test_a_damaged_report_is_left_out_with_a_line(damaged, tmp_path, capsys):
    sweep = write_sweep(tmp_path / "sweep", ["wide"], range(3))
    write_reports(sweep, [0.1, 0.2, 0.3])
    report = sweep / "runs/wide/seed_2/ablations/step-00000010/ablations.json"
    report.write_text(damaged)
    assert main(["compare", str(sweep)]) == 0
    assert f"{report}: left out, " in capsys.readouterr().out
    assert (sweep / "comparison/ablations.csv").exists()


def test_the_tests_over_runs_are_corrected_for_their_number():
    further = EXCESS | {"token_class": "punctuation"}
    runs = [
        [*(EXCESS | {"source": name, "excess": 0.1 + n} for name in "abc"), further | {"excess": 1}]
        for n in range(6)
    ]
    found = [one["p_holm"] for one in excess_over_runs(runs)]
    assert found == [3 * 2 / 64] * 3 + [2 / 64], "a further class is a family of its own"
    # A class that not all runs have is left out.
    assert excess_over_runs([[EXCESS | {"excess": 0.1}], []]) == []
    assert excess_over_runs([[EXCESS | {"excess": 0.1}], [EXCESS | {"excess": None}]]) == []


def test_compare_means_the_routings_of_its_runs(tmp_path, capsys):
    sweep = write_sweep(tmp_path / "sweep", ["wide", "a50_k2"], range(4))
    for seed, share in enumerate((0.25, 0.5, None, "damaged")):
        folder = sweep / f"runs/a50_k2/seed_{seed}/routing/step-00000010"
        folder.mkdir(parents=True)
        layers = {"deep_share": {"mean": [share, 0.5]}, "cosine": {"mean": [0.1 * seed, None]}}
        upos = {"NOUN": {"deep_share": {"mean": share}}}
        report = {"layers": [1, 3], "sources": {"novels": {"layers": layers, "upos": upos}}}
        (folder / "summary.json").write_text(json.dumps(report))
    assert main(["compare", str(sweep)]) == 0
    assert "seed_3/routing/step-00000010/summary.json: left out, " in capsys.readouterr().out
    rows = read_csv(sweep / "comparison/routings.csv")
    names = ("configuration", "source", "measure", "layer", "runs")
    found = {tuple(row[name] for name in names): (row["mean"], row["sd"]) for row in rows}
    assert found == {  # what a run lacks is left out
        ("a50_k2", "novels", "deep_share", "3", "3"): ("0.5", "0.0"),
        ("a50_k2", "novels", "cosine", "1", "3"): ("0.1", "0.1"),
    }
