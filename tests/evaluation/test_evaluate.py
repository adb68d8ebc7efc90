"""`dualpath evaluate` from words to files, and what compare takes from these."""

import json
import math
import random
import re
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
import torch

import dualpath_cli as dualpath
from dualpath_cli.base.version import device_name
from dualpath_cli.cli.main import main
from dualpath_cli.evaluation import runner
from dualpath_cli.evaluation.benchmarks import FOLDER, MEANS, means_of
from dualpath_cli.evaluation.command import Evaluate
from dualpath_cli.recipe.recipes import merge
from dualpath_cli.run.tables import read_csv
from tests.cli.test_faults import closed_terminal
from tests.evaluation.conftest import NAME, questions, write_rows
from tests.flops.paper import TABLES
from tests.study.conftest import model_of
from tests.training.tiny_run import LONG


def report(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text())


def samples(folder: Path, task: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "samples" / f"{task}.jsonl").open()]


def likelihoods(sample: dict[str, Any]) -> list[float]:
    return [log for log, _ in sample["filtered_resps"]]


def test_a_report_has_the_source_that_renders_rows_and_no_address(scored):
    config = report(scored / NAME)["configs"]["arc_challenge"]
    for part in (config, config["fewshot_config"]):
        assert "def arc(" in part["process_docs"]
    assert " at 0x" not in (scored / NAME / "results.json").read_text()


def test_scores_are_those_made_by_hand_from_logits_in_float64(run, tasks, scored):
    """ARC-challenge, a request at a time: no batch, no padding, no library."""
    (model, tokenizer), folder = model_of(run), scored / NAME

    def loglikelihood(context: str, continuation: str) -> float:
        before, whole = (
            tokenizer.encode(context),
            tokenizer.encode(context + continuation),
        )
        ids = whole[-(64 + 1) :]  # what is too long loses its beginning
        scored = len(whole) - len(before)
        with torch.no_grad():
            logits = model.double()(torch.tensor([ids[:-1]]))[
                0, -scored:, : tokenizer.vocab_size
            ]
        return float(
            logits.log_softmax(-1)
            .gather(-1, torch.tensor(ids[-scored:])[:, None])
            .sum()
        )

    prefix = (tasks / "arc_challenge.fewshot.txt").read_text()
    rows = [json.loads(line) for line in (tasks / "arc_challenge.jsonl").open()]
    right, bits = [], []
    for row, sample in zip(rows, samples(folder, "arc_challenge"), strict=True):
        texts = [f" {choice}" for choice in row["choices"]]
        given = [loglikelihood(prefix + row["query"], text) for text in texts]
        alone = [loglikelihood("Answer:", text) for text in texts]
        assert likelihoods(sample) == pytest.approx([*given, *alone], abs=1e-4)
        differences = [a - b for a, b in zip(given, alone, strict=True)]
        right.append(differences.index(max(differences)) == row["gold"])
        bits.append(
            -given[row["gold"]] / math.log(2) / len(texts[row["gold"]].encode())
        )
    scores = report(folder)["results"]["arc_challenge"]
    assert scores["acc_uncond,none"] == pytest.approx(sum(right) / 12)
    assert scores["bpb,none"] == pytest.approx(mean(bits), abs=1e-5)
    assert scores["bpb_stderr,none"] == pytest.approx(
        stdev(bits) / math.sqrt(12), abs=1e-5
    )
    assert 0 < sum(right) < 12


def test_every_kind_of_benchmark_is_written_with_what_was_asked(scored):
    folder = scored / NAME
    found = report(folder)
    documents = {
        name: counts["effective"] for name, counts in found["n-samples"].items()
    }
    assert documents == {
        "c4": 32,
        "arc_challenge": 12,
        "piqa": 11,
        "gsm8k": 4,
        "lambada": 32,
        "minerva_math_algebra": 2,
        "minerva_math_geometry": 1,
    }
    assert "no hellaswag.jsonl" in found["skipped"]["hellaswag"]
    for name, metric in (("piqa", "acc_raw"), ("gsm8k", "acc"), ("lambada", "bpb")):
        values = [row[metric] for row in samples(folder, name)]
        assert found["results"][name][f"{metric},none"] == pytest.approx(mean(values))
    assert "Answer: tell" in found["configs"]["piqa"]["description"]


