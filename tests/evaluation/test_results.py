"""Scores from likelihoods, by slow loops; a benchmark's means, and texts in all their bytes."""

import json
import math
from statistics import mean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath_cli.evaluation import results
from dualpath_cli.evaluation.benchmarks import BENCHMARKS
from dualpath_cli.evaluation.data import Asked
from dualpath_cli.evaluation.formats import Question
from dualpath_cli.evaluation.results import (
    metrics_of,
    score_choices,
    score_gold,
    score_text,
    score_written,
)

NATS = st.floats(-50, -0.1)
TEXTS = st.text("ab 7é日", min_size=1, max_size=8)


@st.composite
def answered(draw: st.DrawFn) -> tuple[Question, list[float], list[float]]:
    """A question, the likelihoods of its choices, and those without the question."""
    choices = draw(st.lists(TEXTS, min_size=2, max_size=5))
    continuations = tuple(f" {choice}" for choice in choices)
    gold = draw(st.integers(0, len(choices) - 1))
    drawn = st.lists(NATS, min_size=len(choices), max_size=len(choices))
    return Question(("?",) * len(choices), continuations, gold), draw(drawn), draw(drawn)


@settings(max_examples=40)
@given(answered())
def test_the_choice_is_the_largest_by_each_normalisation(given_):
    question, logs, unconditional = given_
    sample = score_choices(question, logs, unconditional)
    scores = {"acc_raw": [], "acc_per_char": [], "acc_uncond": []}
    for text, log, without in zip(question.continuations, logs, unconditional, strict=True):
        scores["acc_raw"].append(log)
        scores["acc_per_char"].append(log / len(text))  # the leading space counts
        scores["acc_uncond"].append(log - without)
    for name, values in scores.items():
        assert sample[name] == int(values.index(max(values)) == question.gold)


@settings(max_examples=40)
@given(answered())
def test_bits_per_byte_are_those_of_the_right_choice_with_its_space(given_):
    question, logs, _ = given_
    size = 1 + len(question.continuations[question.gold][1:].encode())
    expected = -logs[question.gold] / math.log(2) / size
    assert score_choices(question, logs, None)["bpb"] == pytest.approx(expected)
    assert score_gold(question, logs)["bpb"] == pytest.approx(expected)


def test_of_equal_choices_the_first_is_taken_and_the_tie_is_told():
    question = Question(("?",) * 2, (" a", " b"), 0)
    assert score_choices(question, [-1.0, -1.0], None) | {"bpb": 0} == {
        "loglikelihoods": [-1.0, -1.0], "bytes": [2, 2], "gold": 0, "bpb": 0,
        "acc_raw": 1, "acc_per_char": 1, "tie": True,
    }  # fmt: skip
    assert score_choices(question, [-1.0, -1.5], None)["tie"] is False


def test_an_answer_is_the_last_number_written():
    question = Question(("?",), (" 2",), answer="18")
    assert score_written(question, " 9 + 9 is 18. So the answer is 18.")["acc"] == 1
    assert score_written(question, " 18 of 20")["acc"] == 0
    assert score_written(question, " eighteen")["acc"] == 0


@settings(max_examples=40)
@given(st.lists(st.tuples(TEXTS, NATS), min_size=2, max_size=9))
def test_texts_are_scored_in_all_their_bytes_together(texts):
    samples = [score_text(text, log) for text, log in texts]
    metric = metrics_of(BENCHMARKS["c4"], samples)["rolling_bpb"]
    nats = math.fsum(log for _, log in texts)
    size = sum(len(text.encode()) for text, _ in texts)
    assert metric.value == pytest.approx(-nats / (math.log(2) * size))


def test_the_error_of_texts_of_one_length_is_that_of_a_mean():
    samples = [score_text("abcd", -n * math.log(2)) for n in (3, 5, 9, 4)]
    metric = metrics_of(BENCHMARKS["c4"], samples)["rolling_bpb"]
    bits = [3 / 4, 5 / 4, 9 / 4, 1]
    assert metric.value == pytest.approx(mean(bits))
    assert metric.stderr == pytest.approx(stdev(bits) / 2)


def test_a_benchmark_has_the_means_of_its_documents_and_the_primary_one_first():
    rows = [(1, 0, 2.0), (0, 1, 1.0), (1, 1, 6.0)]
    samples = [{"acc_raw": a, "acc_per_char": b, "bpb": c} for a, b, c in rows]
    metrics = metrics_of(BENCHMARKS["piqa"], samples)
    assert list(metrics) == ["acc_per_char", "acc_raw", "bpb"]
    assert metrics["bpb"].value == pytest.approx(3)
    assert metrics["acc_raw"].stderr == pytest.approx(stdev([1, 0, 1]) / math.sqrt(3))
    assert math.isnan(metrics_of(BENCHMARKS["piqa"], samples[:1])["bpb"].stderr)


def test_a_text_that_a_model_gives_no_probability_is_null(tmp_path):
    asked = Asked(BENCHMARKS["c4"], [(0, "a")], "", "", None, documents=1)
    result = results.keep(tmp_path, asked, "key", [{"doc": 0, **score_text("a", -math.inf)}])
    results.write(tmp_path, {"name": "m"}, [result], {}, {})
    written = [*tmp_path.rglob("*.json"), *tmp_path.rglob("*.jsonl")]
    assert len(written) == 3
    for path in written:
        assert "Infinity" not in path.read_text(), path
    head = json.loads((tmp_path / "results.json").read_text())
    assert head["tasks"]["c4"]["metrics"]["rolling_bpb"]["value"] is None
