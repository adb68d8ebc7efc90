"""The sample: right arithmetic, a consistent world, held-out texts that are held out."""

import hashlib
import json
import re

import pytest

from data_prep.sources import sample
from data_prep.sources.sample import RELATIONS, towns
from dualpath_cli.text.documents import parse_source, read_documents

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


def test_held_out_questions_ask_for_facts_that_training_questions_state(train, val):
    def fact(text: str) -> tuple[str, str, str] | None:
        question, answer = text.removeprefix("Question: ").split("\nAnswer: ")
        town = next((t.name for t in places if t.name in question), None)
        for name, relation in RELATIONS.items():
            if town and question in {way.format(town=town) for way in relation.questions}:
                return town, name, answer
        return None

    places = towns()
    known = {fact(text) for text in train["facts"] if "\nAnswer: " in text}
    asked = [fact(text) for text in val["facts"]]
    assert None not in asked
    assert set(asked) <= known
    ways = {text.split("\n")[0] for text in train["facts"]}
    assert not [text for text in val["facts"] if text.split("\n")[0] in ways]


def test_a_question_has_one_answer_only(train, val):
    answers: dict[str, str] = {}
    for text in train["facts"] + val["facts"]:
        question, separator, answer = text.partition("\nAnswer: ")
        if separator:
            assert answers.setdefault(question, answer) == answer


def test_conclusions_from_two_facts_follow_from_the_world(train):
    founded = {town.name: town.founded for town in towns()}
    river = {town.name: town.river for town in towns()}
    seen = {"older": 0, "years": 0, "river": 0}
    for text in train["facts"]:
        question, _, answer = text.partition("\nAnswer: ")
        if match := re.search(r"is older, (\w+) or (\w+)\?", question):
            seen["older"] += 1
            assert answer.endswith(f"So {min(match.groups(), key=founded.get)} is older.")
        elif match := re.search(r"How many years before (\w+) was (\w+) founded", question):
            seen["years"] += 1
            years = founded[match[1]] - founded[match[2]]
            assert answer.endswith(f" = {years} years.")
        elif match := re.search(r"Do (\w+) and (\w+) lie on the same river", question):
            seen["river"] += 1
            same = river[match[1]] == river[match[2]]
            assert answer.endswith("Yes, they do." if same else "No, they do not.")
    assert min(seen.values()) > 1000


def test_the_mix_holds_every_text_once_with_the_kinds_interleaved(train):
    mixed = list(sample.documents("train"))
    assert sorted(mixed) == sorted(text for kind in sample.KINDS for text in train[kind])
    head = set(mixed[:500])
    assert all(head & set(train[kind]) for kind in sample.KINDS)
    assert list(sample.documents("train", n=7)) == mixed[:7]


def test_held_out_texts_are_written_as_sources(tmp_path, val):
    sample.write_val(tmp_path / "val")
    for kind in sample.KINDS:
        path = tmp_path / "val" / f"{kind}.jsonl"
        assert list(read_documents(parse_source(f"{kind}={path}"))) == val[kind]
        assert json.loads(path.read_text().splitlines()[0]).keys() == {"text"}


def test_the_tokenizer_is_small_equal_each_time_and_fits_the_sample(tmp_path):
    one = sample.tokenizer()
    assert one.vocab_size == sample.VOCAB_SIZE == 2048
    one.save(tmp_path)
    digest = hashlib.sha256((tmp_path / "tokenizer.json").read_bytes()).hexdigest()
    assert digest.startswith("a4c8c70f11dd")  # the quickstart's documented numbers rest on it
    text = next(sample.documents("val", "prose"))
    assert one.decode(one.encode(text)) == text
    assert len(text) / len(one.encode(text)) > 3
