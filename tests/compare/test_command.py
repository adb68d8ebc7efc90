"""`dualpath compare` as a user sees it; ablations, routings and evaluations of a
configuration's runs."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dualpath_cli.base.folders import OURS
from dualpath_cli.cli.main import main
from dualpath_cli.compare import runs
from dualpath_cli.compare.baselines import groups_of
from dualpath_cli.compare.configurations import Group
from dualpath_cli.compare.differences import AFTER, SAME
from dualpath_cli.compare.results import Comparison
from dualpath_cli.compare.runs import TrainedRun, find_folders, read_trained_run
from dualpath_cli.compare.studies import (
    ablations_of,
    evaluations_of,
    excess_over_runs,
    routing_of,
    table_of_classes,
    table_of_scores,
)
from dualpath_cli.evaluation.benchmarks import SUITES
from dualpath_cli.flops.count import parameters
from dualpath_cli.recipe.recipes import merge
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.run.checkpoint_files import describe, files_of, write_manifest
from dualpath_cli.run.run_folder import read_recipe
from dualpath_cli.run.tables import TableRow, read_csv
from tests.cli.test_cli import run_without_slow_imports
from tests.compare.run_folders import STEPS, model_of, write_run, write_sweep
from tests.training.tiny_run import prepare

CELLS = ("wide", "loop_k2", "loop_k4", "a50_k2")
TESTS = {"tests.csv", "tests.md"}
WRITTEN = {*TESTS, "table.csv", "table.md", "runs.csv", "index.html"}


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are drawn where they are looked at."""
    monkeypatch.setattr("dualpath_cli.compare.figures.draw", lambda *_: {})


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Path:
    """A sweep, only to be read."""
    return write_sweep(tmp_path_factory.mktemp("made") / "sweep", CELLS)


def test_a_sweep_is_compared_in_a_folder_of_its_own(tmp_path, capsys, undrawn):
    sweep = write_sweep(
        tmp_path / "sweep", CELLS, effects={"loop_k4": 0.1, "a50_k2": -0.1}
    )
    write_run(
        sweep / "runs/a50_k4/seed_0",
        model_of("dual", 4),
        {"novels": 2, "peps": 2},
        cell="a50_k4",
        steps=10,
    )
    assert main(["compare", str(sweep)]) == 0
    out = capsys.readouterr().out
    left_out = f"{sweep}/runs/a50_k4/seed_0: left out, unfinished at step 10 of 40"
    assert f"{left_out}\n" in out
    page = (sweep / "comparison/index.html").read_text()
    assert "Bits per byte of 12 runs" in page  # runs.csv has three rows of each
    assert out.index("2.2") < out.index("minus those of wide, 9 tests in all")
    written = {path.name for path in (sweep / "comparison").iterdir()}
    assert written == {*WRITTEN, OURS}
    assert set(out.splitlines()[-len(WRITTEN) :]) == {
        str(sweep / "comparison" / name) for name in WRITTEN
    }
    rows = {
        row["configuration"]: row for row in read_csv(sweep / "comparison/table.csv")
    }
    assert list(rows) == list(CELLS)
    tests = [
        row
        for row in read_csv(sweep / "comparison/tests.csv")
        if row["measure"] == "aggregate"
    ]
    verdicts = {row["configuration"]: row["verdict"] for row in tests}
    assert (verdicts["loop_k4"], verdicts["a50_k2"]) == ("worse", "better")
    runs = read_csv(sweep / "comparison/runs.csv")
    for row in tests:
        mean = {}
        for name in (row["configuration"], "wide"):
            its = [
                r for r in runs if (r["configuration"], r["set"]) == (name, "aggregate")
            ]
            scores = [float(r["bits_per_byte"]) for r in its]
            assert float(rows[name]["aggregate"]) == pytest.approx(sum(scores) / 3)
            mean[name] = sum(scores) / 3
        assert float(row["difference"]) == pytest.approx(
            mean[row["configuration"]] - mean["wide"]
        )


def test_folders_whose_names_are_not_utf8_are_written_with_escapes(tmp_path, undrawn):
    sweep = write_sweep(tmp_path / os.fsdecode(b"caf\xe9"), CELLS[:2])
    scores = {"novels": 2, "peps": 2}
    unfinished = sweep / "runs/a50_k4/seed_0"
    write_run(unfinished, model_of("dual", 4), scores, cell="a50_k4", steps=10)
    assert main(["compare", str(sweep)]) == 0
    escaped = r"caf\udce9/runs"
    rows = read_csv(sweep / "comparison/runs.csv")
    assert all(escaped in row["run"] for row in rows)
    page = (sweep / "comparison/index.html").read_text()
    assert f"{escaped}/a50_k4/seed_0: left out, unfinished" in page


