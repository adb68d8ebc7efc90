"""`dualpath compare --fit` as a user sees it: tables, files, notes, and refusals."""

import re
import shlex
import tarfile
from pathlib import Path

import pytest

from dualpath_cli.cli.main import main
from dualpath_cli.compare.configurations import group_runs
from dualpath_cli.compare.finished import read_finished_runs
from dualpath_cli.compare.fits.law import NAMES
from dualpath_cli.compare.fits.report import ScalingLaws
from dualpath_cli.compare.sweep import command
from dualpath_cli.run.tables import read_csv
from tests.compare.fits.law_runs import write_law_runs
from tests.compare.sweep.conftest import no_data

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Other figures are drawn where they are looked at."""
    monkeypatch.setattr("dualpath_cli.compare.figures.draw", lambda *_: {})


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Path:
    """PureWide, repeated cores, and dual models of one budget, only to be read."""
    folder = tmp_path_factory.mktemp("made") / "swept"
    write_law_runs(folder, seeds=2)
    return write_law_runs(folder, ["a50_k2"], budgets=[300_000], steps=[20, 40])


def test_laws_are_printed_and_written_and_families_without_one_are_named(
    swept, tmp_path, capsys
):
    out = tmp_path / "out"
    words = ["compare", str(swept), "--fit", "non_embedding", "--out", str(out)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert (
        "no law for dual α 50: it has 2 configurations, and a fit of 5 values needs 6\n"
    ) in said
    assert "next run of core: " in said
    assert "N: parameters without embedding and head" in " ".join(said.split())

    rows = {row["family"]: row for row in read_csv(out / "fits.csv")}
    assert list(rows) == ["wide", "core"]
    assert rows["wide"]["phi"] == ""
    for name in ("E", "A", "B", "a", "b", "phi"):
        low, value, high = (
            float(rows["core"][key]) for key in (f"{name}_low", name, f"{name}_high")
        )
        assert low < value < high
        assert f"{value:#.4g}" in said
    multipliers = read_csv(out / "multipliers.csv")
    assert {row["variant"] for row in multipliers} == {"core, 4 times"}
    assert (out / "profiles.png").stat().st_size > 10_000
    page = (out / "index.html").read_text()
    assert "compute multipliers over wide" in page
    # Numbers that are several sort by the first.
    assert 'data-order="1.0">1, 4</td>' in page
    assert re.search(r'data-order="(-?0\.\d+)">[+-]0\.\d{4}, 0\.\d{4}</td>', page)
    assert "no law for dual α 50" in page

    # A comparison without laws leaves none of those behind.
    assert main(["compare", str(swept), "--out", str(out)]) == 0
    assert not (out / "fits.csv").exists()
    assert not (out / "profiles.png").exists()


def test_runs_without_any_law_are_refused_in_one_line(tmp_path, capsys):
    folder = write_law_runs(
        tmp_path / "near", ["wide"], budgets=(300_000, 360_000, 450_000), seeds=1
    )
    assert main(["compare", str(folder), "--fit", "all"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "dualpath compare: error: --fit: no law for wide: its training FLOPs span a "
        "factor of 5.3, and a fit needs 8; train a larger or a smaller budget\n"
    )
    assert not (folder / "comparison").exists()


def test_notes_say_what_a_law_lacks(tmp_path):
    """One seed, and one number of loops."""
    folder = write_law_runs(tmp_path / "loops", ["loop_k2"], seeds=1)
    runs, _ = read_finished_runs([str(folder)])
    laws = ScalingLaws.of(group_runs(runs), "non_embedding")
    no_intervals, no_phi = laws.notes
    assert no_intervals == (
        "the law of loop has no intervals: configurations with one seed, 9 of 9"
    )
    assert no_phi == (
        "the law of loop has no phi, and counts each parameter once: its "
        "configurations all apply the same share of them 2 times"
    )
    assert not laws.multipliers
    values, _ = laws.tables()
    assert [row[1] for row in values.rows] == ["E", "A", "a", "B", "b"]


def test_the_page_shows_the_laws_of_made_runs_and_why_the_kept_runs_have_none(
    tmp_path, capsys
):
    page = (DOCS / "compare.md").read_text(encoding="utf-8")
    rows = re.findall(r"^│ (\w+) +│ (\w+) +│ +([\d.]+) │.* to", page, re.MULTILINE)
    shown = {(family, name): float(value) for family, name, value in rows}
    runs, _ = read_finished_runs([str(write_law_runs(tmp_path / "made"))])
    laws = ScalingLaws.of(group_runs(runs), "non_embedding")
    fitted = {
        (fit.family.name, name): value
        for fit in laws.fits
        for name, value in zip(NAMES, fit.values, strict=True)
        if name in fit.family.fitted
    }
    assert shown == pytest.approx(fitted, rel=2e-3)
    assert laws.notes[-1] in page

    with tarfile.open(DOCS / "study" / "fits.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    assert main(["compare", str(tmp_path / "fits"), "--fit", "non_embedding"]) == 2
    assert capsys.readouterr().err.strip() in page


def test_the_commands_of_the_page_train_the_runs_that_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "to_train", no_data)
    monkeypatch.chdir(tmp_path)
    Path("docs").symlink_to(DOCS)
    page = (DOCS / "compare.md").read_text(encoding="utf-8").replace("\\\n", " ")
    sweep = re.search(r"dualpath (sweep --config docs/study/fits.yaml .*)", page)
    assert main(shlex.split(sweep[1], comments=True)) == 0

    patterns = re.search(r"for recipe in (.*); do", page)[1].split()
    trained = [path.stem for pattern in patterns for path in Path().glob(pattern)]
    with tarfile.open(DOCS / "study" / "fits.tar.xz") as archive:
        folders = {name.rpartition("/")[0] for name in archive.getnames()}
    kept = ["-".join(folder.split("/")[2:]) for folder in folders]
    assert sorted(trained) == sorted(kept)
    assert len(kept) == 36
