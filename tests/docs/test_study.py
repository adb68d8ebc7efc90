"""Pages of studies say what their commands print, by statistics that hold where
checked."""

import csv
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from matplotlib.image import imread
from scipy.stats import kstest

from dualpath_cli.cli.main import main

STUDY = Path(__file__).parents[2] / "docs" / "study"
PAGE = STUDY / "first.md"


def script(name: str) -> ModuleType:
    """A script of the studies as a module."""
    spec = importlib.util.spec_from_file_location(f"of_{name}", STUDY / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def study() -> ModuleType:
    return script("first")


def test_every_table_of_the_page_is_what_the_script_makes(study):
    page = PAGE.read_text(encoding="utf-8")
    assert study.written(page) == page
    assert re.findall(r"<!-- (\w+) -->\n\n\| ", page) == ["tests", "rates"]


def test_runs_are_the_seeds_of_the_declaration_once_each(study):
    seeds_of = {
        "rates": range(2),
        "held": range(2),
        "transfer": range(1),
        "table32": range(2, 14),
        "table48": range(2, 6),
    }
    seeds: dict[tuple[str, str, float], list[int]] = {}
    for run in study.RUNS:
        seeds.setdefault((run.part, run.arm, run.rate), []).append(run.seed)
    for (part, arm, _), found in seeds.items():
        declared = seeds_of.get(part, range(2, 10))
        assert found == sorted(set(found))
        assert set(found) <= set(declared)
        whole = "(" not in arm and (part, arm) != ("table48", "loop_k4_total")
        assert not whole or found == list(declared)
    assert sum(map(len, seeds.values())) == 246


def git(*words: str) -> str:
    """Git's output in this checkout; empty where git fails."""
    command = ["git", "-C", str(STUDY), *words]
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", check=False
    ).stdout


whole_clone = pytest.mark.skipif(
    git("rev-parse", "--is-shallow-repository").strip() != "false",
    reason="needs a clone with all commits",
)


@whole_clone
def test_each_run_began_after_its_commit_which_has_todays_declaration(study):
    page = (STUDY / "declared.md").read_text(encoding="utf-8")
    declared = re.sub(r"\*As declared;[^*]+\*\n\n", "", page)
    began: dict[str, list[datetime]] = {}
    for row in study.read("first.csv"):
        began.setdefault(row["commit"], []).append(
            datetime.fromisoformat(row["started"])
        )
    for commit, starts in began.items():
        then = git("show", f"{commit}:docs/study/declared.md")
        assert re.sub(r"\[([\w.]+)\]\(\1\)", r"`\1`", then) == declared
        committed = datetime.fromisoformat(
            git("show", "-s", "--format=%cI", commit).strip()
        )
        assert min(starts) > committed


@whole_clone
@pytest.mark.parametrize(
    ("name", "seeds", "units"),
    [
        ("row", range(14, 28), "bf16"),
        ("row_256", range(4), "NVIDIA H"),
        ("loops", range(28, 38), ""),
    ],
)
def test_runs_are_of_the_preregistered_seeds_and_began_after_the_preregistration(
    name, seeds, units, study
):
    page = (STUDY / f"{name}.md").read_text(encoding="utf-8")
    rows = study.read(f"{name}.csv")
    keys = [tuple(row[key] for key in ("sweep", "arm", "rate", "seed")) for row in rows]
    assert len(keys) == len(set(keys))
    for row in rows:
        pilot = row["sweep"].startswith("pilot_")
        assert int(row["seed"]) in (range(2) if pilot else seeds)
        then = git("show", f"{row['git_commit']}:docs/study/{name}.md")
        assert then
        if name == "loops":
            # Its last arms are added later, each before its first run.
            later = iter(page.splitlines())
            assert all(line in later for line in then.splitlines())
            assert f"`{row['arm']}`" in then
        else:
            assert pilot or then == page  # amended before the first run of the tables
        committed = git("show", "-s", "--format=%cI", row["git_commit"]).strip()
        assert datetime.fromisoformat(row["started"]) > datetime.fromisoformat(
            committed
        )
        assert units in row["cpu"] + row["device"]