def test_scores_after_other_examples_than_those_of_olmes_say_so(
    run, tasks, tmp_path, output_of
):
    """OLMES's are in files `.fewshot.txt`."""
    (tasks / "piqa.fewshot.txt").unlink()
    write_rows(tasks / "piqa_train.jsonl", questions(6))
    note = "first training rows, not OLMES's; not comparable with the paper"
    for names, said in (
        (("piqa", "c4"), [f"examples: {note}"]),
        (("piqa", "arc_challenge"), [f"examples of piqa: {note}"]),
        (("c4", "arc_challenge"), []),
    ):
        words = ("--tasks", *names, "--limit", "2", "--data", tasks)
        out = ("--out", tmp_path / "o")
        shown = output_of("evaluate", "--ckpt_path", run, *words, *out)
        notes = re.findall("examples.*?: .*? the paper", " ".join(shown.split()))
        assert notes == said


def test_an_override_changes_the_scores_and_stands_in_the_results(
    run, tasks, scored, tmp_path, output_of
):
    words = ("--tasks", "piqa", "--limit", "9", "--loops", "1", "--window", "48")
    words += (
        "--intervention",
        "gates=1,0",
        "layers=1",
        "--data",
        tasks,
        "--out",
        tmp_path / "o",
    )
    output_of("evaluate", "--ckpt_path", run, *words)
    folder = tmp_path / "o" / NAME
    found = report(folder)
    assert (
        found["model"].items()
        >= {
            "intervention": "K=1 gates=1,0 layers=1",
            "loops": 1,
            "window": 48,
            "batch_size": 16,
            "precision": "float32",
            "device": device_name(torch.device("cpu")),
            "run": "tiny/default",
            "step": 6,
        }.items()
    )
    assert found["n-samples"]["piqa"] == {"original": 11, "effective": 9}
    plain = samples(scored / NAME, "piqa")
    for sample in samples(folder, "piqa"):
        assert likelihoods(sample) != likelihoods(plain[sample["doc_id"]])


def test_ctrl_c_keeps_what_is_finished_and_nothing_of_an_earlier_call(
    run, tasks, tmp_path, monkeypatch
):
    evaluate = runner.evaluate

    def interrupted(model: Any, tasks: Any, **options: Any) -> Any:
        if "piqa" in tasks["tasks"]:
            raise KeyboardInterrupt
        return evaluate(model, tasks, **options)

    folder = tmp_path / NAME
    names = ("loops.json", "loops.png", "K=3/results.json", "samples/c4.jsonl")
    for earlier in names:
        (folder / earlier).parent.mkdir(parents=True, exist_ok=True)
        (folder / earlier).touch()

    monkeypatch.setattr(runner, "evaluate", interrupted)
    words = [
        "--data",
        str(tasks),
        "--out",
        str(tmp_path),
        "--tasks",
        "arc_challenge",
        "piqa",
    ]
    assert main(["evaluate", "--ckpt_path", str(run), *words]) == 130
    assert list(report(folder)["results"]) == ["arc_challenge"]
    assert not any((folder / earlier).exists() for earlier in names)


def test_an_evaluation_goes_on_to_its_end_where_its_terminal_is_closed(
    run, tasks, tmp_path
):
    words = ["--data", str(tasks), "--tasks", "piqa", "--out", str(tmp_path)]
    with closed_terminal() as terminal, redirect_stdout(terminal):
        assert main(["evaluate", "--ckpt_path", str(run), *words]) == 0
    assert list(report(tmp_path / NAME)["results"]) == ["piqa"]


def test_compare_joins_the_scores_that_its_runs_have(
    run, trained, tasks, tmp_path, output_of
):
    other = trained(**merge(LONG, {"run": {"name": "other"}, "seed_everything": 2}))
    for each in (run, other):
        output_of(
            "evaluate", "--ckpt_path", each, "--tasks", "piqa", "c4", "--data", tasks
        )
    path = other / FOLDER / "tiny-other-step-00000006" / "results.json"
    content = json.loads(path.read_text())
    # a text of an earlier version
    content["results"]["novels"] = {"rolling_bpb,none": 1.0}
    path.write_text(json.dumps(content))
    said = output_of("compare", run, other, "--out", tmp_path / "compared")
    rows = read_csv(tmp_path / "compared" / "evaluations.csv")
    assert [
        (row["benchmark"], row["metric"], row["documents"]) for row in rows
    ] == 2 * [
        ("c4", "bits per byte", "32"),
        ("piqa", "accuracy", "11"),
        ("piqa", "bits per byte", "11"),
    ]
    results = [
        report(folder / FOLDER / name)["results"]["c4"]["rolling_bpb,none"]
        for folder, name in ((run, NAME), (other, "tiny-other-step-00000006"))
    ]
    assert [float(row["score"]) for row in rows[::3]] == results
    assert f"{mean(results):.4f} ± {stdev(results) / math.sqrt(2):.4f}" in said


def test_a_comma_may_end_the_tasks_and_alone_names_none():
    assert Evaluate(ckpt_path="RUN", tasks=("piqa,", "c4")).benchmarks == ("c4", "piqa")
    assert Evaluate(ckpt_path="RUN", tasks=(",",)).harness_names == ("",)


