"""Reasoning primitives, against an interpreter of the programs."""

import hashlib
import json
import random
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.packaged import PRIMITIVES_SHA256
from dualpath_cli.data import primitives
from dualpath_cli.data.primitives import (
    FAMILIES,
    MOST_HOPS,
    draw_addition,
    draw_assignment,
    held_out_texts,
    is_for_tests,
    level_test,
    names_of_tests,
    training_texts,
)

SEEDS = st.integers(0, 10**6)
NAMES = list(chain(*names_of_tests().values()))


def run(program: str) -> dict[str, tuple[str, int]]:
    """The number of each variable and the hops to it, line by line; a variable that is
    not assigned yet is a KeyError."""
    known: dict[str, tuple[str, int]] = {}
    for line in program.split():
        name, value = line.split("=")
        if value.isdigit():
            known[name] = (value, 1)
        else:
            number, hops = known[value]
            known[name] = (number, hops + 1)
    return known


@given(SEEDS, st.integers(1, MOST_HOPS))
def test_answers_are_those_of_the_program_at_the_hops_asked_for(seed, hops):
    problem = draw_assignment(random.Random(seed), hops)
    known = run(problem.program)
    answers = [known[question.strip("=")] for question, _ in problem.questions]
    assert [number for number, _ in answers] == [a for _, a in problem.questions]
    assert answers[0][1] == hops
    assert sorted(count for _, count in answers) == sorted(
        [*range(1, MOST_HOPS + 1)] * 2
    )


@given(SEEDS, st.integers(1, 6))
def test_sums_are_right_and_of_numbers_with_n_digits(seed, n_digits):
    ((question, answer),) = draw_addition(random.Random(seed), n_digits).questions
    terms = question.strip("=").split("+")
    assert sum(map(int, terms)) == int(answer)
    assert [len(str(int(term))) for term in terms] == [n_digits] * 2


@given(SEEDS)
def test_a_sum_has_its_side_in_both_orders(seed):
    problem = draw_addition(random.Random(seed), 3)
    ((question, answer),) = problem.questions
    swapped = "+".join(reversed(question.strip("=").split("+"))) + "="
    other = primitives.Problem("", ((swapped, answer),))
    assert is_for_tests(problem) == is_for_tests(other)


def programs_and_sums(text: str) -> set[str]:
    """The problems of a text, each sum in one order."""
    found = set()
    for line in text.splitlines():
        if "+" in line:
            terms, _, _ = line.partition("=")
            found.add("+".join(sorted(terms.split("+"))))
        elif " " in line:
            found.add(line)
    return found


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return list(training_texts())


def test_no_problem_of_a_test_is_in_a_text_for_training(texts):
    trained = programs_and_sums("\n".join(texts))
    for name in NAMES:
        test = level_test(name)
        asked = programs_and_sums("\n".join(q for q, _ in test.questions))
        shown = programs_and_sums(test.examples)
        assert asked.isdisjoint(trained)
        assert asked.isdisjoint(shown)
    for family in FAMILIES:
        kept = programs_and_sums("\n".join(held_out_texts(family)))
        assert kept
        assert kept.isdisjoint(trained)


@pytest.mark.parametrize("name", names_of_tests()["assignment"])
def test_a_test_asks_for_as_many_hops_as_its_name_says(name):
    questions = level_test(name).questions
    assert len(dict(questions)) == len(questions) == primitives.ITEMS
    for question, answer in questions:
        program, asked = question.splitlines()
        number, hops = run(program)[asked.strip("=")]
        assert (number, f"assignment_{hops}") == (answer, name)


def test_the_bytes_are_always_the_same(texts):
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    assert hashlib.sha256(lines.encode()).hexdigest() == PRIMITIVES_SHA256
    made = hashlib.sha256("".join(texts).encode())
    for name in NAMES:
        made.update(repr(level_test(name)).encode())
    assert made.hexdigest()[:16] == "675f477aa4e7cce8"