def test_a_folder_that_lacks_kept_runs_replaces_no_archive(tmp_path):
    row = script("row")
    study = row.STUDIES["row_256"]
    archive = tmp_path / "kept.tar.xz"
    archive.write_bytes(study.archive.read_bytes())
    copy = study._replace(archive=archive, table=tmp_path / "kept.csv")
    copy.table.write_bytes(study.table.read_bytes())
    with pytest.raises(SystemExit, match=r"lacks 38 of those in .*; restore them"):
        row.keep(copy, tmp_path / "runs")
    assert archive.read_bytes() == study.archive.read_bytes()


DUAL = "--budget 150.2K --alpha 50 --k 4"


@pytest.mark.parametrize(
    ("arm", "words"),
    {
        "base": DUAL,
        "untied": f"{DUAL} --untied-steps",
        "first keys": f"{DUAL} --step-kv first",
        "attention only": f"{DUAL} --no-deep-ffn",
        "core": "--budget 150K --block wide --core 1-2 --core-loops 2",
    }.items(),
)
def test_widths_and_flops_of_the_last_arms_are_what_flops_solves(arm, words, capsys):
    shape = "--layers 4 --dim 32 --heads 2 --vocab 4096 --seq-len 256"
    options = f"{words} {shape} --width-multiple 2 --format json"
    assert main(["flops", *options.split()]) == 0
    solved = json.loads(capsys.readouterr().out)

    page = (STUDY / "loops.md").read_text(encoding="utf-8")
    row = next(
        line
        for line in page.splitlines()
        if line.startswith(f"| {arm} | `") and line.count("|") == 6
    )
    _, _, widths, parameters, ratio = [cell.strip() for cell in row.split("|")[1:-1]]
    assert widths == f"{solved.get('d_ffn') or 'none'}, {solved['d_ffn_wide']}"
    assert parameters == f"{solved['params'] / 1e6:.2f}M"
    assert ratio == f"{solved['budget_ratio']:.4f}"


@pytest.mark.parametrize(
    ("name", "section"),
    [("row", 0), pytest.param("row_256", 1, marks=pytest.mark.slow)],
)
def test_the_page_of_the_row_says_what_its_commands_print(
    name, section, tmp_path, capsys
):
    page, row = (STUDY.parent / "study.md").read_text(encoding="utf-8"), script("row")
    study, lines = row.STUDIES[name], re.split("\n## ", page)[section].splitlines()
    row.restore(study, tmp_path)
    begin = f"dualpath compare runs/{name}/"
    (line,) = [
        line
        for line in page.splitlines()
        if line.startswith(begin) and "--best" in line
    ]
    assert main(shlex.split(line.replace(f"runs/{name}", str(tmp_path)))[1:]) == 0
    tables = (tmp_path / "first/tests.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in tables if line.startswith("| a50")] == [
        line for line in lines if line.startswith("| a50")
    ]
    for found in csv.DictReader((tmp_path / "first/table.csv").open(encoding="utf-8")):
        shown = next(
            line for line in lines if f"(`{found['configuration']}`) |" in line
        )
        assert f"| {float(found['best_rate']):.2g} |" in shown
        spread = (
            f"{float(found['aggregate']):.4f} ± "
            f"{float(found['aggregate_standard_error']):.4f}"
        )
        assert spread in shown.replace("*", "")
    assert all(
        imread(tmp_path / f"first/{n}.png").std() > 0.01 for n in ("quality", "curves")
    )
    row.bends(study, "a50_k1:expanded_k2")
    share = re.search(r"share: ([\d.]+)", capsys.readouterr().out)[1]
    text = " ".join(lines)
    percent = {"row": f"{float(share):.0%}", "row_256": f"{float(share):.1%}"}[name]
    percent = percent.replace("%", " %")
    shown = f"{percent} of 10,000 simulated designs ({float(share):.3f})"
    assert shown in text.replace("In ", "")
    row.seeds(study, "a50_k1:expanded_k2")
    level = {"row": "90", "row_256": "95"}[name]
    shown = capsys.readouterr().out.replace("-", "−")
    interval = re.search(rf"{level} %: \S+ \((.*)\)", shown)[1]
    assert f"{level} % interval is {interval}" in text


ARMS_OF_LOOPS = {
    "base": ("base", "a50_k4-combination_final"),
    "sequence": ("sequence", "expanded_k2"),
    "parallel": ("parallel", "a50_k1"),
    "the paper": ("paper", "a50_k4"),
    "PureLoop": ("pure_loop", "loop_k4"),
    "PureWide": ("pure_wide", "wide"),
}
"""The sweep, and the name in tables, of each arm on the page of the study on loops."""


