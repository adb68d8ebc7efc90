"""The studies' pages say what their scripts print; runs/evaluation what is in its table."""

import gzip
import json
import os
import runpy
import shlex
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.stats import f as f_distribution
from scipy.stats import f_oneway, ttest_ind

from dualpath_cli import cli
from dualpath_cli.files.csv_text import read_csv
from dualpath_cli.run.run_folder import AVERAGES
from tests.tiny_run import prepare

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "docs" / "study"


def run_script(monkeypatch: pytest.MonkeyPatch, command: str, folder: Path = STUDY) -> int:
    """Runs a script of the study as `python SCRIPT WORDS` would, in this process."""
    script, *words = shlex.split(command)
    monkeypatch.syspath_prepend(str(folder))
    for path in STUDY.glob("*.py"):  # those of another folder may have been imported before
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    monkeypatch.setattr(sys, "argv", [script, *words])
    try:
        runpy.run_path(str(folder / script), run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return int(end.code or 0)
    return 0


def test_every_table_of_the_study_is_what_its_command_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_script(monkeypatch, "write.py --check") == 0, capsys.readouterr().err
    page = (ROOT / "docs" / "first_study.md").read_text(encoding="utf-8")
    assert page.count("\n<!-- tables.py ") >= 2, "tables name their commands"


def test_a_table_that_says_something_else_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    for name in ("write.py", "rates.py", "kept.py", "restore.py"):
        (folder / name).write_text((STUDY / name).read_text(encoding="utf-8"))
    (folder / "tune").symlink_to(STUDY / "tune")
    (tmp_path / "study.md").write_text("words\n")
    page = tmp_path / "first_study.md"
    page.write_text("<!-- rates.py loops -->\n\n| expected loops |\n\nwords\n")
    assert run_script(monkeypatch, "write.py --check", folder) == 1
    assert "| PureLoop, K = 4 | 1.95 |" in capsys.readouterr().err
    assert run_script(monkeypatch, "write.py", folder) == 0
    assert page.read_text(encoding="utf-8").endswith(" |\n\nwords\n")
    assert run_script(monkeypatch, "write.py --check", folder) == 0


def test_a_kept_sweep_is_restored_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    assert run_script(monkeypatch, "restore.py narrow_k1 runs/study/narrow_k1") == 0
    run = tmp_path / "runs" / "study" / "narrow_k1" / "runs" / "a50_k1" / "seed_2"
    assert sorted(path.name for path in run.iterdir()) == [
        "metrics.csv", "recipe.yaml", "routing.csv", "validation.csv", "versions.json",
    ]  # fmt: skip
    words = shlex.split(
        "--config docs/study/base.yaml --config docs/study/narrow.yaml --budget 150K --tflops 0.06 "
        "--yes --alphas 50 --loops 1 --controls none --tune dual=6.1e-3 --out runs/study/narrow_k1"
    )
    assert cli.main(["sweep", *words, "--seeds", "3"]) == 0
    assert "3 of 3 are finished already" in capsys.readouterr().out
    assert cli.main(["sweep", *words, "--seeds", "4", "--slurm"]) == 0
    assert "4 runs, 1 of them left" in capsys.readouterr().out


def test_what_is_kept_of_restored_runs_is_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_script(monkeypatch, f"restore.py narrow_rate8 {tmp_path}/sweep") == 0
    assert run_script(monkeypatch, f"keep.py {tmp_path}/sweep {tmp_path}/kept") == 0
    kept = {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()}
    assert kept == {path.name: path.read_bytes() for path in (STUDY / "narrow_rate8").iterdir()}


def test_averages_are_kept_of_the_runs_that_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = "step,average,set,loss,bits_per_byte\n1500,4,novels,4.5,2.0\n"
    folder = tmp_path / "study"
    folder.mkdir()
    for name in ("restore.py", "keep.py"):
        (folder / name).write_text((STUDY / name).read_text(encoding="utf-8"))
    assert run_script(monkeypatch, f"restore.py narrow_rate8 {tmp_path}/sweep") == 0
    (tmp_path / "sweep/runs/wide/seed_1" / AVERAGES).write_text(scores)
    assert run_script(monkeypatch, f"keep.py {tmp_path}/sweep {folder}/kept", folder) == 0
    assert run_script(monkeypatch, f"restore.py kept {tmp_path}/again", folder) == 0
    found = list((tmp_path / "again").rglob(AVERAGES))
    assert [(path.parts[-3:-1], path.read_text()) for path in found] == [
        (("wide", "seed_1"), scores)
    ]


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("tables.py narow --against wide", "narow'; did you mean 'narrow'?"),
        ("tables.py narrow --against wide --rows a50", "no configuration 'a50'; did you mean"),
        ("tables.py narrow --against wide --sets pep", "no validation set 'pep'; did you mean"),
        ("tables.py narrow --against wide --seeds 9", "no seed '9'; choose from 0, 1, 2"),
        ("ablations.py x --classes", "no model 'x'; choose from narrow-a50_k4"),
        ("ablations.py narrow-a50_k4 --rows K=99", "no override 'K=99'; did you mean 'K=9'?"),
    ],
)
def test_a_wrong_word_is_one_line(
    command: str, hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_script(monkeypatch, command) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert hint in error


@pytest.mark.parametrize(
    ("words", "printed", "said"),
    [
        ("narrow --against wide,loop_k4 --primary",
         "after correction: 5, by the pairs' own differences 1\n", "1 of the 15 at equal linear"),
        ("narrow_total --against wide,loop_k4 --primary",
         "after correction: 5, by the pairs' own differences 1\n", "1 of the 7 at equal total"),
        ("paper_rate --against wide --seeds 0",
         "6 dual models minus wide, in the mean: −0.0224\n", "from 0.0224 to 0.0052"),
        ("tuned --against wide",
         "6 dual models minus wide, in the mean: −0.0052\n", "from 0.0224 to 0.0052"),
        ("narrow --against wide,loop_k4 --primary --sets novels peps rust_rfcs gsm8k",
         "uncorrected: 0.0123; p < 0.05 after correction: 9, by the pairs' own differences 0\n",
         "three seeds find 0.0123 on the four sets"),
    ],
)  # fmt: skip
def test_what_the_study_says_of_all_tests_of_a_table_is_printed_below_it(
    words: str, printed: str, said: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert run_script(monkeypatch, f"tables.py {words}") == 0
    assert printed in capsys.readouterr().out.partition("\n\n")[2]
    assert said in " ".join((ROOT / "docs" / "first_study.md").read_text(encoding="utf-8").split())


def test_validation_documents_that_share_thirteen_words_with_training_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [f"word{n}" for n in range(100)]
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": " ".join(words)}))
    prepare(tmp_path / "data" / "study", tmp_path / "train.jsonl")
    thirteen, twelve = " ".join(words[40:53]), " ".join(words[40:52])
    texts = [f"new {thirteen} words", f"new {twelve} words", f"{thirteen} words"]
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    question = json.dumps({"question": twelve, "answer": "none #### 1"})
    choice = json.dumps({"query": thirteen, "choices": ["a", "b"], "gold": 0})
    for path, content in {
        "study/val/peps.jsonl": rows,
        "study/val/rust_rfcs.jsonl": rows,
        "texts/text/novels_val.jsonl.gz": gzip.compress(rows.encode()),
        "texts/gsm8k/test.jsonl": question,
        "texts/wikitext-2/test.txt": thirteen,
        "texts/tasks/arc_challenge_test.jsonl": choice,
    }.items():
        file = tmp_path / "data" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    capsys.readouterr()
    assert run_script(monkeypatch, "texts.py data/study") == 0
    printed = capsys.readouterr().out
    assert "| peps | 2 of 3 | 2 of 3 |" in printed
    assert "| gsm8k | 0 of 1 | 0 of 1 |" in printed
    assert "| 2 | 0: " in printed


def test_the_scores_of_a_small_model_are_those_of_its_comparison() -> None:
    folder = ROOT / "docs" / "runs" / "evaluation"
    page = (folder / "README.md").read_text(encoding="utf-8")
    for row in read_csv(folder / "comparison.csv"):
        value, *ends = (float(row[name]) for name in ("value", "difference", "low", "high"))
        said = "{:+.3f} ({:+.3f} to {:+.3f})".format(*ends) if any(ends) else "0"
        cells = (f"{value:.3f}" if value else "0", said.replace("-", "−"))
        counts = ", ".join(row[name] for name in ("better", "worse", "ties"))
        assert f"| {' | '.join(cells)} | {counts} |" in page


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
    ((one,), (spread,)) = contrasts_of([two], ["two"], [("a", "b")], change=False)
    assert spread.p(one.value) == pytest.approx(ttest_ind(two["a"], two["b"]).pvalue)
    arms = two | {"c": rng.normal(size=7).tolist()}
    ((one,), (spread,)) = contrasts_of([arms], ["three"], [("a", "c")], change=False)
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


PLANS = """
import sys
from dualpath_cli import cli
from dualpath_cli.command import launch
launch.to_train = lambda *_: None  # there are no texts
sys.exit(cli.main([*sys.argv[1:], "--slurm"]))
"""


def test_the_sweeps_for_a_gpu_can_be_planned(tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\n[ $1 = -m ] || exec {sys.executable} $*\nshift 2\n"
        f"exec {sys.executable} -c '{PLANS}' $*\n"
    )
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", str(tmp_path / "docs/study/gpu.sh"), str(tmp_path / "kept")], check=False,
        env=os.environ | {"PYTHON": str(python)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    recipes = {
        folder.name: sorted(path.stem for path in folder.glob("recipes/*.yaml"))
        for folder in (tmp_path / "runs/study").iterdir()
    }
    arms = ["a50_k4", "loop_k4", "loop_k4_total", "wide", "wide_total"]
    assert recipes == {
        "width64": [f"{arm}-seed_{seed}" for arm in arms for seed in (2, 3, 4)],
        "width64_k1": [f"a50_k1-seed_{seed}" for seed in (2, 3, 4)],
        "width128": [f"{arm}-seed_{seed}" for arm in arms for seed in (2, 3)],
        "width128_k1": [f"a50_k1-seed_{seed}" for seed in (2, 3)],
    }
    recipe = tmp_path / "runs/study/width128/recipes/a50_k4-seed_2.yaml"
    model = yaml.safe_load(recipe.read_text("utf-8"))["model"]
    assert (model["d_model"], model["n_heads"]) == (128, 8)