def test_runs_that_a_sweep_has_planned_and_that_are_missing_are_named_before_the_tables(
    tmp_path, capsys, undrawn
):
    sweep = write_sweep(tmp_path / "sweep", ["wide", "loop_k2"])
    for name in ("wide", "loop_k2", "a50_k2"):
        for seed in range(4):
            (sweep / f"recipes/{name}-seed_{seed}.yaml").touch()
    logs = sweep / "logs"
    logs.mkdir()
    (logs / "a50_k2-seed_0.log").write_text("dualpath fit: error: no such data\n\n")
    wrong = write_run(
        sweep / "runs/wide/seed_3", model_of("wide"), {"novels": 2.0}, steps=10
    )
    (wrong / "went_wrong.txt").write_text("steps 11 to 20 were skipped\n")
    stopped = write_run(
        sweep / "runs/loop_k2/seed_3", model_of("loop", 2), {"novels": 2.0}, steps=20
    )
    # and still at work
    (logs / "loop_k2-seed_3.log").write_text("training: step 20 of 40\n")

    assert main(["compare", str(sweep)]) == 0
    before = capsys.readouterr().out.partition("budget ")[0].splitlines()
    planned = "left out, planned by"
    assert before == [
        f"{stopped}: left out, unfinished at step 20 of 40",
        f"{wrong}: left out, unfinished at step 10 of 40, its numbers went wrong: "
        "steps 11 to 20 were skipped",
        f"{sweep}/runs/a50_k2/seed_0: {planned} {sweep}/recipes/a50_k2-seed_0.yaml and "
        "not begun, error: no such data",
        *(
            f"{sweep}/runs/a50_k2/seed_{n}: {planned} "
            f"{sweep}/recipes/a50_k2-seed_{n}.yaml and not begun"
            for n in (1, 2, 3)
        ),
        "6 of 12 planned runs have finished; 3 of 3 configurations lack seeds: a50_k2 "
        "0 of 4, loop_k2 3 of 4, wide 3 of 4",
    ]

    # Another sweep may call its configurations alike.
    other = write_sweep(tmp_path / "other", ["wide"], seeds=(4, 5))
    for seed in (4, 5, 6):
        (other / f"recipes/wide-seed_{seed}.yaml").touch()
    assert (
        main(["compare", str(sweep), str(other), "--out", str(tmp_path / "out")]) == 0
    )
    assert (
        "8 of 15 planned runs have finished; 4 of 4 configurations lack seeds: a50_k2 "
        "0 of 4, loop_k2 3 of 4, wide 3 of 4, wide 2 of 3\n"
    ) in capsys.readouterr().out


def test_seeds_that_lack_a_learning_rate_are_named(tmp_path, capsys, undrawn):
    for n, lr in enumerate((1e-3, 2e-3, 4e-3)):
        for seed in range(4 if n == 1 else 2):
            write_run(
                tmp_path / f"wide-lr_{lr:g}/{seed}",
                model_of("wide"),
                {"novels": 2 + 0.1 * (n - 1) ** 2},
                cell=f"wide-lr_{lr:g}",
                seed=seed,
                optim={"lr": lr},
            )
    out = str(tmp_path / "out")
    assert main(["compare", str(tmp_path), "--best", "lr", "--out", out]) == 0
    said = capsys.readouterr().out
    assert "'wide' goes without seeds that lack a rate: 2, 3\n" in said


def write_rates_that_went_wrong(folder: Path, rates: tuple[float, ...]) -> None:
    """Two seeds of PureWide at each rate, whose numbers went wrong at the last one."""
    for n, lr in enumerate(rates):
        goes_wrong = lr == rates[-1]
        for seed in range(2):
            run = write_run(
                folder / f"wide-lr_{lr:g}/{seed}",
                model_of("wide"),
                {"novels": 2 + 0.1 * (n - 1) ** 2},
                cell=f"wide-lr_{lr:g}",
                seed=seed,
                steps=10 if goes_wrong else STEPS,
                optim={"lr": lr},
            )
            if goes_wrong:
                (run / "went_wrong.txt").write_text("steps 11 to 20 were skipped\n")


def test_learning_rates_at_which_runs_went_wrong_are_named_once(
    tmp_path, capsys, undrawn
):
    write_rates_that_went_wrong(tmp_path, (1e-3, 2e-3, 4e-3, 8e-3))
    out = str(tmp_path / "out")
    assert main(["compare", str(tmp_path), "--best", "lr", "--out", out]) == 0
    line = "'wide' goes without learning rates at which runs went wrong: 0.008\n"
    assert capsys.readouterr().out.count(line) == 1


def test_too_few_learning_rates_are_named_with_those_that_went_wrong(tmp_path, capsys):
    write_rates_that_went_wrong(tmp_path, (1e-3, 2e-3, 4e-3))
    assert main(["compare", str(tmp_path), "--best", "lr"]) == 2
    assert (
        "needs three learning rates with a common seed; 'wide' has 0.001, 0.002 (runs "
        "at 0.004 went wrong); train it at more rates, or leave 'wide' out"
    ) in capsys.readouterr().err


