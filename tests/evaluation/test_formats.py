"""Renderings: those of OLMES's own requests byte for byte, and of each field that decides one."""

import gzip
import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath_cli.evaluation import formats
from dualpath_cli.evaluation.benchmarks import BENCHMARKS
from dualpath_cli.evaluation.data import ask
from dualpath_cli.evaluation.formats import BadQuestion, Question, last_number, prefix_of

pytest.importorskip("lm_eval", reason="needs the extra `eval`")
from dualpath_cli.evaluation.runner import HarnessTask


def requests_of(task: str, folder: Path) -> dict[int, list[tuple[str, str]]]:
    """What the harness sends for each document: pairs of context and continuation."""
    made = HarnessTask(ask(BENCHMARKS[task], [folder], None, None), window=2048)
    made.build_all_requests()
    requests: dict[int, list[tuple[str, str]]] = {}
    for instance in made.instances:
        requests.setdefault(instance.doc["doc"], []).append(instance.args)
    return requests


def olmes_requests(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        pytest.skip(f"no requests of OLMES at {path}")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


UNCONDITIONAL = 1_000_000  # OLMES adds it to the number of a document without its question


@pytest.mark.parametrize(
    ("task", "file", "unconditional"),
    [("arc_challenge", "arc_challenge__test_rc_5shot", True),
     ("piqa", "piqa__val_rc_5shot", False)],
)  # fmt: skip
def test_the_requests_are_those_of_olmes_byte_for_byte(task, file, unconditional, shared_data):
    theirs: dict[int, list[tuple[str, str]]] = {}
    for row in olmes_requests(shared_data / "tasks" / f"{file}.jsonl.gz"):
        number, request = row["doc_id"], row["request"]
        if number < UNCONDITIONAL or unconditional:
            pairs = theirs.setdefault(number % UNCONDITIONAL, [])
            pairs.append((request["context"], request["continuation"]))
    assert requests_of(task, shared_data / "tasks") == theirs


def test_rows_of_the_dataset_give_olmes_queries_and_choices(shared_data):
    for row in olmes_requests(shared_data / "tasks" / "piqa__val_rc_5shot.jsonl.gz"):
        doc = {name: row["doc"][name] for name in ("goal", "sol1", "sol2", "label")}
        question = formats.piqa(doc)
        assert set(question.contexts) == {row["doc"]["query"]}
        assert question.continuations == tuple(f" {choice}" for choice in row["doc"]["choices"])
        assert question.gold == row["doc"]["gold"]


LETTERS = {"text": ["a", "b", "c", "d", "e"], "label": ["1", "2", "3", "4", "5"]}
TEA = {"activity_label": "Making tea", "ctx_a": "A cup [title] stands. [step] Water boils.",
       "ctx_b": "a MAN", "endings": ["pours.", "leaves."], "label": "1"}  # fmt: skip
FEELS = {"context": "Ann won.", "question": "How?", "answerA": "glad", "answerB": "sad",
         "answerC": "calm", "label": "3"}  # fmt: skip


@pytest.mark.parametrize(
    ("render", "row", "context", "continuations", "gold"),
    [
        *((formats.arc, {"question": "Why?", "choices": LETTERS, "answerKey": key},
           "Question: Why?\nAnswer:", [" a", " b", " c", " d", " e"], gold)
          for key, gold in (("B", 1), ("2", 1), ("E", 4), ("1", 0))),
        (formats.hellaswag, TEA, "Making tea: A cup. stands. Water boils. A man",
         [" pours.", " leaves."], 1),
        (formats.hellaswag, {**TEA, "ctx_b": ""}, "Making tea: A cup. stands. Water boils.",
         [" pours.", " leaves."], 1),
        (formats.siqa, FEELS, "Question: Ann won. How?\nAnswer:", [" glad", " sad", " calm"], 2),
        (formats.math, {"problem": "$1+1$?", "solution": "It is $\\boxed{2}$."},
         "Problem:\n$1+1$?\n\nSolution:", [" It is $\\boxed{2}$."], 0),
        (formats.qasper, {"evidence": ["One.", "Two."], "question": "Is it?", "answer": "No"},
         "One. Two.\nQuestion: Is it?\nAnswer:", [" Yes", " No"], 1),
        (formats.lambada, {"text": "he said  good night"}, "he said  good", [" night"], 0),
    ],
)  # fmt: skip
def test_a_row_becomes_its_context_choices_and_answer(render, row, context, continuations, gold):
    question = render(row)
    assert question == Question((context,) * len(continuations), tuple(continuations), gold)
    assert question.example == context + continuations[gold]


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("[header] How to fold [title] Lay it out. [step]", " How to fold. Lay it out. "),
        ("Lay it out. [title] Press it", "Lay it out. Press it"),  # no second full stop
        ("one [substeps] two [substeps] three", "one two three"),
        ("  outer spaces go  ", "outer spaces go"),
        ("four    spaces", "four  spaces"),  # pairs once, from the left
        ("ends in a mark [step]", "ends in a mark "),  # after the outer spaces went
    ],
)
def test_marks_of_wikihow_leave_hellaswag_as_in_olmes(text, cleaned):
    row = {"ctx_a": "A", "ctx_b": "", "activity_label": "L", "endings": [text], "label": "0"}
    assert formats.hellaswag(row).continuations == (f" {cleaned}",)


SENTENCES = st.text("ab .é日\n", max_size=20)


