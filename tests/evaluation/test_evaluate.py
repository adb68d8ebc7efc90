"""`dualpath evaluate` from words to files: what is written, kept, compared, and refused."""

import csv
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dualpath_cli.cli import main
from dualpath_cli.evaluation import runner
from dualpath_cli.evaluation.means import AGGREGATE, ALL, means_of, paper_scores
from dualpath_cli.flops import paper
from dualpath_cli.model import DualPathLM
from dualpath_cli.recipes import merge
from dualpath_cli.run_folder import TOKENIZER
from dualpath_cli.settings import settings_from
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training.state.weights import load_weights
from tests.command.test_cli import SLOW, run_without_slow_imports
from tests.conftest import OutputOf, Share
from tests.export.test_shards import trained as sharded
from tests.tiny_run import Fit

NAME = "tiny-default-step-00000006"
CHANGES: dict[str, Any] = {
    "model": {"max_seq_len": 64}, "run": {"batch_tokens": 256, "max_tokens": 6 * 256}
}  # fmt: skip

Evaluate = Callable[..., Path]


@pytest.fixture
def run(trained: Fit) -> Path:
    """A run of the tiny recipe whose model takes 64 tokens."""
    return trained(**CHANGES)


@pytest.fixture
def evaluate(run: Path, tasks: Path, tmp_path: Path, output_of: OutputOf) -> Evaluate:
    """`evaluate(*words)` on the run; returns the model's folder of scores."""

    def evaluated(*words: object) -> Path:
        out = tmp_path / "scores"
        output_of("evaluate", "--ckpt_path", run, "--data", tasks, "--out", out, *words)
        return out / NAME

    return evaluated


def report(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text())


def samples(folder: Path, task: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "samples" / f"{task}.jsonl").open()]


def test_scores_are_those_made_by_hand_from_logits_in_float64(
    run: Path, tasks: Path, evaluate: Evaluate
) -> None:
    """ARC-challenge, a request at a time: no batch, no padding, no library."""
    folder = evaluate("--tasks", "arc_challenge")
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    model = DualPathLM(settings_from(recipe).model)
    load_weights(model, (run / "checkpoints" / "last").resolve())
    tokenizer = Tokenizer.load(run / TOKENIZER)
    model = model.double()

    def loglikelihood(context: str, continuation: str) -> float:
        before, whole = tokenizer.encode(context), tokenizer.encode(context + continuation)
        ids = whole[-(64 + 1) :]  # what is too long loses its beginning
        scored = len(whole) - len(before)
        with torch.no_grad():
            logits = model(torch.tensor([ids[:-1]]))[0, -scored:, : tokenizer.vocab_size]
        logs = logits - logits.exp().sum(-1, keepdim=True).log()
        return float(logs.gather(-1, torch.tensor(ids[-scored:])[:, None]).sum())

    prefix = (tasks / "arc_challenge.fewshot.txt").read_text()
    rows = [json.loads(line) for line in (tasks / "arc_challenge.jsonl").open()]
    right, bits = [], []
    for row, sample in zip(rows, samples(folder, "arc_challenge"), strict=True):
        texts = [f" {choice}" for choice in row["choices"]]
        given = [loglikelihood(prefix + row["query"], text) for text in texts]
        alone = [loglikelihood("Answer:", text) for text in texts]
        assert sample["loglikelihoods"] == pytest.approx(given, abs=1e-4)
        assert sample["unconditional"] == pytest.approx(alone, abs=1e-4)
        differences = [a - b for a, b in zip(given, alone, strict=True)]
        right.append(differences.index(max(differences)) == row["gold"])
        bits.append(-given[row["gold"]] / math.log(2) / len(texts[row["gold"]].encode()))
    metrics = report(folder)["tasks"]["arc_challenge"]["metrics"]
    assert metrics["acc_uncond"]["value"] == pytest.approx(sum(right) / 12)
    assert metrics["bpb"]["value"] == pytest.approx(sum(bits) / 12, abs=1e-5)
    assert 0 < sum(right) < 12