def test_a_sweep_of_which_no_run_has_begun_says_how_to_begin(tmp_path, said):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/wide-seed_0.yaml").touch()
    error = said("compare", tmp_path)
    assert (
        "has begun, of 1 planned; dualpath sweep with the same options and --yes"
        in error
    )


def test_a_run_that_finishes_while_it_is_read_has_all_its_rows(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run", model_of("wide"), {"novels": 2.0})
    names = ("metrics.csv", "validation.csv")
    ended = {name: (folder / name).read_text() for name in names}
    for name in names:
        (folder / name).write_text(ended[name].rpartition("40,")[0])
    read = runs.read_table

    def read_and_end(path: Path) -> list[TableRow]:
        rows = read(path)
        for name in names:  # fit ends after the first table was read
            (folder / name).write_text(ended[name])
        return rows

    monkeypatch.setattr(runs, "read_table", read_and_end)
    assert isinstance(read_trained_run(folder), str)
    found = read_trained_run(folder)
    assert isinstance(found, TrainedRun)
    assert found.lost == ()


def test_baselines_are_given_by_commas_or_by_repetition_and_means_tested_alone(
    swept, tmp_path, undrawn
):
    def tests_of(*words: str) -> list[dict[str, str]]:
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        assert main(["compare", str(swept), *words, "--out", str(out)]) == 0
        return read_csv(out / "tests.csv")

    both = tests_of("--baseline", "wide,loop_k2")
    assert both == tests_of("--baseline", "wide", "--baseline", "loop_k2")
    assert {row["baseline"] for row in both} == {"wide", "loop_k2"}
    one = tests_of("--baseline", "loop_k2")
    assert {row["configuration"] for row in one} == {"wide", "loop_k4", "a50_k2"}
    assert [row["measure"] for row in tests_of("--aggregate-only")] == ["aggregate"] * 3


def test_a_configuration_of_two_sweeps_is_refused_and_the_way_out_leads_on(
    tmp_path, capsys, undrawn
):
    one = write_sweep(tmp_path / "one", ["wide", "a50_k2"])
    other = write_sweep(tmp_path / "other", ["wide", "loop_k2"])
    words = ["compare", str(one), "--out", str(tmp_path / "out")]
    assert main([*words, str(other)]) == 2
    assert (
        f"{one}/runs/wide/seed_0 and {other}/runs/wide/seed_0 are the same "
        "configuration with seed 0; leave one of them out (a folder in a sweep's runs/ "
        "is a RUN, too)"
    ) in capsys.readouterr().err
    assert main([*words, str(other / "runs/loop_k2")]) == 0


def test_pairs_over_several_sweeps_of_rates_are_tested_in_their_order(
    tmp_path, capsys, undrawn
):
    arms = {"a50_k1": (2, 0.0), "expanded_k2": (3, 0.1), "a50_k4": (4, 0.1)}
    rng = np.random.default_rng(0)
    for cell, (loops, effect) in arms.items():
        model = model_of("dual", loops)
        for seed in range(2):
            for n, lr in enumerate((0.0245, 0.049, 0.098)):
                score = 2 + effect + 0.1 * (n - 0.9) ** 2 + rng.normal(0, 1e-3)
                path = tmp_path / cell / f"runs/{cell}-lr_{lr}/seed_{seed}"
                write_run(
                    path,
                    model,
                    {"novels": score},
                    cell=f"{cell}-lr_{lr}",
                    seed=seed,
                    optim={"lr": lr},
                )
    out = tmp_path / "out"
    words = [
        "compare",
        *(str(tmp_path / cell) for cell in arms),
        "--best",
        "lr",
        "--out",
        str(out),
        "--margin",
        "0.014",
    ]
    assert (
        main([*words, "--pairs", "a50_k1:expanded_k2,expanded_k2:a50_k4,a50_k1:a50_k4"])
        == 0
    )
    assert (
        "bits per byte, pairs in a fixed order, 2 tests in all"
        in capsys.readouterr().out
    )
    printed = (out / "tests.md").read_text(encoding="utf-8").splitlines()
    head, untested = (printed[n].split(" | ") for n in (2, 6))
    assert "Holm" not in head
    assert not untested[head.index("p")]
    rows = read_csv(out / "tests.csv")
    assert [row["order"] for row in rows] == ["1", "2", "3"]
    assert [row["verdict"] for row in rows] == ["better", SAME, AFTER]
    # also of the pair that is not tested
    for ends in (("low", "high"), ("low_90", "high_90")):
        assert all(float(row[ends[0]]) < float(row[ends[1]]) for row in rows)
    assert [bool(row["p"]) for row in rows] == [True, True, False]
    assert all(0 < float(row["detectable"]) < 0.01 for row in rows)
    for pairs in ("a50_k1", "a50_k1:a50_k1", "a50_k1:expanded"):
        assert main([*words, "--pairs", pairs]) == 2
        assert pairs.rpartition(":")[2] in capsys.readouterr().err


def test_nothing_stays_of_an_earlier_comparison(swept, tmp_path, undrawn):
    out = tmp_path / "out"
    for run, files in (
        (swept, WRITTEN),
        (swept / "runs/loop_k2/seed_0", WRITTEN - TESTS),
    ):
        assert main(["compare", str(run), "--out", str(out)]) == 0
        assert {path.name for path in out.iterdir()} == {*files, OURS}


def test_a_comparison_needs_no_torch(swept, tmp_path):
    line = f"compare {swept} --out {tmp_path / 'out'}"
    (answer,) = run_without_slow_imports([line], tmp_path, ("torch", "lightning"))
    assert answer["code"] == 0


def test_runs_of_fit_are_compared(trained, tmp_path, undrawn):
    runs = {
        "dual": trained(run={"name": "dual"}),
        "wide": trained(
            run={"name": "wide"}, model={"block": "wide", "d_ffn_wide": 96}
        ),
    }
    out = tmp_path / "out"
    assert main(["compare", *map(str, runs.values()), "--out", str(out)]) == 0
    rows = {row["configuration"]: row for row in read_csv(out / "table.csv")}
    assert list(rows) == ["tiny/wide", "tiny/dual"]
    for name, run in runs.items():
        row, settings = rows[f"tiny/{name}"], settings_from(read_recipe(run))
        last = (run / "validation.csv").read_text().splitlines()[-1].split(",")
        assert (
            float(row["held_out"])
            == float(row["aggregate"])
            == pytest.approx(float(last[-1]))
        )
        assert int(row["parameters"]) == parameters(settings.model)
        assert (row["family"], row["training_tokens"]) == (name, "384")


def test_runs_validated_on_a_data_folder_are_told_by_its_fingerprint(
    fit, texts, tmp_path, capsys
):
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


ROW = {"suite": "forced", "intervention": "K=1", "source": "gsm8k", "loss": 3.0}
EXCESS = {
    "token_class": "arithmetic",
    "upos": "NUM,SYM",
    "path": "wide",
    "source": "gsm8k",
    "per_forced": 1.25,
}


def made(
    folder: Path, seeds: int, cells: Sequence[str] = ("wide", "a50_k2")
) -> tuple[Path, list[Group]]:
    sweep = write_sweep(folder / "sweep", cells, range(seeds))
    return sweep, groups_of(
        [read_trained_run(path) for path in find_folders([str(sweep)])]
    )


def facts_of(run: Path, step: int) -> dict[str, Any]:
    """The facts of a report on the run's own model that say which model it was of."""
    model = yaml.safe_load((run / "recipe.yaml").read_text())["model"]
    return {"model": model, "step": step, "sha256": "c0ffee"}


def write_reports(sweep: Path, excesses: list[float]) -> Path:
    """Reports by `dualpath ablate` for wide's runs; returns the last one."""
    for seed, value in enumerate(excesses):
        run = sweep / f"runs/wide/seed_{seed}"
        folder = run / f"ablations/step-{STEPS:08d}"
        folder.mkdir(parents=True)
        facts = facts_of(run, STEPS)
        report = {
            "model": facts.pop("model"),
            "checkpoint": facts,
            "val_seed": 0,
            "sources": {"gsm8k": {"sha256": "7e47", "tokens": 2048}},
            "tagger": {"pipeline": "en", "spacy": "3.8"},
            "rows": [ROW | {"difference": value}],
            "excess": [EXCESS | {"excess": value}],
        }
        (folder / "ablations.json").write_text(json.dumps(report))
        (folder.parent / "step-00000005").mkdir()  # an older one, which does not count
        (folder.parent / "step-00000005/ablations.json").write_text("{}")
    return folder / "ablations.json"


def test_the_ablations_of_a_configuration_are_means_over_its_runs(tmp_path):
    sweep, groups = made(tmp_path, 6)
    write_reports(sweep, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    (row,), (of_class,), left_out = ablations_of(groups)
    assert left_out == []
    assert (row["configuration"], row["intervention"], row["runs"]) == (
        "wide",
        "K=1",
        6,
    )
    assert row["difference"] == of_class["mean"] == pytest.approx(0.35)
    assert row["difference_sd"] == pytest.approx(0.035**0.5)
    assert (of_class["forced"], of_class["above"]) == ("arithmetic wide", 6)
    assert of_class["p"] == of_class["p_holm"] == 2 / 64
    table = table_of_classes([of_class])
    headings = [column.heading for column in table.columns]
    cells = dict(zip(headings, table.cells()[0], strict=True))
    assert (cells["above 0"].number, cells["above 0"].text) == (6, "6 of 6")
    assert (cells["mean"].text, cells["least"].text, cells["most"].text) == (
        "+0.3500",
        "+0.1000",
        "+0.6000",
    )


def test_configurations_of_one_name_in_two_groups_have_their_own_ablations(tmp_path):
    sweep, (first,) = made(tmp_path, 2)
    write_reports(sweep, [0.1, 0.2])
    longer = replace(first, name="budget 600K, 9 tokens")
    comparison = Comparison.with_studies([first, longer], [], [], None)
    shown = [(its.title, len(its.rows)) for its in comparison.tables_of_studies()]
    of_classes = "excess over random tokens, over runs"
    assert shown == [(f"{its.name}: {of_classes}", 1) for its in (first, longer)]


@pytest.mark.parametrize(
    "damaged",
    [
        '{"rows": [',
        '{"rows": []}',
        '{"rows": [{"loss": 1}]}',
        "[]",
        '{"rows": [{"loss": null}], "excess": []}',
    ],
)
def test_a_damaged_report_is_left_out_with_a_line(damaged, tmp_path):
    sweep, groups = made(tmp_path, 3)
    report = write_reports(sweep, [0.1, 0.2, 0.3])
    report.write_text(damaged)
    (row,), _, (line,) = ablations_of(groups)
    assert row["runs"] == 2
    assert str(report) in line


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"model": {"rope_base": 10.0}},
            "model.rope_base=10.0, the run's has 500000.0",
        ),
        ({"model": {"max_seq_len": 8}}, "model.max_seq_len=8, the run's has 256"),
        ({"checkpoint": {"step": 30}}, "of step 30, the run ended at step 40"),
        ({"sources": {"gsm8k": {"sha256": "07e4"}}}, "whose 'gsm8k' is another text"),
        ({"sources": {"gsm8k": {"tokens": 512}}}, "whose 'gsm8k' is another text"),
        ({"sources": {"gsm8k": {"field": "content"}}}, "whose 'gsm8k' is another text"),
        ({"val_seed": 3}, "whose 'gsm8k' is another text"),
    ],
)
def test_an_ablation_of_something_else_is_in_no_mean(change, said, tmp_path):
    sweep, groups = made(tmp_path, 3)
    report = write_reports(sweep, [0.1, 0.2, 2.6])
    report.write_text(json.dumps(merge(json.loads(report.read_text()), change)))
    (row,), (of_class,), (line,) = ablations_of(groups)
    assert (row["runs"], of_class["runs"]) == (2, 2)
    assert row["difference"] == of_class["mean"] == pytest.approx(0.15)
    assert str(report.parents[2]) in line
    assert said in line