def by_configuration(file: Path) -> dict[str, dict[str, str]]:
    with file.open(encoding="utf-8") as rows:
        return {row["configuration"]: row for row in csv.DictReader(rows)}


def commands_of(page: str) -> list[list[str]]:
    """The arguments of the page's calls of `compare`."""
    lines = page.replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("dualpath comp")]


def test_the_page_of_the_loops_says_what_its_commands_print(
    tmp_path, capsys, monkeypatch
):
    page = (STUDY.parent / "study_loops.md").read_text(encoding="utf-8")
    row = script("row")
    study = row.STUDIES["loops"]
    monkeypatch.chdir(tmp_path)
    row.restore(study, Path("runs/loops"))
    for command in commands_of(page):
        assert main(command) == 0
    found = {
        name: by_configuration(Path(f"runs/loops/{name}"))
        for name in (
            "a/table.csv",
            "a/tests.csv",
            "described/tests.csv",
            "pairs/tests.csv",
        )
    }
    capsys.readouterr()
    row.verdicts(study, Path("runs/loops/a"))
    said = dict(
        line.split(":a50_k4-combination_final: ")
        for line in capsys.readouterr().out.splitlines()
    )

    def shown(value: str, low: str, high: str) -> str:
        value, low, high = (f"{float(number):+.4f}" for number in (value, low, high))
        return f"{value} ({low} to {high})"

    lines = page.replace("−", "-").splitlines()
    base = "base/a50_k4-combination_final"
    for arm, (sweep, name) in ARMS_OF_LOOPS.items():
        costs = found["a/table.csv"][name]
        loops = costs["expected_loops"] and f"{float(costs['expected_loops']):.2f}"
        score = float(costs["aggregate"])
        error = float(costs["aggregate_standard_error"])
        assert (
            f"| {arm} (`{name}`) | {int(costs['parameters']) / 1e6:.3f}M | "
            f"{float(costs['linear_flops']) / 1e6:.3f}M | "
            f"{float(costs['total_flops']) / 1e6:.3f}M | "
            f"{int(costs['kv_bytes_per_token']):,} | {loops} | "
            f"{float(costs['best_rate']):.2g} | {score:.4f} ± {error:.4f} |"
        ) in lines

        of_seeds = ""
        if arm != "base":
            test, verdict = found["a/tests.csv"][name], said[name]
            word, share = verdict.split(": ")[0], verdict.rpartition("share ")[2]
            ends = f"{float(test['low_90']):+.4f} to {float(test['high_90']):+.4f}"
            bends = f"{float(test['bend']):.1f} and {float(test['bend_baseline']):.1f}"
            assert (
                f"| {arm} | {word} | "
                f"{shown(test['difference'], test['low'], test['high'])} | {ends} | "
                f"{float(test['p']):.2g} | {float(test['p_holm']):.2g} | {share} | "
                f"{bends} |"
            ) in lines
            row.seeds(study, f"{sweep}/{name}:{base}")
            of_seeds = re.search(r"95 %: (.*)", capsys.readouterr().out)[1]

        to_sequence = ""
        if arm != "sequence":
            test = found["described/tests.csv"][name]
            to_sequence = shown(test["difference"], test["low"], test["high"])
        assert f"| {arm} | {to_sequence} | {of_seeds} |" in lines

    rows = row.read(study.table)
    arms = [f"{sweep}/{name}" for sweep, name in ARMS_OF_LOOPS.values()]
    noise = np.concatenate(
        [row.scores_of(arm, rows, 8)[1].std(0, ddof=1) for arm in arms]
    )
    assert f"over seeds are {noise.min():.3f} to {noise.max():.3f}." in page
    detectable = [float(test["detectable"]) for test in found["a/tests.csv"].values()]
    assert f"is {min(detectable):.4f} to {max(detectable):.4f}." in page

    for test in found["pairs/tests.csv"].values():
        assert shown(test["difference"], test["low"], test["high"]) in " ".join(lines)


