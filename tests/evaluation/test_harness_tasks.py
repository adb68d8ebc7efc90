"""Tasks of lm-evaluation-harness by name, against the harness's own run of them."""

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import lm_eval.tasks
import pytest
import yaml
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

from dualpath_cli.base.errors import UserError
from dualpath_cli.evaluation import harness_tasks
from dualpath_cli.evaluation.harness import HarnessModel
from dualpath_cli.evaluation.harness_report import harness_scores
from dualpath_cli.evaluation.harness_tasks import find_tasks, load_harness_tasks
from tests.evaluation.conftest import NAME, WORDS, write_rows
from tests.study.conftest import model_of

CHOICE = {
    "dataset_path": "json",
    "output_type": "multiple_choice",
    "test_split": "test",
    "fewshot_split": "test",
    "num_fewshot": 2,
    "doc_to_text": "{{question}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{gold}}",
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}
WRITTEN = {
    "dataset_path": "json",
    "output_type": "generate_until",
    "test_split": "test",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{choices[gold]}}",
    "generation_kwargs": {"until": "\n", "max_gen_toks": 4},
    "metric_list": [{"metric": "exact_match"}],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Task files: `piqa`, which is a benchmark's name, too, and one that writes; `both`
    is a group of them."""
    folder = tmp_path / "own"
    folder.mkdir()
    rows = [
        {
            "question": f"which {WORDS[n % 8]}?",
            "choices": list(WORDS[:3]),
            "gold": n % 3,
        }
        for n in range(12)
    ]
    path = str(write_rows(folder / "rows.jsonl", rows))
    data = {"dataset_kwargs": {"data_files": {"test": path}}}
    for name, task in {"piqa": CHOICE, "writes": WRITTEN}.items():
        (folder / f"{name}.yaml").write_text(
            yaml.safe_dump({"task": name, **task, **data})
        )
    group = {
        "group": "both",
        "task": ["piqa", "writes"],
        "aggregate_metric_list": [{"metric": "acc"}],
    }
    (folder / "both.yaml").write_text(yaml.safe_dump(group))
    return folder


@pytest.fixture
def only_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the thousands of task files that the harness reads at each start."""
    few = partial(TaskManager, include_defaults=False)
    monkeypatch.setattr(harness_tasks, "TaskManager", few)


def results(report: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {key: value for key, value in scores.items() if key != "alias"}
        for name, scores in report["results"].items()
    }


def prompts(folder_of_model: Path) -> list[str]:
    """The hashes of the prompts, with their worked examples."""
    rows = (folder_of_model / "samples" / "harness" / "piqa.jsonl").open()
    return [json.loads(row)["prompt_hash"] for row in rows]


@pytest.mark.usefixtures("only_own")
def test_scores_are_those_of_the_harness_apart_from_the_paper(
    run, tasks, folder, tmp_path, output_of
):
    words = ("--tasks", "piqa", "harness:both", "--include-path", folder)
    said = output_of(
        "evaluate",
        "--ckpt_path",
        run,
        *words,
        "--data",
        tasks,
        "--limit",
        "9",
        "--loops",
        "1",
        "2",
        "--out",
        tmp_path / "o",
    )
    folder_of_model = tmp_path / "o" / NAME
    report = json.loads((folder_of_model / "results.json").read_text())
    model, tokenizer = model_of(run)
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    theirs = simple_evaluate(
        HarnessModel(model, tokenizer, 64, 16),
        tasks=["both"],
        task_manager=manager,
        limit=9,
    )
    assert theirs is not None
    assert results(report["harness"]) == results(theirs)
    assert report["harness"]["n-shot"] == {"piqa": 2, "writes": 0}

    # The benchmark of the same name keeps its own place.
    assert report["n-samples"] == {"piqa": {"original": 11, "effective": 9}}
    assert "acc_raw,none" in report["results"]["piqa"]
    samples = folder_of_model / "samples"
    assert prompts(folder_of_model / "K=1") == prompts(folder_of_model)
    assert (samples / "piqa.jsonl").read_text() != (
        samples / "harness" / "piqa.jsonl"
    ).read_text()

    rows = json.loads((folder_of_model / "loops.json").read_text())["scores"]
    measured = {(row["benchmark"], row["metric"]) for row in rows}
    assert ("harness:piqa", "acc_norm") in measured
    assert ("harness:writes", "exact_match") in measured
    assert "harness:writes" in said
    # Its tasks have two and no examples: the group has no number of its own.
    assert [
        (score.shots, score.documents)
        for score in harness_scores(report)
        if score.task == "both"
    ] == [(None, None)]


@pytest.mark.usefixtures("only_own")
def test_a_line_says_where_answers_end_before_the_limit_of_their_task(
    run, folder, tmp_path, output_of
):
    words = ("--tasks", "both", "--include-path", folder, "--limit", "1")
    words += ("--out", tmp_path / "o")
    for window, is_cut in ((6, True), (8, False)):
        said = output_of("evaluate", "--ckpt_path", run, *words, "--window", window)
        line = (
            "harness:both: answers end after 3 tokens, half of the window, not after 4"
        )
        assert (line in said) == is_cut