def test_a_report_of_weights_that_were_trained_anew_is_left_out(tmp_path):
    sweep, groups = made(tmp_path, 3)
    write_reports(sweep, [0.1, 0.2, 0.3])
    score = write_scores(sweep, 2, 1.5)
    checkpoint = sweep / f"runs/wide/seed_2/checkpoints/step-{STEPS:08d}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text("{}")
    (checkpoint / "w.safetensors").write_bytes(b"trained anew")
    write_manifest(checkpoint, describe(checkpoint, files_of(checkpoint)), {})
    (row,), _, (line,) = ablations_of(groups)
    assert row["runs"] == 2
    assert f"of other weights than those in {checkpoint}" in line
    assert evaluations_of(groups) == (
        [],
        [f"left out: {score}, of other weights than those in {checkpoint}"],
    )


def test_tags_of_different_pipelines_are_not_joined(tmp_path):
    sweep, groups = made(tmp_path, 3)
    report = write_reports(sweep, [0.1, 0.2, 0.3])
    other = json.loads(report.read_text())
    other["tagger"]["spacy"] = "3.7"
    report.write_text(json.dumps(other))
    (row,), classes, (line,) = ablations_of(groups)
    assert row["runs"] == 3
    assert classes == []
    assert "the classes of tokens of 'wide'" in line


