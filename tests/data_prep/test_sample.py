"""The sample: right arithmetic, unique texts. test_commands.py has its bytes."""

import re

import pytest

from data_prep.sources import sample

ANNOTATION = re.compile(r"(\d+)([-+*/])(\d+) = \$?<<(\d+)([-+*/])(\d+)=(\d+)>>(\d+)")


@pytest.fixture(scope="module")
def train() -> dict[str, list[str]]:
    return {kind: list(sample.documents("train", kind)) for kind in sample.KINDS}


@pytest.fixture(scope="module")
def val() -> dict[str, list[str]]:
    return {kind: list(sample.documents("val", kind)) for kind in sample.KINDS}


def test_every_annotated_step_is_right_and_the_last_one_is_the_result(train, val):
    for text in train["arithmetic"] + val["arithmetic"]:
        assert re.fullmatch(r"Question: [^\n]+\?\nAnswer: (?s:.+)\n#### \d+", text)
        steps = ANNOTATION.findall(text)
        assert len(steps) == text.count("<<") == text.count(">>") > 0
        for a, operator, b, a2, operator2, b2, result, shown in steps:
            assert (a, operator, b, result) == (a2, operator2, b2, shown)
            left, right = int(a), int(b)
            exact = {"+": left + right, "-": left - right, "*": left * right, "/": left / right}[
                operator
            ]
            assert exact == int(result) >= 0
        assert text.endswith(f"\n#### {steps[-1][-1]}")


def test_no_two_texts_are_equal_and_held_out_texts_are_not_in_the_training_texts(train, val):
    for kind in sample.KINDS:
        assert len(set(train[kind])) == len(train[kind])
        assert len(set(val[kind])) == len(val[kind])
    everything = "\n".join(text for kind in sample.KINDS for text in train[kind])
    for kind in sample.KINDS:
        assert not [text for text in val[kind] if text in everything]