@settings(max_examples=25)
@given(before=SENTENCES, after=SENTENCES, options=st.tuples(SENTENCES, SENTENCES))
def test_winogrande_puts_options_into_contexts_and_scores_one_continuation(before, after, options):
    sentence = {"sentence": f"{before}_{after}", "option1": options[0], "option2": options[1]}
    question = formats.winogrande({**sentence, "answer": "2"})
    assert question.contexts == (before + options[0], before + options[1])
    assert set(question.continuations) == {" " + after.strip()}
    assert question.example == f"{before}{options[1]} {after.strip()}"


@pytest.mark.parametrize(
    ("answer", "worked", "number"),
    [
        ("2+3 = <<2+3=5>>5\nSo 5.\n#### 5,000", " 2 + 3 = 5 So 5. So the answer is 5,000.", "5000"),
        ("so 4/2=2\n#### 2", " So 4 / 2 = 2. So the answer is 2.", "2"),
        ("Ten 12-ounce cups\n#### 10", " Ten 12 - ounce cups. So the answer is 10.", "10"),
        ("-1 is left!\n#### -1", " - 1 is left!. So the answer is - 1.", "1"),
        ("3 x 2 = 6. ####6", " 3 x 2 = 6. So the answer is 6.", "6"),
        ("#### 7", " . So the answer is 7.", "7"),
    ],
)
def test_a_worked_example_of_gsm8k_is_what_olmes_makes_of_a_row(answer, worked, number):
    """What `normalize_answer_str` of its oe_eval/tasks/oe_eval_tasks/gsm8k.py gives, run alone."""
    question = formats.gsm8k({"question": "How many?", "answer": answer})
    assert question.contexts == ("Question: How many?\nAnswer:",)
    assert (question.continuations, question.answer) == ((worked,), number)


def test_all_rows_of_gsm8k_are_rendered_as_olmes_renders_them_and_answered_by_their_mark(
    shared_data,
):
    """The hash is of what that function of OLMES made of all 1,319."""
    rows = [json.loads(line) for line in (shared_data / "gsm8k" / "test.jsonl").open()]
    worked = "\n".join(formats.gsm8k(row).continuations[0][1:] for row in rows)
    expected = "2d171c484bd30833730feeab5f190d4493b42c0410259de65cc803c3f345b18e"
    assert hashlib.sha256(worked.encode()).hexdigest() == expected
    for row in rows:
        number = row["answer"].rpartition("#### ")[2].replace(",", "").strip()
        assert formats.gsm8k(row).answer == number.lstrip("-")


def test_the_worked_examples_of_gsm8k_end_as_ours_do(shared_data):
    examples = (shared_data / "tasks" / "gsm8k.fewshot.txt").read_text().split("\n\n")
    assert examples.pop() == ""
    assert len(examples) == BENCHMARKS["gsm8k"].shots
    for text in examples:
        question, steps, answer = re.fullmatch(
            r"Question: (.*)\nAnswer: (.*) So the answer is (\d+)\.", text
        ).groups()
        row = {"question": question, "answer": f"{steps}\n#### {answer}"}
        assert prefix_of([formats.gsm8k(row)]) == text + "\n\n"


@given(st.integers(0, 10**9), st.sampled_from(["so {}.", "1 and {:,} apples", "{}\n", "${}"]))
def test_the_last_number_is_found_whatever_is_around_it(number, text):
    assert last_number(text.format(number)) == str(number)
    assert last_number(" none at all \n") == "none at all"


@given(st.floats(0.01, 1000).map(lambda x: f"{x:.2f}"))
def test_a_fraction_keeps_its_sign_a_whole_number_does_not(number):
    """As in OLMES, whose pattern has the sign in its first half alone."""
    assert last_number(f"it is -{number}") == f"-{number}"
    assert last_number(f"it is -{math.floor(float(number))}") == str(math.floor(float(number)))


@given(st.lists(st.text("ab é日", min_size=1, max_size=9), min_size=1, max_size=5), st.data())
def test_a_row_that_is_rendered_already_stays_as_it_is(texts, data):
    gold = data.draw(st.integers(0, len(texts) - 1))
    row = {"query": "Q:", "choices": texts, "gold": gold}
    for render in (formats.arc, formats.hellaswag, formats.piqa, formats.siqa, formats.qasper):
        expected = Question(("Q:",) * len(texts), tuple(f" {text}" for text in texts), gold)
        assert render(row) == expected


@pytest.mark.parametrize(
    ("render", "row", "message"),
    [
        (formats.piqa, {"goal": "g", "sol1": "a", "sol3": "b"}, "no field 'sol2'; did you mean"),
        (formats.piqa, {"goal": "g", "sol1": "a", "sol2": "b", "label": -1}, "none of its 2"),
        (formats.siqa, {"context": "c", "question": "q", "answerA": "", "answerB": "",
                        "answerC": "", "label": ""}, "its label is no whole number but ''"),
        (formats.winogrande, {"sentence": "no gap"}, "has no blank '_'"),
        (formats.qasper, {"evidence": [], "question": "q", "answer": "yes"}, "neither Yes nor No"),
        (formats.lambada, {"text": "word"}, "is one word"),
        (formats.arc, {"question": "q", "choices": {"text": ["a"]}, "answerKey": "Z"}, "none of"),
        (formats.arc, {"question": "q", "choices": ["a"]}, "its choices have no text and label"),
        (formats.qasper, {"evidence": [1], "question": "q"}, "its evidence are no list of texts"),
        (formats.math, {}, r"no field 'problem' \(fields: none\)"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_row_is_said(render, row, message):
    with pytest.raises(BadQuestion, match=message):
        render(row)