def test_ablations_in_different_precisions_are_not_joined(tmp_path):
    sweep, groups = made(tmp_path, 3)
    write_reports(sweep, [0.1, 0.2, 0.3])
    for seed, precision in enumerate(("32-true", "bf16-mixed", "32-true")):
        (path,) = sweep.glob(f"runs/wide/seed_{seed}/ablations/step-{STEPS:08d}/*.json")
        report = json.loads(path.read_text()) | {"precision": precision}
        path.write_text(json.dumps(report))
    assert ablations_of(groups) == (
        [],
        [],
        [
            "left out: the ablations of 'wide', as its reports are in different "
            "precisions: 32-true, bf16-mixed"
        ],
    )


NO_NUMBERS: tuple[Any, ...] = (float("nan"), float("inf"), 10**400, "0.1", [0.1])


def test_a_report_whose_numbers_are_none_is_left_out_with_a_line(tmp_path):
    sweep, groups = made(tmp_path, 3)
    report = write_reports(sweep, [0.1, 0.2, 0.3])
    whole = json.loads(report.read_text())
    for part, column in (
        ("rows", "loss"),
        ("rows", "difference"),
        ("excess", "excess"),
        ("excess", "per_forced"),
    ):
        for value in NO_NUMBERS:
            rows = [whole[part][0] | {column: value}]
            report.write_text(json.dumps(whole | {part: rows}))
            (row,), _, (line,) = ablations_of(groups)
            assert row["runs"] == 2
            assert str(report) in line


