"""Ablations and evaluations of a configuration's runs, read together by compare."""

import json
from pathlib import Path
from typing import Any

import pytest

from dualpath_cli.compare.groups import Group, groups_of
from dualpath_cli.compare.runs import find_folders, read_run
from dualpath_cli.compare.studies import (
    ablations_of,
    evaluations_of,
    excess_over_runs,
    table_of_classes,
    table_of_scores,
)
from dualpath_cli.recipe.recipes import merge
from tests.compare.run_folders import STEPS, write_sweep

EXCESS = {"token_class": "arithmetic", "path": "wide", "source": "gsm8k", "per_forced": 1.25}


def swept(folder: Path, seeds: int) -> tuple[Path, list[Group]]:
    sweep = write_sweep(folder / "sweep", ["wide", "a50_k2"], range(seeds))
    return sweep, groups_of([read_run(path) for path in find_folders([str(sweep)])])


def write_reports(sweep: Path, excesses: list[float]) -> Path:
    """Reports by `dualpath ablate` for wide's runs; returns the last one."""
    for seed, value in enumerate(excesses):
        folder = sweep / f"runs/wide/seed_{seed}/ablations/step-00000010"
        folder.mkdir(parents=True)
        row = {"suite": "forced", "intervention": "K=1", "source": "gsm8k", "loss": 3.0}
        report = {"rows": [row | {"difference": value}], "excess": [EXCESS | {"excess": value}]}
        (folder / "ablations.json").write_text(json.dumps(report))
        (folder.parent / "step-00000005").mkdir()  # an older one, which does not count
        (folder.parent / "step-00000005/ablations.json").write_text("{}")
    return folder / "ablations.json"


def test_the_ablations_of_a_configuration_are_means_over_its_runs(tmp_path):
    sweep, groups = swept(tmp_path, 6)
    write_reports(sweep, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    (row,), (of_class,), left_out = ablations_of(groups)
    assert left_out == []
    assert (row["configuration"], row["intervention"], row["runs"]) == ("wide", "K=1", 6)
    assert row["difference"] == of_class["mean"] == pytest.approx(0.35)
    assert row["difference_sd"] == pytest.approx(0.035**0.5)
    assert (of_class["forced"], of_class["above"]) == ("arithmetic wide", 6)
    assert of_class["p"] == of_class["p_holm"] == 2 / 64
    cells = dict(zip(*[[c.heading for c in table_of_classes([of_class]).columns],
                       table_of_classes([of_class]).cells()[0]], strict=True))  # fmt: skip
    assert (cells["mean"].text, cells["least"].text, cells["most"].text) == (
        "+0.3500", "+0.1000", "+0.6000",
    )  # fmt: skip


@pytest.mark.parametrize(
    "damaged",
    ['{"rows": [', '{"rows": []}', '{"rows": [{"loss": 1}]}', "[]",
     '{"rows": [{"loss": null}], "excess": []}'],
)  # fmt: skip
def test_a_damaged_report_is_left_out_with_a_line(damaged, tmp_path):
    sweep, groups = swept(tmp_path, 3)
    report = write_reports(sweep, [0.1, 0.2, 0.3])
    report.write_text(damaged)
    (row,), _, (line,) = ablations_of(groups)
    assert row["runs"] == 2
    assert str(report) in line


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


SCORED: dict[str, Any] = {
    "model": {
        "name": "m", "window": 64, "batch_size": 2, "precision": "float32",
        "intervention": "learned",
    },
    "n-samples": {"piqa": {"effective": 9}},
}  # fmt: skip


def write_scores(sweep: Path, seed: int, bpb: float, step: int = STEPS, **model: str) -> Path:
    """A report by `dualpath evaluate` for one of wide's runs."""
    path = sweep / f"runs/wide/seed_{seed}/evaluations/m-step-{step:08d}/results.json"
    scores = {"acc_per_char,none": 0.5, "acc_per_char_stderr,none": "N/A",
              "bpb,none": bpb, "bpb_stderr,none": 0.1}  # fmt: skip
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(merge(SCORED, {"results": {"piqa": scores}, "model": model})))
    return path


def test_the_scores_of_a_configuration_stand_as_mean_and_standard_error(tmp_path):
    sweep, groups = swept(tmp_path, 3)
    for seed, bpb in enumerate((1.0, 1.5, 2.0)):
        write_scores(sweep, seed, bpb)
    rows, left_out = evaluations_of(groups)
    assert left_out == []
    assert [row["score"] for row in rows] == [0.5, 1.0, 0.5, 1.5, 0.5, 2.0]
    cells = [[cell.text for cell in row] for row in table_of_scores(rows).cells()]
    assert cells == [
        ["piqa", "accuracy", "9", "0.5000 ± 0.0000"],
        ["piqa", "bits per byte", "9", "1.5000 ± 0.2887"],
    ]


def test_scores_of_other_steps_or_under_an_override_are_not_joined(tmp_path):
    sweep, groups = swept(tmp_path, 3)
    write_scores(sweep, 0, 1.0)
    write_scores(sweep, 1, 1.5, step=STEPS - 10)
    forced = write_scores(sweep, 2, 2.0, intervention="K=1")
    rows, left_out = evaluations_of(groups)
    assert {row["seed"] for row in rows} == {0}
    assert left_out == [f"left out: {forced}, scored under K=1"]
