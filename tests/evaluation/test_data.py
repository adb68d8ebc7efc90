"""Where questions come from: files, few-shot prefixes, limits."""

import gzip
import json
import random

import pytest

from dualpath_cli.errors import UserError
from dualpath_cli.evaluation.benchmarks import BENCHMARKS, SUITES
from dualpath_cli.evaluation.data import NoData, ask, ask_text
from dualpath_cli.flops.paper import COMMONSENSE, MATH
from tests.evaluation.conftest import questions, write_rows

PIQA, ARC = BENCHMARKS["piqa"], BENCHMARKS["arc_challenge"]
ALGEBRA = BENCHMARKS["minerva_math_algebra"]


def test_the_paper_has_17_bits_per_byte_and_gsm8k():
    names = {BENCHMARKS[name].paper for name in SUITES["paper"]}
    assert names == {*COMMONSENSE, *MATH, "C4", "WikiText-103", "LAMBADA", "QASPER", "GSM8k"}
    parts = [SUITES[name] for name in ("lm", "commonsense", "math", "qa")]
    assert sum(parts, ()) == SUITES["paper"]


def test_a_limit_draws_the_documents_that_olmes_draws(tasks):
    drawn = [number for number, _ in ask(ARC, [tasks], None, 5).questions]
    assert drawn == sorted(random.Random(1234).sample(range(12), 5))
    everything = ask(ARC, [tasks], None, None)
    assert [number for number, _ in everything.questions] == list(range(12))
    assert ask(ARC, [tasks], None, 12) == ask(ARC, [tasks], None, 99) == everything
    assert ask(ARC, [tasks], None, 5).facts["documents_in_all"] == 12


def test_files_may_be_compressed_and_have_any_of_their_names(tmp_path):
    (tmp_path / "piqa_val.fewshot.txt").write_text("Goal: a\nAnswer: b\n\n")
    lines = "".join(json.dumps(row) + "\n" for row in questions(3))
    (tmp_path / "piqa_val.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    assert len(ask(PIQA, [tmp_path], None, None).questions) == 3


def test_the_few_shot_prefix_is_the_file_byte_for_byte(tasks, tmp_path):
    prefix = "Goal: ü\r\nAnswer: b \n\n"
    (tmp_path / "piqa.fewshot.txt").write_bytes(prefix.encode())
    assert ask(PIQA, [tasks], tmp_path, None).prefix == prefix
    assert ask(PIQA, [tasks], None, None).prefix == "Question: tell?\nAnswer: tell\n\n"


def test_the_few_shot_prefix_is_made_of_the_first_training_questions(tmp_path):
    rows = [{"goal": f"g{n}", "sol1": "no", "sol2": "yes", "label": n % 2} for n in range(9)]
    write_rows(tmp_path / "piqa.jsonl", rows)
    write_rows(tmp_path / "piqa_train.jsonl", rows)
    answers = ["no", "yes", "no", "yes", "no"]
    expected = "".join(f"Goal: g{n}\nAnswer: {answers[n]}\n\n" for n in range(5))
    assert ask(PIQA, [tmp_path], None, None).prefix == expected


def test_one_file_of_math_serves_its_subsets(tasks):
    asked = ask(ALGEBRA, [tasks], None, None)
    assert [number for number, _ in asked.questions] == [0, 2]
    assert not asked.whole
    write_rows(tasks / "minerva_math_algebra.jsonl", [{"problem": "p", "solution": "s"}])
    assert ask(ALGEBRA, [tasks], None, None).whole


def test_what_decides_scores_decides_the_digest(tasks):
    before = ask(PIQA, [tasks], None, None).digest
    assert ask(PIQA, [tasks], None, None).digest == before
    assert ask(PIQA, [tasks], None, 4).digest != before
    rows = questions(11, seed=1)
    write_rows(tasks / "piqa.jsonl", [*rows[:-1], {**rows[-1], "gold": (rows[-1]["gold"] + 1) % 3}])
    assert ask(PIQA, [tasks], None, None).digest != before
    write_rows(tasks / "piqa.jsonl", rows)
    assert ask(PIQA, [tasks], None, None).digest == before
    (tasks / "piqa.fewshot.txt").write_text("Question: other?\nAnswer: tell\n\n")
    assert ask(PIQA, [tasks], None, None).digest != before


def test_texts_are_those_of_any_source(tasks):
    asked = ask_text(BENCHMARKS["c4"], f"c4={tasks / 'c4.jsonl'}", None)
    assert asked.questions == ask(BENCHMARKS["c4"], [tasks], None, None).questions
    assert len(asked.questions) == 32


@pytest.mark.parametrize(("error", "leaves_out"), [(ConnectionError, False), (KeyError, True)])
def test_what_the_hub_does_not_give_is_named_in_one_line(error, leaves_out, monkeypatch):
    """Without a network there is no use in trying the rest of a suite."""
    datasets = pytest.importorskip("datasets")

    def refuse(*arguments: object, **options: object) -> None:
        raise error("no route")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    message = rf"hf:ybisk/piqa cannot be read \({error.__name__}: '?no route'?\); give --data DIR"
    with pytest.raises(UserError, match=message) as caught:
        ask(PIQA, [], None, None)
    assert isinstance(caught.value, NoData) == leaves_out


def test_rows_of_the_hub_are_asked_as_those_of_files(tasks, monkeypatch):
    datasets = pytest.importorskip("datasets")
    calls = []

    def load(path: str, config: str | None, split: str, revision: str | None) -> list[dict]:
        calls.append((path, config, split))
        return questions(11 if split == "validation" else 20, seed=1)

    monkeypatch.setattr(datasets, "load_dataset", load)
    asked = ask(PIQA, [], None, None)
    assert asked.questions == ask(PIQA, [tasks], None, None).questions
    assert asked.prefix.count("Answer:") == 5
    assert calls == [("ybisk/piqa", None, "validation"), ("ybisk/piqa", None, "train")]