def test_the_tests_over_runs_are_corrected_for_their_number():
    further = EXCESS | {"token_class": "punctuation", "upos": "PUNCT"}
    runs = [
        [
            *(EXCESS | {"source": name, "excess": 0.1 + n} for name in "abc"),
            further | {"excess": 1},
        ]
        for n in range(6)
    ]
    found = [one["p_holm"] for one in excess_over_runs(runs)]
    assert found == [3 * 2 / 64] * 3 + [2 / 64], (
        "a further class is a family of its own"
    )
    # Classes of one name and other tags are other classes, and not the paper's.
    narrow = EXCESS | {"upos": "NUM", "excess": 0.1}
    found = excess_over_runs([[EXCESS | {"excess": 0.1 + n}, narrow] for n in range(6)])
    assert [one["p_holm"] for one in found] == [2 / 64, 2 / 64]
    assert excess_over_runs([[EXCESS | {"excess": 0.1}], [narrow]]) == []
    # A class that not all runs have is left out.
    assert excess_over_runs([[EXCESS | {"excess": 0.1}], []]) == []
    assert (
        excess_over_runs([[EXCESS | {"excess": 0.1}], [EXCESS | {"excess": None}]])
        == []
    )


def write_routing(sweep: Path, seed: int, share: float, cell: str = "a50_k2") -> Path:
    """A report by `dualpath routing` for a run of four layers, on two sources."""
    run = sweep / f"runs/{cell}/seed_{seed}"
    path = run / f"routing/step-{STEPS:08d}/summary.json"
    facts = facts_of(run, STEPS)
    layers = [0, 1, 2, 3]
    sources = {
        name: {
            "sha256": "7e47",
            "tokens": 2048,
            "layers": {
                "deep_share": {"mean": [share + more + n / 10 for n in layers]},
                "cosine": {"mean": [-share] * 4},
                "gate_deep": {"mean": [None] * 4},
            },
        }
        for name, more in (("gsm8k", 0.0), ("novels", 0.02))
    }
    report = {
        "model": facts.pop("model"),
        "checkpoint": facts,
        "precision": "32-true",
        "val_seed": 0,
        "layers": layers,
        "sources": sources,
    }
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(report))
    older = path.parents[1] / "step-00000005"  # which does not count
    older.mkdir()
    (older / "summary.json").write_text("{}")
    return path


def test_routing_is_a_mean_over_runs_in_each_layer_of_each_source(tmp_path):
    sweep, groups = made(tmp_path, 3, ("wide", "a50_k2", "a50_k4"))
    for seed, share in enumerate((0.1, 0.2, 0.6)):
        write_routing(sweep, seed, share)
    write_routing(sweep, 1, 0.4, "a50_k4")
    rows, left_out = routing_of(groups)
    assert left_out == []
    places = [(row["source"], row["layer"]) for row in rows]
    one = [(source, layer) for source in ("gsm8k", "novels") for layer in range(4)]
    assert places == one * 2
    assert {row["repetition"] for row in rows} == {None}

    several, single = rows[6], rows[14]
    assert (several["configuration"], several["runs"]) == ("a50_k2", 3)
    assert several["deep_share"] == pytest.approx(0.3 + 0.02 + 0.2)
    assert several["deep_share_sd"] == pytest.approx(0.07**0.5)
    assert several["cosine"] == pytest.approx(-0.3)
    assert several["cosine_sd"] == pytest.approx(0.07**0.5)
    assert (single["configuration"], single["runs"]) == ("a50_k4", 1)
    assert single["deep_share"] == pytest.approx(0.4 + 0.02 + 0.2)
    assert single["deep_share_sd"] is None


