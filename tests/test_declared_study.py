"""The declared study: declared before its runs, tested as declared; what is ready for a GPU."""

import gzip
import json
import os
import subprocess
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.stats import f as f_distribution
from scipy.stats import f_oneway, pearsonr, ttest_ind, ttest_rel

from dualpath_cli import cli
from dualpath_cli.command import launch
from dualpath_cli.files.csv_text import read_csv
from dualpath_cli.run.run_folder import AVERAGES
from tests.test_study import ROOT, STUDY, run_script


def declared() -> list[tuple[str, str]]:
    """The folders of kept runs that were declared, each with its page."""
    kept = sorted(path.parent.name for path in STUDY.glob("*/runs.yaml"))
    pages = {"experts": "experts/declared.md", "declared": "declared.md"}
    return [(name, page) for name in kept if (page := pages.get(name.partition("_")[0]))]


@pytest.mark.parametrize(("kept", "page"), declared())
def test_runs_of_a_declared_study_began_from_a_commit_with_its_declaration(
    kept: str, page: str
) -> None:
    if git("rev-parse", "--is-shallow-repository").strip() != "false":
        pytest.skip("the declaration is compared in a clone with all commits alone")
    content = yaml.safe_load((STUDY / kept / "runs.yaml").read_text(encoding="utf-8"))
    shared = content["shared"]
    facts = [shared.get(file, {}) | run.get(file, {}) for run in content["runs"].values()
             for file in {*run, *shared} if file.startswith("versions")]  # fmt: skip
    assert facts
    for commit, started in {(part["git_commit"], part.get("started")) for part in facts}:
        assert git("show", f"{commit}:docs/study/{page}") == (STUDY / page).read_text("utf-8")
        committed = datetime.fromisoformat(git("show", "-s", "--format=%cI", commit).strip())
        # The first study with experts was begun before runs recorded it.
        assert kept.startswith("experts") or datetime.fromisoformat(started) >= committed


def git(*words: str) -> str:
    """What git says of this checkout; nothing where it fails, as at a commit with `+changes`."""
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def test_declared_tests_are_unpaired_and_their_error_is_that_of_all_arms(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(STUDY))
    from unpaired import contrasts_of, print_tests  # type: ignore[import-not-found]

    rng = np.random.default_rng(0)
    two = {name: rng.normal(size=5).tolist() for name in ("a", "b")}
    ((one,), (spread,)) = contrasts_of([two], ["two"], [("a", "b")])
    assert spread.p(one.value) == pytest.approx(ttest_ind(two["a"], two["b"]).pvalue)
    # Paired, two arms alone have Student's test of the differences.
    ((one,), (spread,)) = contrasts_of([two], ["two"], [("a", "b")], paired=True)
    assert spread.p(one.value) == pytest.approx(ttest_rel(two["a"], two["b"]).pvalue)
    arms = two | {"c": rng.normal(size=7).tolist()}
    ((one,), (spread,)) = contrasts_of([arms], ["three"], [("a", "c")])
    assert one.value == pytest.approx(np.mean(arms["a"]) - np.mean(arms["c"]))
    assert spread.df == 4 + 4 + 6
    # The sum of squares within groups is what an analysis of variance divides by.
    grand = np.mean(np.concatenate(list(arms.values())))
    between = sum(len(v) * (np.mean(v) - grand) ** 2 for v in arms.values()) / 2
    within = between / f_oneway(*arms.values()).statistic
    assert spread.error == pytest.approx(np.sqrt(within * (1 / 5 + 1 / 7)))
    # A change from one group to another: two differences, whose variances add up.
    later = {name: rng.normal(size=5).tolist() for name in ("a", "c")}
    (change,), (wider,) = contrasts_of([arms, later], ["1", "2"], [("a", "c")], change=True)
    lead = np.mean(later["a"]) - np.mean(later["c"])
    assert change.value == pytest.approx(lead - one.value)
    assert wider.df == spread.df + 8
    all_arms = [*arms.values(), *later.values()]
    squares = sum((len(v) - 1) * np.var(v, ddof=1) for v in all_arms) / wider.df
    assert wider.error == pytest.approx(np.sqrt(squares * (1 / 5 + 1 / 7 + 1 / 5 + 1 / 5)))
    print_tests([one, change], [spread, wider])
    assert capsys.readouterr().out.count("\n") == 4


