"""The studies' pages say what their scripts print; runs/evaluation what is in its table."""

import gzip
import json
import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

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


@pytest.mark.parametrize("before", ["| expected loops |\n\n", ""])
def test_a_table_that_says_something_else_or_nothing_is_found(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    for name in ("write.py", "rates.py", "kept.py", "restore.py"):
        (folder / name).write_text((STUDY / name).read_text(encoding="utf-8"))
    (folder / "tune").symlink_to(STUDY / "tune")
    (tmp_path / "study.md").write_text("words\n")
    page = tmp_path / "first_study.md"
    page.write_text(f"<!-- rates.py loops -->\n\n{before}words\n")
    assert run_script(monkeypatch, "write.py --check", folder) == 1
    assert "| PureLoop, K = 4 | 1.95 |" in capsys.readouterr().err
    assert run_script(monkeypatch, "write.py", folder) == 0
    assert page.read_text(encoding="utf-8").endswith(" |\n\nwords\n")
    assert run_script(monkeypatch, "write.py --check", folder) == 0


def test_every_figure_of_the_study_is_drawn_from_what_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(STUDY))
    import figures  # type: ignore[import-not-found]

    drawn: dict[str, Figure] = {}
    monkeypatch.setattr(figures, "write", drawn.__setitem__)
    figures.main()
    assert drawn.keys() == {path.stem for path in STUDY.glob("*.png")}
    assert all(ax.has_data() for figure in drawn.values() for ax in figure.axes)


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
        ("unpaired.py narrow+declared_32_k1 --pairs a50_k4:a50_k1 --paired", "the same seeds in"),
        ("unpaired.py declared_32+declared_noise_tenth --pairs a50_k4:wide",
         "arm 'wide' has seed 2 twice, in declared_32 and declared_noise_tenth; make them two"),
        ("unpaired.py narrow+declared_noise_tenth --pairs a50_k4:wide --seeds 0 1 3",
         "arm 'wide' has other settings or data in declared_noise_tenth (seed 3) than in narrow"),
        ("unpaired.py declared_32 --pairs a50_k4:wide --seeds 99", "no seed '99'; choose from 2,"),
        ("unpaired.py declared_32 --pairs a50_k4:wide --arms a50_k4 wide wide_totl",
         "no arm 'wide_totl'; did you mean 'wide_total'?"),
        ("unpaired.py declared_32 --pairs a50_k4:wide --seeds 2 --arms a50_k4 wide",
         "arm 'a50_k4' has one run, of seed 2, and its spread needs two"),
        ("unpaired.py declared_32 --pairs a50_k4:wide --described --others 3",
         "--described makes no tests; leave out --others"),
        ("unpaired.py declared_32 --pairs a50_k4:wide --change", "--change needs two groups"),
        ("grid.py declared_noise_tenth --loops", "no run in declared_noise_tenth has loops"),
        ("grid.py declared_rates --loops --step 99", "no read-out after step '99'; choose"),
        ("ablations.py x --classes", "no model 'x'; choose from narrow-a50_k4"),
        ("ablations.py narrow-a50_k4 --rows K=99", "no override 'K=99'; did you mean 'K=9'?"),
    ],
)  # fmt: skip
def test_a_wrong_word_is_one_line(
    command: str, hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_script(monkeypatch, command) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert hint in error


@pytest.mark.parametrize(
    ("command", "printed", "said"),
    [
        ("tables.py narrow --against wide,loop_k4 --primary",
         "after correction: 5, by the pairs' own differences 1\n", "1 of the 15 at equal linear"),
        ("tables.py narrow_total --against wide,loop_k4 --primary",
         "after correction: 5, by the pairs' own differences 1\n", "1 of the 7 at equal total"),
        ("tables.py paper_rate --against wide --seeds 0",
         "6 dual models minus wide, in the mean: −0.0224\n", "from 0.0224 to 0.0052"),
        ("tables.py tuned --against wide",
         "6 dual models minus wide, in the mean: −0.0052\n", "from 0.0224 to 0.0052"),
        ("tables.py narrow --against wide,loop_k4 --primary --sets novels peps rust_rfcs gsm8k",
         "uncorrected: 0.0123; p < 0.05 after correction: 9, by the pairs' own differences 0\n",
         "three seeds find 0.0123 on the four sets"),
        ("grid.py declared_rates declared_rates_k1 declared_rates_final",
         "differ by 0.0162 (standard deviation, pooled over 25 cells), two cells by 0.0162 ",
         "differ by 0.016 (standard deviation, pooled over the 25 cells), which is the standard"),
        ("grid.py declared_rates declared_rates_k1 declared_rates_final",
         "below it in 23 of 25 cells, −0.0173 in the mean; by such pairs two cells differ by 0.010",
         "ahead of seed 1 in 23 of the 25 cells, by 0.017 in the mean"),
        ("grid.py declared_loops_0.049 declared_loops_0.098 declared_loops_0.196 --loops",
         "96 layers: 75 expect fewer than 1.5 loops, 16 two or more, 3.85 at most\n",
         "75 of the 96 layers expect fewer than 1.5 loops, 16 two or more, up to 3.8"),
        ("grid.py declared_loops_0.049 declared_loops_0.098 --loops",
         "loops and bits per byte of 16 runs: r = −0.45, p = 0.079\n", "(r = −0.45, p = 0.08,"),
        ("grid.py declared_rates --loops --rates 0.0245 0.049 0.098 0.196",
         "64 layers: 50 expect fewer than 1.5 loops", "fewer than 1.5, where 50 of 64 do"),
    ],
)  # fmt: skip
def test_what_a_page_says_of_a_whole_table_is_printed_below_it(
    command: str, printed: str, said: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert run_script(monkeypatch, command) == 0
    assert printed in capsys.readouterr().out.partition("\n\n")[2]
    page = "first_study.md" if command.startswith("tables.py") else "study.md"
    assert said in " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    ("words", "row"),
    [
        ("--by-seed", "| loop_k4 | 1.99, 1.96 | 1.47, 1.46 | 1.12, 1.20 | 1.03, 1.01 | "),
        ("--step 100 --rates 0.0122", "| loop_k4 | 1.80 |"),
    ],
)  # fmt: skip
def test_loops_are_those_of_each_seed_or_of_an_earlier_step(
    words: str, row: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_script(monkeypatch, f"grid.py declared_rates --loops {words}") == 0
    assert row in capsys.readouterr().out


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


PRODUCTS = """
import torch
torch.manual_seed(0)
for M, K, N in ((4096, 48, 300), (300, 4096, 48), (4096, 700, 48), (520, 700, 4096), (7, 5, 3)):
    for transposed in (False, True):
        a = torch.randn(K, M).bfloat16().T if transposed else torch.randn(M, K).bfloat16()
        b, c = torch.randn(N, K).bfloat16().T, torch.randn(N).bfloat16()
        out, exact = torch.empty(M, N, dtype=torch.bfloat16), a.double() @ b.double()
        for got, expected in (
            (a @ b, exact), (torch.mm(a, b, out=out), exact),
            (torch.bmm(a[None], b[None])[0], exact),
            (torch.addmm(c, a, b, beta=2, alpha=0.5), 2 * c.double() + exact / 2),
        ):
            assert got.dtype is torch.bfloat16
            torch.testing.assert_close(got.double(), expected, rtol=2**-8, atol=1e-4)
    x, y = torch.randn(M, K), torch.randn(K, N)
    torch.testing.assert_close((x @ y).double(), x.double() @ y.double(), rtol=0, atol=1e-3)
kernel = torch._C._dispatch_dump_table("aten::mm")
assert "sitecustomize.py" in kernel, kernel
"""


def test_products_of_bf16_by_float32_are_those_of_float64_rounded_once() -> None:
    environment = os.environ | {"PYTHONPATH": str(STUDY / "rounded_products")}
    done = subprocess.run(
        [sys.executable, "-c", PRODUCTS], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_scores_of_a_small_model_are_those_of_its_comparison() -> None:
    folder = ROOT / "docs" / "runs" / "evaluation"
    page = (folder / "README.md").read_text(encoding="utf-8")
    for row in read_csv(folder / "comparison.csv"):
        value, *ends = (float(row[name]) for name in ("value", "difference", "low", "high"))
        said = "{:+.3f} ({:+.3f} to {:+.3f})".format(*ends) if any(ends) else "0"
        cells = (f"{value:.3f}" if value else "0", said.replace("-", "−"))
        counts = ", ".join(row[name] for name in ("better", "worse", "ties"))
        assert f"| {' | '.join(cells)} | {counts} |" in page