def test_layers_that_repeat_have_a_row_a_repetition(tmp_path):
    sweep, groups = made(tmp_path, 1)
    path = write_routing(sweep, 0, 0.1)
    places = {"layers": [1, 2, 1, 2], "repetitions": [1, 1, 2, 2]}
    path.write_text(json.dumps(json.loads(path.read_text()) | places))
    rows, _ = routing_of(groups)
    assert [(row["layer"], row["repetition"]) for row in rows[:4]] == [
        (1, 1),
        (2, 1),
        (1, 2),
        (2, 2),
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": {"rope_base": 10.0}}, "model.rope_base=10.0, the run's has 500000"),
        ({"checkpoint": {"step": 30}}, "of step 30, the run ended at step 40"),
        ({"sources": {"gsm8k": {"sha256": "07e4"}}}, "the routing of"),
        ({"sources": {"gsm8k": {"tokens": 512}}}, "whose 'gsm8k' is another text"),
        ({"layers": ["a", "b", "c", "d"]}, "layer is 'a', not a finite number"),
        ({"layers": [0, 1]}, "means of 'gsm8k' are not of its layers"),
        ({"repetitions": [1]}, "means of 'gsm8k' are not of its layers"),
        ({"repetitions": None}, "a value in it has the wrong type"),
    ],
)
def test_a_routing_of_something_else_or_damaged_is_in_no_mean(change, said, tmp_path):
    sweep, groups = made(tmp_path, 3)
    for seed, share in enumerate((0.1, 0.2, 0.9)):
        path = write_routing(sweep, seed, share)
    path.write_text(json.dumps(merge(json.loads(path.read_text()), change)))
    rows, (line,) = routing_of(groups)
    assert {row["runs"] for row in rows} == {2}
    assert rows[0]["deep_share"] == pytest.approx(0.15)
    assert str(path.parents[2]) in line
    assert said in line


@pytest.mark.parametrize("name", ["deep_share", "cosine"])
def test_a_routing_whose_numbers_are_none_is_left_out_with_a_line(name, tmp_path):
    sweep, groups = made(tmp_path, 2)
    write_routing(sweep, 0, 0.1)
    path = write_routing(sweep, 1, 0.2)
    whole = json.loads(path.read_text())
    for value in (*NO_NUMBERS, None):
        layers = {"layers": {name: {"mean": [0.1, 0.2, 0.3, value]}}}
        path.write_text(json.dumps(merge(whole, {"sources": {"novels": layers}})))
        rows, (line,) = routing_of(groups)
        assert {row["runs"] for row in rows} == {1}
        assert f"{path}, {name} is" in line


def test_routings_of_two_models_are_of_the_same_texts(tmp_path):
    """They are lines of one figure."""
    sweep, groups = made(tmp_path, 2, ("wide", "a50_k2", "a50_k4"))
    for seed in range(2):
        write_routing(sweep, seed, 0.1)
        path = write_routing(sweep, seed, 0.2, "a50_k4")
    shorter = {"sources": {"novels": {"tokens": 512}}}
    path.write_text(json.dumps(merge(json.loads(path.read_text()), shorter)))
    rows, (line,) = routing_of(groups)
    assert [row["runs"] for row in rows] == [2] * 8 + [1] * 8
    first = sweep / "runs/a50_k2/seed_0"
    assert line == (
        f"left out: the routing of {path.parents[2]}, whose 'novels' is another text, "
        f"or part of it, than that of {first}"
    )


def test_routings_in_different_precisions_are_not_joined(tmp_path):
    sweep, groups = made(tmp_path, 2)
    write_routing(sweep, 0, 0.1)
    path = write_routing(sweep, 1, 0.2)
    other = json.loads(path.read_text()) | {"precision": "bf16-mixed"}
    path.write_text(json.dumps(other))
    assert routing_of(groups) == (
        [],
        [
            "left out: the routings of 'a50_k2', as its reports are in different "
            "precisions: 32-true, bf16-mixed"
        ],
    )


def test_what_routing_wrote_of_two_runs_is_a_table_and_a_figure(
    trained, tmp_path, monkeypatch, undrawn
):
    monkeypatch.setattr("dualpath_cli.study.routing.report.save", lambda *_: [])
    runs = [trained(), trained(run={"name": "other"}, seed_everything=2)]
    for run in runs:
        words = ["--ckpt_path", str(run), "--tagger", "none", "--no-costs"]
        assert main(["routing", *words]) == 0
    out = tmp_path / "out"
    assert main(["compare", *map(str, runs), "--out", str(out)]) == 0

    paths = [run / "routing/step-00000006/summary.json" for run in runs]
    sources = [json.loads(path.read_text())["sources"]["held_out"] for path in paths]
    rows = read_csv(out / "routing.csv")
    assert [(row["source"], row["layer"], row["runs"]) for row in rows] == [
        ("held_out", "0", "2"),
        ("held_out", "1", "2"),
    ]
    for layer, row in enumerate(rows):
        for name in ("deep_share", "cosine"):
            values = [source["layers"][name]["mean"][layer] for source in sources]
            assert float(row[name]) == pytest.approx(np.mean(values))
            spread = np.std(values, ddof=1)
            assert float(row[f"{name}_sd"]) == pytest.approx(spread)
    assert (out / "routing.png").is_file()
    assert "means over runs, sources" in (out / "index.html").read_text()


