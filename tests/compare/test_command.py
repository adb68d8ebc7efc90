"""`dualpath compare` as a user sees it: what is printed and written."""

from pathlib import Path

import pytest

from dualpath_cli.cli.main import main
from dualpath_cli.flops import paper
from dualpath_cli.flops.count import parameters
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.run.run_folder import read_recipe
from dualpath_cli.system import OURS, read_csv
from tests.cli.test_cli import run_without_slow_imports
from tests.compare.run_folders import model_of, write_run, write_sweep
from tests.tiny_run import prepare

CELLS = ("wide", "loop_k2", "loop_k4", "a50_k2")
WRITTEN = {
    "table.csv", "table.md", "table.tex", "tests.csv", "tests.md", "tests.tex", "runs.csv",
    "index.html",
}  # fmt: skip


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are drawn where they are looked at."""
    monkeypatch.setattr("dualpath_cli.compare.figures.draw", lambda groups, rows: {})


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Path:
    """A sweep, only to be read."""
    return write_sweep(tmp_path_factory.mktemp("made") / "sweep", CELLS)


def test_a_sweep_is_compared_in_a_folder_of_its_own(tmp_path, capsys, undrawn):
    sweep = write_sweep(tmp_path / "sweep", CELLS, effects={"loop_k4": 0.1, "a50_k2": -0.1})
    write_run(sweep / "runs/a50_k4/seed_0", model_of("dual", 4), {"novels": 2, "peps": 2},
              cell="a50_k4", steps=10)  # fmt: skip
    assert main(["compare", str(sweep)]) == 0
    out = capsys.readouterr().out
    left_out = f"{sweep}/runs/a50_k4/seed_0: left out, unfinished at step 10 of 40"
    assert f"{left_out}\n" in out
    (sweep / "runs/a50_k4/seed_0/ended_early.txt").write_text("a callback at step 12 of 40")
    assert main(["compare", str(sweep)]) == 0
    assert f"{left_out}, ended by a callback at step 12 of 40\n" in capsys.readouterr().out
    assert out.index("2.2") < out.index("less those of wide, 9 tests in all")
    written = {path.name for path in (sweep / "comparison").iterdir()}
    assert written == {*WRITTEN, OURS}
    assert set(out.splitlines()[-len(WRITTEN):]) == {
        str(sweep / "comparison" / name) for name in WRITTEN
    }  # fmt: skip
    rows = {row["configuration"]: row for row in read_csv(sweep / "comparison/table.csv")}
    assert list(rows) == list(CELLS)
    tests = [
        row for row in read_csv(sweep / "comparison/tests.csv") if row["measure"] == "aggregate"
    ]
    verdicts = {row["configuration"]: row["verdict"] for row in tests}
    assert (verdicts["loop_k4"], verdicts["a50_k2"]) == ("worse", "better")
    runs = read_csv(sweep / "comparison/runs.csv")
    for row in tests:
        mean = {}
        for name in (row["configuration"], "wide"):
            its = [r for r in runs if (r["configuration"], r["set"]) == (name, "aggregate")]
            scores = [float(r["bits_per_byte"]) for r in its]
            assert float(rows[name]["aggregate"]) == pytest.approx(sum(scores) / 3)
            mean[name] = sum(scores) / 3
        assert float(row["difference"]) == pytest.approx(mean[row["configuration"]] - mean["wide"])


def test_baselines_are_given_by_commas_or_by_repetition_and_means_tested_alone(
    swept, tmp_path, capsys, undrawn
):
    for n, words in enumerate([["wide,loop_k2"], ["wide", "loop_k2"], ["loop_k2"]]):
        given = [word for name in words for word in ("--baseline", name)]
        assert main(["compare", str(swept), *given, "--out", str(tmp_path / str(n))]) == 0
        assert "less those of loop_k2" in capsys.readouterr().out
    words = ["compare", str(swept), "--aggregate-only", "--out", str(tmp_path / "means")]
    assert main(words) == 0
    assert "less those of wide, 3 tests in all" in capsys.readouterr().out
    means = read_csv(tmp_path / "means" / "tests.csv")
    assert [row["measure"] for row in means] == ["aggregate"] * 3
    both, repeated, one = (read_csv(tmp_path / str(n) / "tests.csv") for n in range(3))
    assert both == repeated
    assert {row["baseline"] for row in both} == {"wide", "loop_k2"}
    assert {row["configuration"] for row in one} == {"wide", "loop_k4", "a50_k2"}


def test_the_papers_table_is_the_papers_and_nothing_stays_of_an_earlier_comparison(
    swept, tmp_path, monkeypatch, capsys, undrawn
):
    monkeypatch.chdir(tmp_path)
    for words in ([str(swept), "--out", "comparison"], ["--paper"]):
        assert main(["compare", *words]) == 0
    names = {path.name for path in Path("comparison").iterdir()}
    assert names == {"table.csv", "table.md", "table.tex", "index.html", OURS}
    rows = {row["configuration"]: row for row in read_csv(Path("comparison/table.csv"))}
    assert len(rows) == 26
    for row in paper.configurations():
        ours, results = rows[row.recipe], paper.results(row.budget_name)
        assert round(float(ours["parameters"]) / 1e6) == row.params_millions
        assert float(ours["linear_flops"]) == pytest.approx(row.budget, rel=0.05)
        for column, metric in {"C4": "C4", "WikiText-103": "WikiText-103",
                               "commonsense": "Commonsense BPB",
                               "math": "Easy math avg BPB"}.items():  # fmt: skip
            assert float(ours[column]) == results[metric][row.label]
    # As the paper's text has them.
    for recipe, printed in {"f80m_a50_k4": 0.8693, "f80m_wide": 0.8753, "f80m_loop_k2": 0.8880,
                            "f160m_a25_k4": 0.8478, "f160m_wide": 0.8530}.items():  # fmt: skip
        assert float(rows[recipe]["aggregate"]) == pytest.approx(printed, abs=1e-4)
    assert "single runs, no error known" in " ".join(capsys.readouterr().out.split())


def test_a_comparison_needs_no_torch(swept, tmp_path):
    line = f"compare {swept} --out {tmp_path / 'out'}"
    (answer,) = run_without_slow_imports([line], tmp_path, ("torch", "lightning"))
    assert answer["code"] == 0


def test_runs_of_fit_are_compared(trained, tmp_path, undrawn):
    runs = {
        "dual": trained(run={"name": "dual"}),
        "wide": trained(run={"name": "wide"}, model={"block": "wide", "d_ffn_wide": 96}),
    }
    out = tmp_path / "out"
    assert main(["compare", *map(str, runs.values()), "--out", str(out)]) == 0
    rows = {row["configuration"]: row for row in read_csv(out / "table.csv")}
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