def test_every_kind_of_benchmark_is_written_with_what_was_asked(evaluate: Evaluate) -> None:
    folder = evaluate("--limit", "10")
    found = report(folder)
    assert list(found["tasks"]) == ["c4", "arc_challenge", "piqa", "gsm8k", "minerva_math_algebra",
                                    "minerva_math_geometry", "lambada"]  # fmt: skip
    assert "no hellaswag.jsonl" in found["skipped"]["hellaswag"]
    primaries = {name: task["primary"] for name, task in found["tasks"].items()}
    assert primaries["arc_challenge"] == "acc_uncond"
    assert (primaries["gsm8k"], primaries["c4"]) == ("acc", "rolling_bpb")
    documents = {name: task["documents"] for name, task in found["tasks"].items()}
    assert documents == {"c4": 10, "arc_challenge": 10, "piqa": 10, "gsm8k": 4, "lambada": 10,
                         "minerva_math_algebra": 2, "minerva_math_geometry": 1}  # fmt: skip
    assert found["tasks"]["c4"]["documents_in_all"] == 32
    for name, task in found["tasks"].items():
        rows = samples(folder, name)
        assert len(rows) == task["documents"]
        if "bpb" in task["metrics"]:
            expected = sum(row["bpb"] for row in rows) / len(rows)
            assert task["metrics"]["bpb"]["value"] == pytest.approx(expected)
    with (folder / "results.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert {row["task"] for row in table} == set(found["tasks"])
    assert [row["metric"] for row in table if row["task"] == "lambada"] == ["acc", "bpb"]


def test_the_model_and_how_it_was_run_stand_in_the_results(evaluate: Evaluate, run: Path) -> None:
    words = ("--tasks", "piqa", "--loops", "1", "--intervention", "gates=1,0", "layers=1")
    model = report(evaluate(*words, "--cache", "none", "--batch_size", "3"))["model"]
    assert model["intervention"] == "K=1 gates=1,0 layers=1"
    assert (model["loops"], model["cache"], model["batch_size"]) == (1, "none", 3)
    assert (model["device"], model["precision"], model["window"]) == ("cpu", "float32", 64)
    assert (model["run"], model["step"]) == ("tiny/default", 6)
    assert set(model["versions"]) == {"dualpath", "torch", "lm_eval"}


def test_an_intervention_changes_the_scores_and_an_export_does_not(
    evaluate: Evaluate, run: Path, tasks: Path, tmp_path: Path, output_of: OutputOf
) -> None:
    plain = samples(evaluate("--tasks", "piqa"), "piqa")
    forced = samples(evaluate("--tasks", "piqa", "--loops", "1"), "piqa")
    assert plain != forced
    file = tmp_path / "model.safetensors"
    output_of("export", "--ckpt_path", run, "--format", "consolidated", "--out", file)
    words = ("--data", tasks, "--out", tmp_path / "more", "--tasks", "piqa")
    output_of("evaluate", "--ckpt_path", file, *words)
    assert samples(tmp_path / "more" / NAME, "piqa") == plain


@pytest.mark.slow
def test_a_checkpoint_of_shards_scores_as_its_one_file(
    share: Share, texts: Path, tasks: Path, tmp_path: Path, output_of: OutputOf
) -> None:
    run, file = sharded(share, texts, ranks=2, tied=False), tmp_path / "model.safetensors"
    output_of("export", "--ckpt_path", run, "--format", "consolidated", "--out", file)
    words = ("--data", tasks, "--tasks", "piqa", "--window", "16")
    output_of("evaluate", "--ckpt_path", run, *words, "--out", tmp_path / "shards")
    output_of("evaluate", "--ckpt_path", file, *words, "--out", tmp_path / "one")
    (folder,) = (tmp_path / "shards").iterdir()
    assert samples(folder, "piqa") == samples(tmp_path / "one" / folder.name, "piqa")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the benchmarks that were computed, in their order."""
    names: list[str] = []
    compute = runner._samples

    def count(model: Any, asked: Any, window: int) -> Any:
        names.append(asked.benchmark.name)
        return compute(model, asked, window)

    monkeypatch.setattr(runner, "_samples", count)
    return names


def test_what_is_finished_is_not_computed_again_unless_something_decisive_changes(
    evaluate: Evaluate, tasks: Path, counted: list[str]
) -> None:
    words = ("--tasks", "piqa", "lambada")
    folder = evaluate(*words)
    before = (folder / "results.json").read_bytes()
    assert counted == ["piqa", "lambada"]
    evaluate(*words)
    assert (folder / "results.json").read_bytes() == before
    assert counted == ["piqa", "lambada"]
    evaluate(*words, "--batch_size", "2")
    assert counted[2:] == ["piqa", "lambada"]
    rows = (tasks / "piqa.jsonl").read_text().splitlines()
    (tasks / "piqa.jsonl").write_text("\n".join(rows[:-1]) + "\n")
    evaluate(*words, "--batch_size", "2")
    assert counted[4:] == ["piqa"]


def test_samples_that_were_changed_are_scored_again_and_that_is_said(
    run: Path, tasks: Path, tmp_path: Path, counted: list[str], output_of: OutputOf
) -> None:
    line = ("evaluate", "--ckpt_path", run, "--data", tasks, "--out", tmp_path, "--tasks", "piqa")
    assert "again" not in output_of(*line)
    path = tmp_path / NAME / "samples" / "piqa.jsonl"
    before = path.read_bytes()
    digit = before.index(b'"loglikelihoods": [-') + len(b'"loglikelihoods": [-')
    other = b"%d" % (9 - int(before[digit : digit + 1]))
    for changed in (before[:digit] + other + before[digit + 1 :], before[:-50], None):
        path.unlink()
        if changed is not None:
            path.write_bytes(changed)
        why = "is not as it was written" if changed else ": No such file or directory"
        assert f"piqa: {path}{' ' if changed else ''}{why}; scored again" in output_of(*line)
        assert path.read_bytes() == before
    assert counted == ["piqa"] * 4
    assert "piqa: kept from before" in output_of(*line)


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(
    run: Path, tasks: Path, tmp_path: Path, counted: list[str],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    line = ["evaluate", "--ckpt_path", str(run), "--data", str(tasks), "--out",
            str(tmp_path / "scores"), "--tasks", "arc_challenge", "piqa"]  # fmt: skip
    compute = runner._samples

    def interrupted(model: Any, asked: Any, window: int) -> Any:
        if asked.benchmark.name == "piqa":
            raise KeyboardInterrupt
        return compute(model, asked, window)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "_samples", interrupted)
        assert main(line) == 130
    said = capsys.readouterr().out
    assert f"1 of 2 benchmarks of {NAME} are done; the same command goes on from there" in said
    assert main(line) == 0
    assert counted == ["arc_challenge", "piqa"]


def test_several_runs_are_paired_with_the_first(
    run: Path, trained: Fit, tasks: Path, tmp_path: Path, output_of: OutputOf
) -> None:
    other = trained(**merge(CHANGES, {"run": {"name": "other"}, "seed_everything": 2}))
    out = tmp_path / "both"
    words = ("--tasks", "piqa", "c4", "--data", tasks, "--out", out)
    said = output_of("evaluate", "--ckpt_path", run, other, *words)
    assert f"differences to {NAME}, 3 tests" in said
    rows = json.loads((out / "comparison.json").read_text())
    assert [(row["task"], row["metric"], row["test"]) for row in rows] == [
        ("c4", "rolling_bpb", "t"), ("piqa", "acc_per_char", "McNemar"), ("piqa", "bpb", "t")
    ]  # fmt: skip
    values = [report(out / name)["tasks"]["c4"]["metrics"]["rolling_bpb"]["value"]
              for name in (NAME, "tiny-other-step-00000006")]  # fmt: skip
    assert rows[0]["difference"] == pytest.approx(values[1] - values[0])
    assert all(row["better"] + row["worse"] + row["ties"] in (11, 32) for row in rows)


def test_the_papers_row_stands_beside_the_same_benchmarks_alone(
    run: Path, tasks: Path, tmp_path: Path, output_of: OutputOf
) -> None:
    words = ("--out", tmp_path / "o", "--data", tasks, "--compare_paper", "f80m_a50_k4")
    said = output_of("evaluate", "--ckpt_path", run, *words,
                     "--tasks", "arc_challenge", "minerva_math_algebra")  # fmt: skip
    lines = {line.split("│")[1].strip(): line for line in said.splitlines() if "│" in line}
    assert [part in lines["arc_challenge"] for part in ("0.4170", "0.7983")] == [True, True]
    assert "0.5173" not in lines["minerva_math_algebra"]  # 500 problems that others chose
    assert "0.5173" not in said


def test_requests_are_written_without_a_model(
    tasks: Path, tmp_path: Path, output_of: OutputOf
) -> None:
    words = ("--tasks", "arc_challenge", "gsm8k", "c4", "--data", tmp_path, tasks, "--limit", "2")
    said = output_of("evaluate", "--requests", *words, "--out", tmp_path / "o").split()
    assert said == [str(tmp_path / "o" / "requests" / f"{name}.jsonl")
                    for name in ("c4", "arc_challenge", "gsm8k")]  # fmt: skip
    texts, choices, problems = (
        [json.loads(line) for line in Path(file).read_text().splitlines()] for file in said
    )
    rows = [json.loads(line) for line in (tasks / "arc_challenge.jsonl").open()]
    prefix = (tasks / "arc_challenge.fewshot.txt").read_text()
    expected = []
    for number in sorted({request["doc"] for request in choices}):
        row = rows[number]
        contexts = [prefix + row["query"]] * 3 + ["Answer:"] * 3
        pairs = zip(contexts, [f" {choice}" for choice in row["choices"]] * 2, strict=True)
        expected += [{"doc": number, "idx": place, "context": context, "continuation": rest}
                     for place, (context, rest) in enumerate(pairs)]  # fmt: skip
    assert choices == expected
    assert len(choices) == 12
    assert problems[0].keys() == {"doc", "idx", "context"}
    assert problems[0]["context"].startswith("Question: 1?\nAnswer: 1\n\nQuestion: ")
    assert texts[0].keys() == {"doc", "idx", "text"}


def test_texts_of_any_source_are_measured_after_end_of_text(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    (tmp_path / "note.txt").write_text("tell the tale of shells, all is well " * 9)
    folder = evaluate("--sources", f"notes={tmp_path / 'note.txt'}", "--window", "32")
    found = report(folder)
    assert list(found["tasks"]) == ["notes"]
    (sample,) = samples(folder, "notes")
    assert sample["bytes"] == 9 * 37
    bits = -sample["loglikelihood"] / math.log(2)
    value = found["tasks"]["notes"]["metrics"]["rolling_bpb"]["value"]
    assert value == pytest.approx(bits / (9 * 37))
    assert found["model"]["window"] == 32


def test_a_text_has_two_numbers_by_two_names_which_are_one_within_a_window(
    trained: Fit, tmp_path: Path, output_of: OutputOf
) -> None:
    """`validate` reads each window after end-of-text, `evaluate` after the token before it."""
    run = trained(**merge(CHANGES, {"model": {"vocab_size": 260}}))  # no row without a token
    texts = {"short": "tell the tale of shells", "long": "tell the tale of shells and all " * 9}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text)
    sets = json.dumps({name: str(tmp_path / f"{name}.txt") for name in texts})
    words = ("--data.val", sets, "--data.val_tokens", "null")
    validated = output_of("validate", "--ckpt_path", run, *words)
    assert "for evaluate's rolling_bpb, after the token before" in " ".join(validated.split())
    sources = [f"{name}={tmp_path / name}.txt" for name in texts]
    said = output_of("evaluate", "--ckpt_path", run, "--out", tmp_path, "--sources", *sources)
    assert "rolling_bpb: each window of a text is read after the token" in " ".join(said.split())
    rolling = {name: task["metrics"]["rolling_bpb"]["value"]
               for name, task in report(tmp_path / NAME)["tasks"].items()}  # fmt: skip
    separate = {name: float(re.search(rf"{name} .*│ *([\d.]+) *│", validated)[1]) for name in texts}
    assert rolling["short"] == pytest.approx(separate["short"], abs=1e-4)
    assert rolling["long"] != pytest.approx(separate["long"], abs=1e-3)


@pytest.mark.parametrize("budget", paper.BUDGETS)
def test_means_are_those_of_the_paper(budget: str) -> None:
    """From its table's own rows: the means that it prints, to their rounding."""
    for configuration in paper.configurations(budget):
        theirs = paper_scores(configuration.recipe)
        parts = {name: value for name, value in theirs.items()
                 if not name.startswith(("Commonsense", "Easy", "aggregate", "mean"))}  # fmt: skip
        ours = means_of(parts)
        assert set(ours) == {
            "Commonsense Acc.",
            "Commonsense BPB",
            "Easy math avg BPB",
            AGGREGATE,
            ALL,
        }
        for name, value in ours.items():
            assert value == pytest.approx(theirs[name], abs=1.01e-4)


def test_a_mean_needs_all_of_its_benchmarks() -> None:
    scores = {f"{task} BPB": 1.0 for task in paper.MATH}
    assert means_of(scores) == {"Easy math avg BPB": 1.0}
    scores |= {f"{task} BPB": 2.0 for task in paper.COMMONSENSE} | {"C4": 3.0, "WikiText-103": 4.0}
    assert means_of(scores)[AGGREGATE] == pytest.approx((1 + 2 + 3 + 4) / 4)
    assert ALL not in means_of(scores)
    scores |= {"LAMBADA BPB": 5.0, "QASPER BPB": 6.0}
    assert means_of(scores)[ALL] == pytest.approx((7 * 1 + 6 * 2 + 3 + 4 + 5 + 6) / 17)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--out o", "needs either --ckpt_path RUN or --hf DIR"),
        ("--ckpt_path RUN --hf RUN --out o", "needs either --ckpt_path RUN or --hf DIR"),
        ("--ckpt_path RUN --requests --out o", "or --requests alone"),
        ("--ckpt_path RUN", "needs --out DIR"),
        ("--ckpt_path nowhere --out o", "no run or checkpoint at 'nowhere'"),
        ("--ckpt_path RUN RUN --out o", f"two RUNs are called {NAME}"),
        ("--ckpt_path RUN --out o --tasks arc_esy", "did you mean 'arc_easy'?"),
        ("--ckpt_path RUN --out o --tasks piqa --suite qa", "exclude each other"),
        ("--ckpt_path RUN --out o --suite papers", "did you mean 'paper'?"),
        ("--ckpt_path RUN --out o --tasks hellaswag --data TASKS", "no hellaswag.jsonl in"),
        ("--ckpt_path RUN --out o --suite qa --data RUN", "nothing to evaluate on: lambada: no"),
        ("--ckpt_path RUN --out o --data nowhere", "--data 'nowhere' does not exist"),
        ("--ckpt_path RUN --out RUN/recipe.yaml", "is a file; give a folder"),
        ("--ckpt_path RUN --out o --sources piqa=x.txt", "a benchmark of another kind"),
        ("--ckpt_path RUN --out o --sources nowhere.txt", "'nowhere.txt' does not exist"),
        ("--ckpt_path RUN --out o --loops 0", "--loops must be a whole number above 0"),
        ("--ckpt_path RUN --out o --intervention gate=1,0", "did you mean 'gates'?"),
        ("--ckpt_path RUN --out o --intervention gates=1", "such as gates=1,0"),
        ("--ckpt_path RUN --out o --intervention gates=1,3", "each from 0 to 1"),
        ("--ckpt_path RUN --out o --intervention halting=x:change", "or halting=0.1:change"),
        ("--ckpt_path RUN --out o --intervention halting=2:entropy", "not in every step"),
        ("--ckpt_path RUN --out o --intervention skip=2", "skip must be a number from 0 to 1"),
        ("--ckpt_path RUN --out o --intervention kv_slots=1", "keys are gates, halting, skip"),
        ("--ckpt_path RUN --out o --intervention layers=9 gates=1,0", "has no layer 9"),
        ("--ckpt_path RUN --out o --tasks gsm8k --intervention gates=shuffled --data TASKS",
         "gsm8k goes with --cache none"),
        ("--ckpt_path RUN --out o --batch_size 0", "--batch_size must be"),
        ("--ckpt_path RUN --out o --window 1", "--window must be from 2"),
        ("--ckpt_path RUN --out o --precision fp16", "--precision 'fp16' is none"),
        ("--ckpt_path RUN --out o --device gpu", "--device 'gpu' is none"),
        ("--ckpt_path RUN --out o --compare_paper", "is of none of the paper's recipes"),
        ("--ckpt_path RUN --out o --compare_paper f80m_a50", "did you mean 'f80m_a50_k"),
        ("--hf RUN --out o", "holds no config.json"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(
    words: str, message: str, run: Path, tasks: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    line = [word.replace("RUN", str(run)).replace("TASKS", str(tasks)) for word in words.split()]
    capsys.readouterr()
    assert main(["evaluate", *line]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "o").exists()


def test_help_and_mistakes_need_nothing_slow(run: Path, tasks: Path, tmp_path: Path) -> None:
    lines = [
        "evaluate --help",
        "evaluate --ckpt_path nowhere --out o",
        f"evaluate --ckpt_path {run} --out o --data {tasks} --tasks hellaswag",
        f"evaluate --ckpt_path {run} --out o --data {tasks} --loops 0",
    ]
    slow = (*SLOW, "transformers", "datasets")
    answers = run_without_slow_imports(lines, tmp_path, slow)
    assert [answer["code"] for answer in answers] == [0, 2, 2, 2]


def test_without_the_library_the_extra_is_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["evaluate", "--ckpt_path", str(run), "--out", str(tmp_path / "o")]) == 2
    assert "evaluate needs lm_eval: pip install 'dualpath[eval]'" in capsys.readouterr().err


def test_a_device_that_is_not_there_is_refused(
    run: Path, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", str(tasks), "--out", str(tmp_path / "o"), "--device", "cuda:99"]
    assert main(["evaluate", "--ckpt_path", str(run), *words, "--tasks", "piqa"]) == 2
    assert "give cpu or auto" in capsys.readouterr().err


def test_a_model_that_gives_no_numbers_fails_and_is_not_kept(
    run: Path, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def spoilt(model: Any, checkpoint: Path) -> None:
        torch.nn.init.constant_(model.norm.weight, math.nan)

    monkeypatch.setattr("dualpath_cli.generation.loading.load_weights", spoilt)
    words = ["--data", str(tasks), "--out", str(tmp_path / "o"), "--tasks", "piqa"]
    assert main(["evaluate", "--ckpt_path", str(run), *words]) == 1
    assert "piqa, document 0: the model gives no number" in capsys.readouterr().err
    assert not (tmp_path / "o" / NAME / "tasks").exists()