@pytest.mark.parametrize(
    "tasks", [(), ("all",), ("commonsense,qa",), ("piqa",), ("piqa", "c4", "mmlu")]
)
def test_benchmarks_have_as_many_documents_as_the_papers_however_they_are_named(tasks):
    asked = Evaluate(ckpt_path="RUN", tasks=tasks)
    assert (asked.documents, asked.harness_documents) == (1024, None)
    every = replace(asked, limit="all")
    assert (every.documents, every.harness_documents) == (None, None)
    few = replace(asked, limit=7)
    assert (few.documents, few.harness_documents) == (7, 7)


def test_the_documents_of_a_benchmark_by_name_are_those_that_olmes_draws(
    tmp_path, output_of
):
    rows = [{"text": f"tell the tale {n}"} for n in range(1030)]
    write_rows(tmp_path / "lambada.jsonl", rows)
    words = ("--requests", "--tasks", "lambada", "--data", tmp_path)
    drawn = sorted(random.Random(1234).sample(range(1030), 1024))
    for limit, documents in (((), drawn), (("--limit", "all"), list(range(1030)))):
        path = output_of("evaluate", *words, *limit, "--out", tmp_path / "o").strip()
        requests = map(json.loads, Path(path).read_text().splitlines())
        assert [request["doc"] for request in requests] == documents


def test_requests_are_written_without_a_model(tasks, tmp_path, output_of):
    words = ("--tasks", "gsm8k", "c4", "--data", tmp_path, tasks, "--limit", "2")
    said = output_of("evaluate", "--requests", *words, "--out", tmp_path / "o").split()
    assert said == [
        str(tmp_path / "o" / "requests" / f"{name}.jsonl") for name in ("c4", "gsm8k")
    ]
    text, problem = (
        json.loads(Path(file).read_text().splitlines()[1]) for file in said
    )
    assert text.keys() == {"doc", "idx", "text"}
    assert problem.keys() == {"doc", "idx", "context"}
    assert problem["context"].startswith("Question: tell?\nAnswer: tell\n\nQuestion: ")


def test_a_group_leaves_out_a_benchmark_without_a_file_and_its_name_does_not(
    tasks, tmp_path, output_of, said
):
    words = ("evaluate", "--requests", "--out", tmp_path / "o", "--data", tasks)
    without_names = output_of(*words)
    assert "hellaswag: left out, no hellaswag.jsonl in" in without_names
    assert without_names.count("/requests/") == 7
    assert output_of(*words, "--tasks", "all") == without_names
    assert "no hellaswag.jsonl" in said(*words, "--tasks", "commonsense", "hellaswag")
    (tasks / "piqa.jsonl").unlink()
    (tasks / "arc_challenge.jsonl").unlink()
    assert "no arc_challenge.jsonl" in said(*words, "--tasks", "commonsense")


def test_a_text_has_two_numbers_which_are_one_within_a_window(
    trained, tmp_path, output_of
):
    """`validate` and `load` read windows after end-of-text, `evaluate` after the token
    before."""
    # no row without a token
    run = trained(**merge(LONG, {"model": {"vocab_size": 260}}))
    short = "tell the tale of shells"
    texts = {"c4": short, "wikitext_103": f"{short} and all " * 9}
    for name, text in texts.items():
        write_rows(tmp_path / f"{name}.jsonl", [{"text": text}])
    words = ["--out", tmp_path, "--tasks", "lm", "--data", tmp_path]
    output_of("evaluate", "--ckpt_path", run, *words)
    for name, scores in report(tmp_path / NAME)["results"].items():
        separate = dualpath.load(run).loss(texts[name]).bits_per_byte
        near = scores["rolling_bpb,none"] == pytest.approx(separate, abs=1e-4)
        assert near == (name == "c4")


@pytest.mark.parametrize(("budget", "aggregate"), [("F80M", 0.8753), ("F160M", 0.8530)])
def test_means_are_those_of_the_paper(budget, aggregate):
    """From its table's own rows: the means that it prints, and PureWide's aggregate
    (paper.md)."""
    rows = TABLES["results"][budget]
    printed = {name: rows.pop(name) for name in MEANS if name in rows}
    found = [
        means_of({name: values[number] for name, values in rows.items()})
        for number, _ in enumerate(TABLES["result_columns"])
    ]
    assert found[0].keys() == MEANS.keys()
    assert found[0]["aggregate BPB"] == pytest.approx(aggregate, abs=1e-4)
    for name, values in printed.items():
        assert [means[name] for means in found] == pytest.approx(values, abs=1.01e-4)
