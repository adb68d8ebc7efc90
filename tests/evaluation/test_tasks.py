"""The task files: OLMES's own requests byte for byte, where documents come from, the
scores."""

import gzip
import hashlib
import json
import math
import random
import re
from pathlib import Path
from statistics import stdev
from typing import Any
from unittest.mock import Mock

import datasets
import lm_eval.tasks
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager

from dualpath_cli.base.errors import UserError
from dualpath_cli.data import primitives
from dualpath_cli.evaluation.benchmarks import (
    COMMONSENSE_COLUMNS,
    MATH_COLUMNS,
    SUITES,
    TASKS,
    Benchmark,
    NoData,
)
from dualpath_cli.evaluation.runner import LoadedTask, load_task, write_requests
from dualpath_cli.evaluation.tasks import olmes
from tests.evaluation.conftest import questions, write_rows

Pair = tuple[str, str]  # a context and its continuation


def asked(name: str, *folders: Path, limit: int | None = None) -> LoadedTask:
    return load_task(Benchmark(name), Benchmark(name).local(folders), limit)


def requests_of(loaded: LoadedTask, folder: Path) -> dict[int, list[Pair]]:
    """What `evaluate --requests` writes into a folder for each document."""
    requests: dict[int, list[Pair]] = {}
    path = write_requests(loaded, folder)
    for request in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        pairs = requests.setdefault(request["doc"], [])
        assert request["idx"] == len(pairs)
        pairs.append((request["context"], request["continuation"]))
    return requests


# OLMES adds it to the number of a document without its question
UNCONDITIONAL = 1_000_000