def test_tests_that_were_not_made_raise_a_second_p_as_much_as_any_of_them_could(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(STUDY))
    from unpaired import contrasts_of, print_tests

    rng = np.random.default_rng(0)
    arms = {name: rng.normal(loc, size=6).tolist() for name, loc in (("a", 0), ("b", 1), ("c", 2))}
    tested = contrasts_of([arms], ["one"], [("a", "b"), ("a", "c")])

    print_tests(*tested, others=3)
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()[2:]]
    (low, high), made, with_others = (sorted(float(row[at]) for row in rows) for at in (3, 4, 5))
    assert made == pytest.approx([min(1, 2 * low), high], rel=0.1)
    assert with_others == pytest.approx([min(1, 5 * low), min(1, 4 * high)], rel=0.1)


@pytest.mark.parametrize(
    ("difference", "low", "p_holm", "said"),
    [
        (-0.030, -0.040, 0.001, "better"),
        (-0.010, -0.016, 0.01, "better"),
        (-0.010, -0.013, 0.01, "better by less than matters"),
        (0.020, 0.010, 0.01, "worse"),
        (0.001, -0.009, 0.8, "no lead that matters"),
        (-0.006, -0.0139, 0.06, "no lead that matters"),
        (-0.006, -0.0140, 0.06, "undecided"),
        (-0.010, -0.019, 0.05, "undecided"),
    ],
)
def test_verdicts_are_those_of_the_declaration(
    difference: float, low: float, p_holm: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(STUDY))
    from unpaired import verdict

    assert verdict(difference, low, p_holm, 0.014) == said


@pytest.mark.parametrize(
    ("configuration", "arm"),
    [
        ("a50_k4-combination_final-lr_0.0122", "a50_k4-combination_final"),
        ("a50_k4-lr_0.049-lr_scale_router_1-lr_scale_gains_1", "a50_k4"),
        ("a50_k4-lr_0.196-lr_scale_router_1-lr_scale_gains_0.03418", "a50_k4, gains held"),
        ("a50_k4-lr_0.098-lr_scale_router_0.06837-lr_scale_gains_0.06837",
         "a50_k4, router held, gains held"),
    ],
)  # fmt: skip
def test_arms_over_rates_are_named_by_what_is_held(
    configuration: str, arm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(STUDY))
    from grid import without_rate  # type: ignore[import-not-found]

    assert without_rate(configuration) == arm


def test_held_out_excerpts_share_no_thirteen_words_with_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts, out = tmp_path / "texts", tmp_path / "out"
    shared = " ".join(f"shared{n}" for n in range(13))

    def rows(name: str, count: int) -> list[dict[str, str]]:
        own = [" ".join(f"{name}{d}p{p}w{w}" for w in range(90)) for d in range(count)
               for p in range(3)]  # fmt: skip
        documents = ["\n\n".join([own[3 * d], f"{shared} {own[3 * d + 1]}", own[3 * d + 2]])
                     for d in range(count)]  # fmt: skip
        return [{"id": f"{name}-{d}", "text": text} for d, text in enumerate(documents)]

    novels = [*rows("Bennet_Helen_1910", 2), *rows("Other_Novel_1900", 2)]
    questions = [{"question": f"{shared if n == 7 else ''} q{n}", "answer": "1"}
                 for n in range(1400)]  # fmt: skip
    for path, content in {
        "text/novels_train.jsonl.gz": [{"text": shared}],
        "text/novels_val.jsonl.gz": novels,
        "text/peps.jsonl.gz": rows("pep", 250),
        "text/rust_rfcs.jsonl.gz": rows("rfc", 250),
        "gsm8k/train.jsonl": [{"question": "none", "answer": "1"}],
        "gsm8k/test.jsonl": questions,
    }.items():
        file, lines = texts / path, "".join(json.dumps(row) + "\n" for row in content)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(lines.encode()) if path.endswith("gz") else lines.encode())
    assert run_script(monkeypatch, f"hold_out.py {texts} {out}") == 0
    assert "| table rust_rfcs | 160 |" in capsys.readouterr().out
    parts = {path: path.read_text().splitlines() for path in sorted(out.rglob("*.jsonl"))}
    held_out = [
        row for path, lines in parts.items() for row in lines if path.parent.name != "train"
    ]
    assert len(parts[out / "train" / "peps.jsonl"]) == 250 - 80 - 160
    assert len(held_out) == len(set(held_out))
    assert not any(shared in row for row in held_out)
    assert any(shared in row for row in parts[out / "train" / "peps.jsonl"])