@pytest.mark.usefixtures("only_own")
def test_what_cannot_be_loaded_or_run_is_one_line(folder, run):
    task = {"task": "far", **CHOICE, "dataset_path": str(folder / "nowhere")}
    (folder / "far.yaml").write_text(yaml.safe_dump(task))
    with pytest.raises(UserError, match=r"harness:far cannot be loaded .*hub"):
        load_harness_tasks(["far"], [folder], None)

    (folder / "imports.py").write_text("import not_there\n")
    code = (folder / "piqa.yaml").read_text().replace("task: piqa", "task: imports")
    (folder / "imports.yaml").write_text(f"{code}process_docs: !function imports.a\n")
    with pytest.raises(UserError, match=r"'not_there'\); install what its code"):
        load_harness_tasks(["imports"], [folder], None)

    task["task"], task["num_fewshot"] = "many", 12  # of 12 rows, one is the question
    task |= {"dataset_path": "json"}
    task["dataset_kwargs"] = {"data_files": {"test": str(folder / "rows.jsonl")}}
    (folder / "many.yaml").write_text(yaml.safe_dump(task))
    with pytest.raises(UserError, match="harness:many cannot draw 12 worked examples"):
        load_harness_tasks(["many"], [folder], None)

    unsafe = {**WRITTEN, "task": "unsafe", "unsafe_code": True}
    unsafe["dataset_kwargs"] = {"data_files": {"test": str(folder / "rows.jsonl")}}
    (folder / "unsafe.yaml").write_text(yaml.safe_dump(unsafe))
    with pytest.raises(UserError, match="harness:unsafe runs code that the model"):
        load_harness_tasks(["unsafe"], [folder], None)

    draws = {**unsafe, "task": "draws", "unsafe_code": False}
    draws["generation_kwargs"] = {"do_sample": True, "temperature": 1.0}
    (folder / "draws.yaml").write_text(yaml.safe_dump(draws))
    (drawing,) = load_harness_tasks(["draws"], [folder], 2)
    model, tokenizer = model_of(run)
    with pytest.raises(UserError, match="'draws' draws its answers"):
        drawing.score(HarnessModel(model, tokenizer, 64, 16))


@pytest.mark.usefixtures("only_own")
def test_documents_that_a_task_shuffles_are_the_same_at_each_start(folder):
    (folder / "shuffle.py").write_text(
        "import random\n"
        "def shuffled(docs):\n"
        "    drawn = lambda row: {'choices': random.sample(row['choices'], 3)}\n"
        "    return docs.map(drawn, load_from_cache_file=False)\n"
    )
    task = (folder / "piqa.yaml").read_text().replace("task: piqa", "task: shuffles")
    (folder / "shuffles.yaml").write_text(
        f"{task}process_docs: !function shuffle.shuffled\n"
    )

    starts = []
    for seed in (1, 2):
        random.seed(seed)
        (task,) = load_harness_tasks(["shuffles"], [folder], None)
        starts.append(list(task.loaded["tasks"]["shuffles"].eval_docs["choices"]))
    assert starts[0] == starts[1]


def test_an_unknown_name_is_compared_with_all_that_are_known(folder, monkeypatch):
    arithmetic = Path(lm_eval.tasks.__file__).parent / "arithmetic"
    few = partial(TaskManager, include_defaults=False)
    monkeypatch.setattr(
        harness_tasks,
        "TaskManager",
        lambda include_path: few(include_path=[arithmetic, *include_path]),
    )

    known = find_tasks(["arithmetic_2da", "both"], [folder]).all_tasks
    assert {"arithmetic_2da", "both"} <= set(known)
    with pytest.raises(
        UserError, match=r"unknown benchmark 'arc_esy'; did .*'arc_easy'"
    ):
        find_tasks(["arc_esy"], [])
    with pytest.raises(
        UserError, match="'arithmetic_2dq'; did you mean 'arithmetic_2d"
    ):
        find_tasks(["arithmetic_2dq"], [])
    with pytest.raises(UserError, match="'writs'; did you mean 'writes'"):
        find_tasks(["writs"], [folder])


@pytest.mark.usefixtures("only_own")
@pytest.mark.parametrize("text", ["task: [mine", "task: mine\ninclude: none.yaml"])
def test_a_task_file_that_cannot_be_read_is_named_where_a_name_is_unknown(text, folder):
    (folder / "mine.yaml").write_text(text)
    assert "both" in find_tasks(["both"], [folder]).all_tasks
    with pytest.raises(UserError, match=r"'mine'; .*mine\.yaml cannot be read \(.+\)"):
        find_tasks(["mine"], [folder])
    with pytest.raises(UserError, match=r"cannot be read \(.+\); did .*'piqa'"):
        find_tasks(["piqaa"], [folder])


@pytest.mark.slow
def test_all_tasks_of_the_harness_are_known_beside_those_of_a_folder(folder):
    find_tasks(["arithmetic_2da", "mmlu", "ai2_arc", "both"], [folder])