@pytest.mark.parametrize(
    ("name", "file", "raw"),
    [
        ("arc_challenge", "arc_challenge__test", ()),
        ("piqa", "piqa__val", ("goal", "sol1", "sol2", "label")),
    ],
    ids=["arc_challenge", "piqa by the rows of its dataset"],
)
def test_the_requests_are_those_of_olmes_byte_for_byte(
    name, file, raw, shared_data, tmp_path
):
    path = shared_data / "tasks" / f"{file}_rc_5shot.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"no requests of OLMES at {path}")
    theirs: dict[int, list[Pair]] = {}
    rows: dict[int, dict[str, Any]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            number, request = line["doc_id"], line["request"]
            if number < UNCONDITIONAL or name == "arc_challenge":
                pairs = theirs.setdefault(number % UNCONDITIONAL, [])
                pairs.append((request["context"], request["continuation"]))
                rows[number] = {field: line["doc"][field] for field in raw}
    if raw:
        write_rows(tmp_path / f"{name}.jsonl", list(rows.values()))
    loaded = asked(name, tmp_path, shared_data / "tasks")
    assert requests_of(loaded, tmp_path) == theirs


LETTERS = {"text": ["a", "b", "c", "d", "e"], "label": ["A", "B", "C", "D", "E"]}
DIGITS = {**LETTERS, "label": ["1", "2", "3", "4", "5"]}
TEA = {
    "activity_label": "Making tea",
    "ctx_a": "A cup [title] stands. [step] Water boils.",
    "ctx_b": "a MAN",
    "endings": [
        "[header] How to fold [title] Lay it out. [step]",
        "pours. [title] Press it",
        "  outer spaces go, four    stay two  ",
        "a mark [step]",
    ],
    "label": "1",
}
ENDINGS = [
    "  How to fold. Lay it out. ",
    " pours. Press it",
    " outer spaces go, four  stay two",
    " a mark ",
]
FEELS = {
    "context": "Ann won.",
    "question": "How?",
    "answerA": "glad",
    "answerB": "sad",
    "answerC": "calm",
    "label": "3",
}


@pytest.mark.parametrize(
    ("name", "row", "context", "continuations", "gold"),
    [
        *(
            (
                "arc_easy",
                {"question": "Why?", "choices": choices, "answerKey": key},
                "Question: Why?\nAnswer:",
                [" a", " b", " c", " d", " e"],
                gold,
            )
            for choices, key, gold in (
                (LETTERS, "B", 1),
                (DIGITS, "2", 1),
                (LETTERS, "E", 4),
                (DIGITS, "1", 0),
            )
        ),
        ("hellaswag", TEA, "Making tea: A cup. stands. Water boils. A man", ENDINGS, 1),
        (
            "hellaswag",
            {**TEA, "ctx_b": ""},
            "Making tea: A cup. stands. Water boils.",
            ENDINGS,
            1,
        ),
        (
            "socialiqa",
            FEELS,
            "Question: Ann won. How?\nAnswer:",
            [" glad", " sad", " calm"],
            2,
        ),
        (
            "winogrande",
            {
                "sentence": "Ann met _ at é_1 . ",
                "option1": "Bo",
                "option2": "Cy",
                "answer": "2",
            },
            ["Ann met Bo", "Ann met Cy"],
            [" at é_1 ."] * 2,
            1,
        ),
        (
            "minerva_math_algebra",
            {"problem": "$1+{{1}}$?", "solution": "$\\boxed{2}$. {% x"},
            "Problem:\n$1+{{1}}$?\n\nSolution:",
            [" $\\boxed{2}$. {% x"],
            0,
        ),
        (
            "qasper_yesno",
            {"evidence": ["One.", "Two."], "question": "Is it?", "answer": "No"},
            "One. Two.\nQuestion: Is it?\nAnswer:",
            [" Yes", " No"],
            1,
        ),
        ("lambada", {"text": "he said  good night"}, "he said  good", [" night"], 0),
    ],
)
def test_a_row_becomes_its_contexts_choices_and_worked_example(
    name, row, context, continuations, gold, tmp_path
):
    shots = Benchmark(name).config["num_fewshot"]
    write_rows(tmp_path / f"{name}.jsonl", [row])
    write_rows(tmp_path / f"{name}_train.jsonl", [row] * (shots + 1))
    contexts = context if isinstance(context, list) else [context] * len(continuations)
    prefix = (contexts[gold] + continuations[gold] + "\n\n") * shots
    pairs = [
        (prefix + c, text) for c, text in zip(contexts, continuations, strict=True)
    ]
    loaded = asked(name, tmp_path)
    assert requests_of(loaded, tmp_path) == {0: pairs}
    assert loaded.task.eval_docs[0]["gold"] == gold


gsm8k = olmes.gsm8k.__wrapped__  # of one row


def test_a_worked_example_of_gsm8k_is_what_olmes_makes_of_a_row():
    """What `normalize_answer_str` of its oe_eval/tasks/oe_eval_tasks/gsm8k.py gives,
    run alone."""
    for answer, worked, number in (
        (
            "2+3 = <<2+3=5>>5\nSo 5.\n#### 5,000",
            "2 + 3 = 5 So 5. So the answer is 5,000.",
            "5000",
        ),
        ("-1 is left!\n#### -1", "- 1 is left!. So the answer is - 1.", "1"),
        ("#### 7", ". So the answer is 7.", "7"),
    ):
        expected = {
            "query": "Question: How?\nAnswer:",
            "worked": worked,
            "number": number,
        }
        assert gsm8k({"question": "How?", "answer": answer}) == expected


def test_an_answer_to_gsm8k_ends_where_olmes_ends_it():
    stops = Benchmark("gsm8k").config["generation_kwargs"]["until"]
    assert stops == ["Question:", "\n\n"], (
        "the next worked example, and the line before it"
    )


def test_rows_of_gsm8k_are_rendered_as_olmes_renders_them_and_answered_by_their_mark(
    shared_data,
):
    """The hash is of what that function of OLMES made of all 1,319."""
    rows = [json.loads(line) for line in (shared_data / "gsm8k" / "test.jsonl").open()]
    worked = "\n".join(gsm8k(row)["worked"] for row in rows)
    expected = "2d171c484bd30833730feeab5f190d4493b42c0410259de65cc803c3f345b18e"
    assert hashlib.sha256(worked.encode()).hexdigest() == expected
    for row in rows:
        number = row["answer"].rpartition("#### ")[2].replace(",", "").strip()
        assert gsm8k(row)["number"] == number.lstrip("-")


@given(
    st.integers(0, 10**9),
    st.sampled_from(["so {}.", "1 and {:,} apples", "{}\n", "at -{}"]),
)
def test_an_answer_is_the_last_number_whatever_is_around_it(number, text):
    """As in OLMES, whose pattern has the sign in its first half alone: of fractions."""
    assert olmes.written({"number": str(number)}, [text.format(number)]) == {"acc": 1}
    assert olmes.written({"number": str(number + 1)}, [text.format(number)]) == {
        "acc": 0
    }
    assert olmes.last_number(f"it is -{number}.25") == f"-{number}.25"
    assert olmes.last_number(" none at all \n") == "none at all"


# Documents


def test_the_paper_has_17_bits_per_byte_and_gsm8k():
    columns = {Benchmark(name).paper for name in SUITES["all"]}
    accuracies = (*COMMONSENSE_COLUMNS, *MATH_COLUMNS, "LAMBADA", "QASPER", "GSM8k")
    texts = {(None, "C4"), (None, "WikiText-103")}
    assert columns == {(f"{name} Acc.", f"{name} BPB") for name in accuracies} | texts


@pytest.mark.parametrize("name", ["addition_3", "assignment_2"])
def test_the_requests_of_a_primitive_are_its_test(name):
    """Without a file: an answer ends with its line."""
    made = primitives.level_test(name)
    wanted = [
        (made.examples + question, f"{answer}\n") for question, answer in made.questions
    ]
    assert [request.args for request in asked(name).requests()] == wanted


def test_an_answer_of_a_primitive_has_its_own_bytes():
    row = {"choices": ["93\n"], "gold": 0}
    scores = olmes.answer(row, [(-3 * math.log(2), True)])
    assert scores == {"acc": 1, "bpb": pytest.approx(1)}


def test_a_limit_draws_the_documents_that_olmes_draws(tasks):
    drawn = asked("arc_challenge", tasks, limit=5)
    assert drawn.documents == sorted(random.Random(1234).sample(range(12), 5))
    ids = [f"q{number}" for number in drawn.documents]
    assert [request.doc["id"] for request in drawn.requests()[::6]] == ids
    assert asked("arc_challenge", tasks, limit=12).samples is None


def test_files_may_be_compressed_and_the_prefix_is_its_file_byte_for_byte(tmp_path):
    prefix = 'Goal: ü 😀 "{{a}}" {% b\r\nAnswer: \\b \n\n'
    (tmp_path / "piqa_val.fewshot.txt").write_bytes(prefix.encode())
    lines = "".join(json.dumps(row) + "\n" for row in questions(3))
    (tmp_path / "piqa_val.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    requests = requests_of(asked("piqa", tmp_path), tmp_path)
    contexts = [pairs[0][0] for pairs in requests.values()]
    assert contexts == [prefix + row["query"] for row in questions(3)]


def test_lm_eval_takes_the_subsets_of_math_from_this_file_beside_its_own(monkeypatch):
    """As it would beside all of its own, whose thousands of files take long to read."""
    rows = datasets.Dataset.from_list([{"problem": "1?", "solution": "1"}])
    files = {"train": rows, "test": rows}
    monkeypatch.setattr(
        ConfigurableTask,
        "download",
        lambda task, options: setattr(task, "dataset", files),
    )
    own = Path(lm_eval.tasks.__file__).parent / "minerva_math"
    manager = TaskManager(include_path=[own, TASKS], include_defaults=False)
    assert "minerva_math_algebra" in manager.all_tasks
    found = manager.load("minerva_math")["tasks"].values()
    assert [task.config.metadata["paper"] for task in found] == list(MATH_COLUMNS)
    assert {task.config.process_results.__name__ for task in found} == {"gold"}


QUESTION = {"question": "Why?", "choices": LETTERS, "answerKey": "B"}
GOAL = {"goal": "g", "sol1": "a", "sol2": "b", "label": 0}
RENDERED = {"query": "Why?", "choices": ["a", "b"], "gold": 1}
SUM = {"question": "1 + 1?", "answer": "Add.\n#### 2"}
OPTIONS = {
    "sentence": "Ann met _ at one.",
    "option1": "Bo",
    "option2": "Cy",
    "answer": "2",
}
PAPER = {"evidence": ["One."], "question": "Is it?", "answer": "No"}
PROBLEM = {"problem": "1?", "solution": "1"}
SOUND = {
    "arc_easy": QUESTION,
    "piqa": GOAL,
    "hellaswag": TEA,
    "socialiqa": FEELS,
    "winogrande": OPTIONS,
    "qasper_yesno": PAPER,
    "minerva_math_algebra": PROBLEM,
    "lambada": {"text": "good night"},
    "c4": {"text": "night"},
    "gsm8k": SUM,
}
"""A row of each kind, with an answer."""


def rendered(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """A row as the benchmark's task file renders it, without a file of rows."""
    process_docs = getattr(olmes, Benchmark(name).config["process_docs"])
    return process_docs(datasets.Dataset.from_list([row]))[0]


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        *(
            (
                "arc_easy",
                {"answerKey": key},
                f"answerKey {key!r} is none of A, B, C, D, E",
            )
            for key in ("", "AB", "F", " B", True, None, 1)
        ),
        (
            "arc_easy",
            {"choices": {**LETTERS, "label": ["A", "B"]}},
            "2 labels and 5 texts",
        ),
        (
            "arc_easy",
            {"choices": {"text": ["b"], "label": ["B"]}},
            "has 1 texts and needs 2",
        ),
        *(
            ("piqa", {"label": label}, f"label {label!r} is none of 0, 1")
            for label in (-1, 2, True, 1.0, "", None)
        ),
        ("piqa", {"sol2": " "}, "sol2 ' ' is empty"),
        ("piqa", {"goal": 5}, "goal 5 is not a text"),
        ("piqa", {**RENDERED, "gold": True}, "gold True is none of 0, 1"),
        ("piqa", {**RENDERED, "gold": 2}, "gold 2 is none of 0, 1"),
        ("piqa", {**RENDERED, "choices": ["a"], "gold": 0}, "has 1 texts and needs 2"),
        ("piqa", {**RENDERED, "choices": "ab"}, "choices 'ab' is not a list"),
        ("hellaswag", {"label": ""}, "label '' is none of 0, 1, 2, 3"),
        ("hellaswag", {"endings": ["[step]", "a", "b", "c"]}, "choices.0. '' is empty"),
        ("socialiqa", {"label": "0"}, "label '0' is none of 1, 2, 3"),
        ("winogrande", {"answer": ""}, "answer '' is none of 1, 2"),
        ("winogrande", {"sentence": "Ann met Bo."}, "has no _"),
        ("winogrande", {"sentence": "Ann met _"}, "rest '' is empty"),
        ("qasper_yesno", {"answer": True}, "answer True is none of Yes, No"),
        ("qasper_yesno", {"evidence": "One."}, "evidence 'One.' is not a list"),
        ("minerva_math_algebra", {"solution": ""}, "solution '' is empty"),
        ("lambada", {"text": "night"}, "no space before a last word"),
        ("lambada", {"text": "good "}, "choices.0. '' is empty"),
        ("c4", {"text": ""}, "text '' is empty"),
        ("c4", {**RENDERED, "text": None}, "text None is not a text"),
        ("gsm8k", {"answer": "5 and 2 are 7"}, "answer has 0 marks ####"),
        ("gsm8k", {"answer": "#### 7 #### 8"}, "answer has 2 marks ####"),
        *(
            (
                "gsm8k",
                {"answer": f"So. #### {number}"},
                f"answer has '{number}' after its mark",
            )
            for number in ("", "seven", "1/2", "1,2", "7 or 8")
        ),
        (
            "gsm8k",
            {"query": "1?", "worked": "2.", "number": 2},
            "number 2 is not a text",
        ),
    ],
)
def test_a_row_without_an_answer_is_named_by_its_number_and_reason(
    name, change, reason
):
    sound = SOUND[name]
    with pytest.raises(olmes.BadDocument, match=r"row 1: ") as bad:
        rendered(name, sound | change)
    assert re.search(reason, bad.value.reason)


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_row_is_rendered_and_its_rendering_again_too(name):
    once = rendered(name, SOUND[name])
    assert rendered(name, once) == once


def test_the_place_of_a_row_is_its_number_in_the_file_that_has_it(tmp_path):
    rows = [{**QUESTION, "question": f"{number}?"} for number in range(8)]
    write_rows(tmp_path / "arc_easy.jsonl", rows)
    write_rows(
        tmp_path / "arc_easy_train.jsonl", [*rows[:6], {**QUESTION, "answerKey": ""}]
    )
    assert len(asked("arc_easy", tmp_path).documents) == 8, (
        "five worked examples are sound"
    )
    write_rows(
        tmp_path / "arc_easy_train.jsonl", [*rows[:4], {**QUESTION, "answerKey": ""}]
    )
    with pytest.raises(UserError, match=r"arc_easy_train.jsonl row 5 cannot be scored"):
        asked("arc_easy", tmp_path)
    write_rows(tmp_path / "arc_easy_train.jsonl", rows)
    write_rows(
        tmp_path / "arc_easy.jsonl", [*rows, {"question": "8?", "answerKey": "A"}]
    )
    with pytest.raises(UserError, match=r"arc_easy.jsonl row 9 .*choices None is not"):
        asked("arc_easy", tmp_path)


def test_rows_of_math_that_belong_to_no_subset_are_named(tasks):
    rows = [
        {**PROBLEM, "subject": subject}
        for subject in ("Algebra", "Algebar", "Geometry")
    ]
    write_rows(tasks / "math500_test.jsonl", rows)
    with pytest.raises(
        UserError, match=r"math500_test.jsonl row 2: subject 'Algebar' is none of"
    ):
        asked("minerva_math_algebra", tasks)

    write_rows(tasks / "math500_test.jsonl", [{**PROBLEM, "subject": "Geometry"}])
    with pytest.raises(NoData, match=r"500_test.jsonl has no row .* subject 'Algebra'"):
        asked("minerva_math_algebra", tasks)


def test_rows_of_math_without_a_subject_count_in_the_benchmark_of_their_file(tasks):
    write_rows(tasks / "minerva_math.jsonl", [PROBLEM, PROBLEM])
    with pytest.raises(UserError, match=r"minerva_math.jsonl has no field 'subject'"):
        asked("minerva_math_algebra", tasks)
    write_rows(tasks / "minerva_math_algebra_test.jsonl", [PROBLEM, PROBLEM])
    assert asked("minerva_math_algebra", tasks).documents == [0, 1]


def test_too_few_worked_examples_and_no_texts_are_one_line(tasks):
    write_rows(tasks / "arc_easy.jsonl", questions(3))
    write_rows(tasks / "arc_easy_train.jsonl", questions(4))
    with pytest.raises(UserError, match="exceeds the 4 that are available"):
        asked("arc_easy", tasks)
    write_rows(tasks / "c4.jsonl", [{"texts": "a"}])
    with pytest.raises(UserError, match=r"c4.jsonl row 1 .*: no field 'text'; did you"):
        asked("c4", tasks)
    (tasks / "piqa.fewshot.txt").write_text("\n\n")
    with pytest.raises(UserError, match=r"piqa.fewshot.txt holds no worked example"):
        asked("piqa", tasks)


def test_a_file_that_is_not_json_is_named_once(tasks, monkeypatch):
    logged = Mock()
    monkeypatch.setattr("logging.Logger.handle", logged)
    (tasks / "c4.jsonl").write_text('{"text":\n')
    with pytest.raises(UserError, match=r"c4\.jsonl cannot be read as c4 \("):
        asked("c4", tasks)
    logged.assert_not_called()

    (tasks / "c4.jsonl").write_text("")
    with pytest.raises(UserError, match=r"c4\.jsonl is empty$"):
        asked("c4", tasks)


@pytest.mark.parametrize(
    ("error", "leaves_out"), [(ConnectionError, False), (KeyError, True)]
)
def test_what_the_hub_does_not_give_is_named_in_one_line(
    error, leaves_out, monkeypatch
):
    """Without a network there is no use in trying the rest of a suite."""
    load = Mock(side_effect=error("no route"))
    monkeypatch.setattr(datasets, "load_dataset", load)
    message = rf"hf:ybisk/piqa .* \({error.__name__}: '?no route'?\); give --data DIR"
    with pytest.raises(UserError, match=message) as caught:
        asked("piqa")
    assert isinstance(caught.value, NoData) == leaves_out
    load.assert_called_once_with(
        path="ybisk/piqa", name=None, revision="refs/convert/parquet"
    )


# Scores

NATS = st.floats(-50, -0.1)
TEXTS = st.text("ab 7é日", min_size=1, max_size=8)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(TEXTS, NATS, NATS), min_size=2, max_size=5), st.integers(0, 4)
)
@example([("a", -1.9, -1.0), ("bbb", -4.0, -1.0)], 0)  # without the space: the second
def test_the_choice_is_the_largest_by_each_normalisation(drawn, number):
    choices, logs, alone = zip(*drawn, strict=True)
    gold = number % len(choices)
    scores = {
        "acc_raw": logs,
        "acc_per_char": [
            log / len(f" {text}") for text, log in zip(choices, logs, strict=True)
        ],
        "acc_uncond": [log - without for log, without in zip(logs, alone, strict=True)],
    }
    found = olmes.choice(
        {"choices": choices, "gold": gold}, [(log, False) for log in (*logs, *alone)]
    )
    for name, values in scores.items():  # of equal ones the first
        assert found.pop(name) == int(values.index(max(values)) == gold)
    size = len(f" {choices[gold]}".encode())
    assert found == {"bpb": pytest.approx(-logs[gold] / math.log(2) / size)}


@pytest.mark.parametrize("sizes", [[4, 4, 4, 4], [1, 9, 30, 2]])
def test_the_error_of_texts_is_that_of_a_ratio(sizes):
    bits = np.array([3.0, 5, 9, 4])
    pairs = [(-b * math.log(2), n) for b, n in zip(bits, sizes, strict=True)]
    # of one length: of a mean
    residuals = bits - bits.sum() / sum(sizes) * np.array(sizes)
    assert olmes.error_of_ratio(pairs) == pytest.approx(
        stdev(residuals) * 2 / sum(sizes)
    )
    assert olmes.error_of_ratio(pairs[:1]) == "N/A"