def test_averages_are_read_of_the_runs_that_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(STUDY))
    from kept import read_runs  # type: ignore[import-not-found]

    averaged = {(run.settings.run.recipe, run.seed): run for run in read_runs(["declared_32"], 4)}
    rows = read_csv(STUDY / "declared_32" / AVERAGES)
    assert averaged.keys() == {(row["run"], int(row["seed"])) for row in rows}
    for row in rows:
        scores = averaged[row["run"], int(row["seed"])].scores
        assert scores[row["set"]] == float(row["bits_per_byte"])


def test_a_ratio_of_variances_excludes_one_where_the_f_test_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(STUDY))
    from noise import variance_ratio  # type: ignore[import-not-found]

    rng = np.random.default_rng(0)
    apart = []
    for scale in np.linspace(1, 4, 40):
        one, other = rng.normal(scale=scale, size=8).tolist(), rng.normal(size=8).tolist()
        ratio, low, high = variance_ratio(one, other)
        assert low < ratio < high
        tail = f_distribution.sf(ratio, 7, 7)
        apart.append(2 * min(tail, 1 - tail) < 0.05)
        assert apart[-1] == (low > 1 or high < 1)
    assert 0 < sum(apart) < 40


def test_a_paired_ratio_of_variances_ends_where_pitmans_test_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(STUDY))
    from noise import paired_interval  # type: ignore[import-not-found]

    rng = np.random.default_rng(0)
    for share in (0.0, 0.8, 0.99):
        other = rng.normal(size=8)
        one = 2 * share * other + (1 - share) * rng.normal(size=8)
        for end in paired_interval(one.tolist(), other.tolist()):
            scaled = np.sqrt(end) * other
            assert pearsonr(one + scaled, one - scaled).pvalue == pytest.approx(0.05)


def planned(
    script: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[str]]:
    """Of each sweep of a script its runs, planned without texts."""
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n[ $1 != -m ] || echo $* >> {tmp_path}/commands\n")
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", str(tmp_path / "docs/study" / script), *words], check=False,
        env=os.environ | {"PYTHON": str(python)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "to_train", lambda *_: None)
    runs = {}
    for command in (tmp_path / "commands").read_text().splitlines():
        given = command.split()[2:]
        assert cli.main([*given, "--slurm"]) == 0
        out = Path(given[given.index("--out") + 1])
        runs[out.name] = [path.stem for path in out.glob("recipes/*.yaml")]
    return runs


def test_the_sweeps_for_a_gpu_can_be_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = planned("gpu.sh", ["kept"], tmp_path, monkeypatch)
    arms = ["a50_k4", "loop_k4", "loop_k4_total", "wide", "wide_total"]
    assert {name: sorted(found) for name, found in runs.items()} == {
        "width64": [f"{arm}-seed_{seed}" for arm in arms for seed in (2, 3, 4)],
        "width64_k1": [f"a50_k1-seed_{seed}" for seed in (2, 3, 4)],
        "width128": [f"{arm}-seed_{seed}" for arm in arms for seed in (2, 3)],
        "width128_k1": [f"a50_k1-seed_{seed}" for seed in (2, 3)],
    }
    recipe = tmp_path / "runs/study/width128/recipes/a50_k4-seed_2.yaml"
    model = yaml.safe_load(recipe.read_text("utf-8"))["model"]
    assert (model["d_model"], model["n_heads"]) == (128, 8)


def test_the_sweeps_of_the_declaration_are_those_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(STUDY))
    from restore import over  # type: ignore[import-not-found]

    runs = planned("declared.sh", [], tmp_path, monkeypatch)
    assert {name: len(found) for name, found in runs.items()} == {
        "declared_rates": 30, "declared_rates_k1": 10, "declared_rates_final": 10,
        "declared_32": 60, "declared_32_k1": 12,
        "declared_loops_0.049": 8, "declared_loops_0.098": 8, "declared_loops_0.196": 8,
        "declared_noise_tenth": 8, "declared_noise_chunks": 8, "declared_noise_both": 8,
        "declared_transfer": 6, "declared_transfer_k4": 3, "declared_transfer_k1": 3,
        "declared_transfer_wide_beyond": 1, "declared_transfer_k4_beyond": 1,
        "declared_transfer_k1_beyond": 1, "declared_48": 40, "declared_48_k1": 8,
    }  # fmt: skip
    for path in STUDY.glob("declared_*/runs.yaml"):
        kept = yaml.safe_load(path.read_text("utf-8"))
        for run, own in kept["runs"].items():
            recipe = f"{path.parent.name}/recipes/{run.replace('/', '-')}.yaml"
            plan = yaml.safe_load((Path("runs/study") / recipe).read_text("utf-8"))
            begun = over(kept["shared"], own)["recipe.yaml"]
            assert over(begun, plan) == begun