def test_the_readme_answers_by_the_numbers_of_the_study():
    page = (STUDY.parent / "study.md").read_text(encoding="utf-8")
    verdicts = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in page.splitlines()
        if line.startswith("| a50")
    ]
    (*_, p_at_32, _), (_, _, difference, _, p_at_256, _) = verdicts
    margin = re.search(r"within ±0\.014, or ([\d.]+) %", page)[1]
    paired = re.search(r"Paired by seed, which.*?p = ([\d.]+)", page, re.DOTALL)[1]

    readme = (STUDY.parents[1] / "README.md").read_text(encoding="utf-8")
    _, _, answers = readme.partition("| dual without loops against ")
    at_32, at_256 = answers.splitlines()[:2]
    said = [re.findall(r"\d\.\d+", row.split("|")[-2]) for row in (at_32, at_256)]
    leads_by = difference.split()[0].removeprefix("+")
    assert said == [[margin, p_at_32], [leads_by, p_at_256, paired]]

    # the first study
    tests = re.findall(
        r"^\| a50_k4 − \w+ \| (\S+)", PAGE.read_text("utf-8"), re.MULTILINE
    )
    to_wide, to_loop, to_k1 = (float(each.replace("−", "-")) for each in tests)
    wide = float(re.search(r"PureWide in that study has ([\d.]+)", page)[1])
    dual = wide + to_wide
    _, _, answers = readme.partition("| dual with K = 4 against PureWide, and against ")
    controls, k1 = answers.splitlines()[:2]
    for percent in (f"{-to_wide / wide:.0%}", f"{-to_loop / (dual - to_loop):.0%}"):
        assert f"better by {percent.replace('%', ' %')}" in controls
    assert f"worse by {to_k1 / (dual - to_k1):.1%}".replace("%", " %") in k1

    # the third study
    of_loops = (STUDY.parent / "study_loops.md").read_text(encoding="utf-8")
    for arm in ("sequence", "parallel"):
        assert f"\n| {arm} | no difference that matters | " in of_loops
    base = float(re.search(r"combination_final`.* (\S+) ± ", of_loops)[1])
    (row,) = [line for line in readme.splitlines() if "[third study]" in line]
    assert f"within {0.014 / base:.1%}".replace("%", " %") in row


@pytest.mark.parametrize(
    ("at_best", "held", "passed"),
    [(1.0, (0.92, 0.98), (0.02, 0.08)), (4.0, (0, 0.9), (0.1, 1))],
)
def test_an_arm_that_is_noisier_at_its_best_rate_is_held_less_often(
    at_best, held, passed
):
    row, steps = script("row"), np.arange(4)
    logs, rng = np.log([0.0245, 0.049, 0.098, 0.196]), np.random.default_rng(0)
    noise = rng.normal(size=(12, 8))
    noise = (noise - noise.mean(0)) / noise.std(0, ddof=1)
    noise[:, 1] *= at_best
    scores = 2 + np.tile(0.04 * (steps - 1.4) ** 2, 2) + 0.005 * noise

    found = row.under_own_noise((logs, scores[:, :4]), (logs, scores[:, 4:]), 0.03, 300)

    holding, better, worse = found.values()
    assert held[0] < holding < held[1]
    assert passed[0] < max(better, worse) < passed[1]