SCORED: dict[str, Any] = {
    "model": {
        "name": "m",
        "window": 64,
        "batch_size": 2,
        "precision": "float32",
        "intervention": "learned",
    },
    "n-samples": {"piqa": {"effective": 9}},
}


def write_scores(
    sweep: Path, seed: int, bpb: float, step: int = STEPS, **model: Any
) -> Path:
    """A report by `dualpath evaluate` for one of wide's runs."""
    run = sweep / f"runs/wide/seed_{seed}"
    path = run / f"evaluations/m-step-{step:08d}/results.json"
    model = merge(facts_of(run, step), model)
    scores = {
        "acc_per_char,none": 0.5,
        "acc_per_char_stderr,none": "N/A",
        "bpb,none": bpb,
        "bpb_stderr,none": 0.1,
    }
    path.parent.mkdir(parents=True)
    path.write_text(
        json.dumps(merge(SCORED, {"results": {"piqa": scores}, "model": model}))
    )
    return path


def test_the_scores_of_a_configuration_stand_as_mean_and_standard_error(tmp_path):
    sweep, groups = made(tmp_path, 5)
    for seed, bpb in enumerate((1.0, 1.5, 2.0)):
        write_scores(sweep, seed, bpb)
    write_scores(sweep, 3, 9.0, window=32)
    write_scores(sweep, 4, 8.0, precision="bfloat16")
    rows, left_out = evaluations_of(groups)
    assert left_out == []
    assert [row["score"] for row in rows[::2]] == [0.5] * 5
    assert [row["score"] for row in rows[1::2]] == [1.0, 1.5, 2.0, 9.0, 8.0]
    cells = [[cell.text for cell in row] for row in table_of_scores(rows).cells()]
    assert cells == [
        ["piqa", "accuracy", "9", "64", "float32", "0.5000 ± 0.0000"],
        ["piqa", "bits per byte", "9", "64", "float32", "1.5000 ± 0.2887"],
        # after less context, so no other seed of the same score
        ["piqa", "accuracy", "9", "32", "float32", "0.5000"],
        ["piqa", "bits per byte", "9", "32", "float32", "9.0000"],
        # in another precision
        ["piqa", "accuracy", "9", "64", "bfloat16", "0.5000"],
        ["piqa", "bits per byte", "9", "64", "bfloat16", "8.0000"],
    ]


def test_means_over_other_numbers_of_documents_are_other_scores(tmp_path):
    sweep, groups = made(tmp_path, 2)
    tasks = SUITES["commonsense"]
    for seed, documents in enumerate((9, 5)):
        path = write_scores(sweep, seed, 1.0)
        report = json.loads(path.read_text())
        report["results"] = dict.fromkeys(tasks, report["results"]["piqa"])
        report["n-samples"] = {task: {"effective": documents} for task in tasks}
        path.write_text(json.dumps(report))
    rows, _ = evaluations_of(groups)
    cells = [[cell.text for cell in row] for row in table_of_scores(rows).cells()]
    means = [cell for cell in cells if cell[0] == "Commonsense BPB"]
    assert [cell[2] for cell in means] == ["54", "30"]


def test_scores_of_other_steps_or_under_an_override_are_not_joined(tmp_path):
    sweep, groups = made(tmp_path, 3)
    write_scores(sweep, 0, 1.0)
    write_scores(sweep, 1, 1.5, step=STEPS - 10)
    forced = write_scores(sweep, 2, 2.0, intervention="K=1")
    rows, left_out = evaluations_of(groups)
    assert {row["seed"] for row in rows} == {0}
    assert left_out == [f"left out: {forced}, scored under K=1"]


def test_scores_of_another_model_are_not_joined(tmp_path):
    sweep, groups = made(tmp_path, 2)
    write_scores(sweep, 0, 1.0)
    other = write_scores(sweep, 1, 1.5, model={"norm_eps": 0.1})
    rows, left_out = evaluations_of(groups)
    assert {row["seed"] for row in rows} == {0}
    assert left_out == [
        f"left out: {other}, of a model with model.norm_eps=0.1, the run's has 1e-05"
    ]


def test_scores_that_are_no_numbers_are_left_out_with_a_line(tmp_path):
    sweep, groups = made(tmp_path, 3)
    for seed in range(3):
        path = write_scores(sweep, seed, 1.0)
    whole = json.loads(path.read_text())
    damages: list[dict[str, Any]] = [
        *({"results": {"piqa": {"bpb,none": value}}} for value in (*NO_NUMBERS, None)),
        *(
            {"n-samples": {"piqa": {"effective": value}}}
            for value in (*NO_NUMBERS, None)
        ),
        {"results": []},
        {"model": {"window": "many"}},
    ]
    for damage in damages:
        path.write_text(json.dumps(merge(whole, damage)))
        rows, (line,) = evaluations_of(groups)
        assert str(path) in line
        assert {row["seed"] for row in rows} == {0, 1}
        assert table_of_scores(rows).cells()