def test_runs_that_began_out_of_the_preregistered_order_are_named_on_the_page():
    """The order: for each two seeds all runs of `expanded`, then all of `k1`."""
    kept = script("row").read(STUDY / "row.csv")
    rows = [row for row in kept if not row["sweep"].startswith("pilot")]
    rows.sort(key=lambda row: row["started"])
    places = [((int(row["seed"]) - 14) // 2, row["sweep"]) for row in rows]
    early = {
        (row["sweep"], row["seed"])
        for number, row in enumerate(rows)
        if any(later < places[number] for later in places[number + 1 :])
    }
    page = " ".join((STUDY.parent / "study.md").read_text(encoding="utf-8").split())
    assert early == {("expanded", "20"), ("k1", "22")}
    assert all(f"`{sweep}` at seed {seed} (two rates)" in page for sweep, seed in early)


@pytest.mark.parametrize(("own_noise", "of_seeds"), [(False, 0.02), (True, 0.0)])
def test_designs_without_a_difference_are_as_far_apart_as_chance_makes_them(
    own_noise, of_seeds
):
    """With noise of 0.01 and 14 seeds: the share of truly equal arms is spread over 0
    to 1.

    A cell's own deviation includes what a seed does to all cells alike (`of_seeds`),
    which makes the shares too large.
    """
    row, rng = script("row"), np.random.default_rng(1)
    logs, steps = np.log([0.0245, 0.049, 0.098, 0.196]), np.arange(4)

    def arm(
        place: float, bend: float, lowest: float = 2.0
    ) -> tuple[np.ndarray, np.ndarray]:
        curve = lowest + bend * (steps - place) ** 2
        return logs, curve + blocks + 0.01 * rng.normal(size=(14, 4))

    shares = []
    for _ in range(60):
        blocks = of_seeds * rng.normal(size=(14, 1))
        found = row.share_as_large(arm(1.2, 0.01), arm(1.6, 0.04), own_noise=own_noise)
        assert found["error of a mean"] == pytest.approx(0.01 / 14**0.5, rel=0.4)
        shares.append(found["share"])
    assert kstest(shares, "uniform").pvalue > 0.01
    assert row.share_as_large(arm(1.2, 0.01), arm(1.6, 0.04, 2.1))["share"] == 0


def row_of(
    sweep: str, arm: str, rate: object, seed: object, score: object
) -> dict[str, str]:
    """A row of kept runs, with one score on all sets."""
    named = {"sweep": sweep, "arm": arm, "rate": rate, "seed": seed}
    scores = dict.fromkeys(("novels", "peps", "rust_rfcs", "gsm8k"), score)
    return {key: str(value) for key, value in (named | scores).items()}


def test_an_arm_that_two_sweeps_trained_is_given_with_its_sweep():
    row = script("row")
    sweeps = {"base": 2.0, "again": 3.0, "pilot_base": 9.0}
    runs = [
        row_of(sweep, "a", rate, seed, score)
        for sweep, score in sweeps.items()
        for rate in (0.1, 0.2, 0.4)
        for seed in range(8)
    ]
    with pytest.raises(SystemExit, match="a has two runs of a rate and seed; give S"):
        row.scores_of("a", runs, 8)
    assert (row.scores_of("again/a", runs, 8)[1] == 3.0).all()
    alone = [run for run in runs if run["sweep"] != "again"]
    assert (row.scores_of("a", alone, 8)[1] == 2.0).all()


def test_arms_of_different_seeds_are_not_paired(tmp_path):
    row = script("row")
    study = row.STUDIES["loops"]._replace(table=tmp_path / "kept.csv")
    seeds_of = {"a": range(8), "b": range(1, 9), "c": range(8)}
    runs = [
        row_of(arm, arm, rate, seed, 2.0)
        for arm, seeds in seeds_of.items()
        for rate in (0.1, 0.2, 0.4)
        for seed in seeds
    ]
    with study.table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(runs[0]))
        writer.writeheader()
        writer.writerows(runs)
    assert len(row.pair_of(study, "a:c")) == 2
    with pytest.raises(SystemExit, match=r"a:b: a has the seeds .*; keep runs of the"):
        row.pair_of(study, "a:b")


def test_verdicts_are_those_of_the_sweeps_that_were_compared(tmp_path):
    folders = {
        "a": ["runs/loops/again/runs/a-lr_0.1/seed_0"],
        "b": ["runs/loops/b/runs/b-lr_0.1/seed_0", "runs/more/runs/b-lr_0.2/seed_0"],
    }
    with (tmp_path / "runs.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["configuration", "run"])
        writer.writerows([name, run] for name, its in folders.items() for run in its)
    assert script("row").arms_of(tmp_path) == {"a": "again/a"}


def test_a_run_that_was_trained_anew_replaces_its_row_and_a_restored_one_does_not(
    tmp_path, monkeypatch, capsys
):
    row = script("row")
    study = row.STUDIES["loops"]._replace(
        table=tmp_path / "kept.csv", archive=tmp_path / "kept.tar.xz"
    )
    run = tmp_path / "runs/base/runs/a-lr_0.1/seed_0"
    run.mkdir(parents=True)

    def kept(started: str, score: float, cpu: str) -> list[str]:
        facts = {"git_commit": "c0ffee", "started": started, "device": "cpu"}
        (run / "versions.json").write_text(json.dumps(facts))
        lines = [f"{study.last},{name},{score}" for name in row.SETS]
        table = "\n".join(["step,set,bits_per_byte", *lines, ""])
        (run / "validation.csv").write_text(table)
        monkeypatch.setattr(row, "cpu", lambda: cpu)
        row.keep(study, tmp_path / "runs")
        (found,) = row.read(study.table)
        return [found[name] for name in ("started", "novels", "cpu")]

    assert kept("monday", 2.0, "old") == ["monday", "2.0", "old"]
    assert kept("monday", 2.0, "new") == ["monday", "2.0", "old"]
    assert "anew" not in capsys.readouterr().out
    assert kept("tuesday", 3.0, "new") == ["tuesday", "3.0", "new"]
    assert "1 of them trained anew" in capsys.readouterr().out


def test_nothing_is_judged_before_all_runs_are_in():
    runs = [
        {
            "sweep": "k1",
            "arm": "a",
            "rate": str(rate),
            "seed": str(seed),
            **dict.fromkeys(("novels", "peps", "rust_rfcs", "gsm8k"), "2.0"),
        }
        for rate in (0.1, 0.2, 0.4)
        for seed in range(8)
    ]
    row = script("row")
    assert row.scores_of("a", runs, 8)[1].shape == (8, 3)
    for too_few in (runs[1:], [run for run in runs if run["seed"] != "0"]):
        with pytest.raises(SystemExit, match="rates"):
            row.scores_of("a", too_few, 8)


def found_by_compare(difference: float, p: float | str, reach: float) -> dict[str, str]:
    """A row of `tests.csv`, as read."""
    low, high = difference - reach, difference + reach
    numbers = {"difference": difference, "p": p, "low_90": low, "high_90": high}
    return {key: str(value) for key, value in numbers.items()} | {"test": "at an edge"}


@pytest.mark.parametrize(
    ("difference", "p", "reach", "share", "said"),
    [
        (-0.020, 0.001, 0.005, 0.01, "better"),
        (0.020, 0.001, 0.005, 0.01, "worse"),
        (0.008, 0.001, 0.005, 0.01, "worse, by less than matters"),
        (0.020, 0.001, 0.005, 0.06, "undecided"),  # by the second check
        (0.002, 0.4, 0.010, 0.5, "no difference that matters"),
        (0.008, 0.03, 0.005, 0.01, "undecided"),  # Holm's p is 0.06
        (0.008, 0.1, 0.010, 0.5, "undecided"),
    ],
)
def test_the_verdicts_are_those_of_the_page(difference, p, reach, share, said):
    found = {
        key: float(value)
        for key, value in found_by_compare(difference, p, reach).items()
        if key != "test"
    }
    assert script("row").verdict(found, 2 * p, share, 0.014) == said


def test_a_pair_without_a_test_counts_in_the_correction(tmp_path, capsys):
    """Without the third pair, Holm's p of the first would be 0.04."""
    row = script("row")
    rng = np.random.default_rng(0)
    scores = {
        (arm, rate, seed): 2.0 + shift + 0.02 * step**2 + 0.001 * rng.normal()
        for arm, shift in (("base", 0.0), ("a", 0.02), ("b", 0.0))
        for step, rate in ((-1, 0.1), (0, 0.2), (1, 0.4))
        for seed in range(8)
    }
    names = ("novels", "peps", "rust_rfcs", "gsm8k")
    rows = [
        {"sweep": arm, "arm": arm, "rate": rate, "seed": seed}
        | dict.fromkeys(names, value)
        for (arm, rate, seed), value in scores.items()
    ]
    study = row.STUDIES["loops"]._replace(table=tmp_path / "kept.csv")

    def write(path: Path, records: list[dict[str, object]]) -> None:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(records[0]))
            writer.writeheader()
            writer.writerows(records)

    write(study.table, rows)
    tests = []
    for arm, p in (("a", 0.02), ("b", 0.5), ("c", "")):
        difference = 0.0
        if p:
            ours, theirs = row.pair_of(study, f"{arm}:base")
            difference = row.share_as_large(ours, theirs, 10, True)["difference"]
        tests.append(
            found_by_compare(difference, p, 0.01)
            | {"configuration": arm, "baseline": "base"}
        )
    write(tmp_path / "tests.csv", tests)

    row.verdicts(study, tmp_path, designs=100)
    a, b, c = capsys.readouterr().out.splitlines()
    assert a.startswith("a:base: undecided: +0.0")
    assert "p 0.0200, Holm 0.0600" in a
    assert b.startswith("b:base: no difference that matters: ")
    assert c == "c:base: no verdict, at an edge"

    tests[0]["difference"] = "0.5"
    write(tmp_path / "tests.csv", tests)
    with pytest.raises(SystemExit, match="compared other runs than are kept"):
        row.verdicts(study, tmp_path, designs=100)
