"""Contamination: what is found is what comparing every run of words with every other finds."""

import gzip
import json
import pickle
import random
import unicodedata
from collections.abc import Sequence

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from data_prep.documents import contamination
from data_prep.documents.contamination import Contamination
from tests.data_prep.documents.plain_words import words_of

ALPHABET = [f"word{n}" for n in range(26)]


def naive_hit(evaluations: Sequence[str], text: str) -> str | None:
    known: set[tuple[str, ...]] = set()
    for evaluation in evaluations:
        words = words_of(evaluation)
        length = min(len(words), 13)
        if length >= 8:
            known |= {tuple(words[n : n + length]) for n in range(len(words) - length + 1)}
    words = words_of(text)
    for start in range(len(words)):
        for length in range(13, 7, -1):
            run = tuple(words[start : start + length])
            if len(run) == length and run in known:
                return " ".join(run)
    return None


# Two words, for runs that repeat often: few texts of eight words or more share nothing.
EVALUATIONS = st.lists(st.lists(st.sampled_from("ab"), max_size=20).map(" ".join), max_size=6)


@given(EVALUATIONS, st.lists(st.sampled_from("abc"), max_size=60).map("-".join))
@example([" ".join(ALPHABET[15:23]), " ".join(ALPHABET[:13])], " ".join(ALPHABET))
@example([], " ".join(ALPHABET))
def test_the_hit_is_the_first_run_that_is_in_both(evaluations, text):
    sought = Contamination(evaluations)
    assert sought.hit(text) == naive_hit(evaluations, text)


def test_case_punctuation_and_composition_make_no_difference():
    evaluation = "Où est-ce que l'été dernier a passé ses vacances, Élodie? (Répondez en français.)"
    text = evaluation.upper().replace(" ", "\n").replace(".", " !")
    sought = Contamination([unicodedata.normalize("NFD", evaluation)])
    assert sought.hit(text) == " ".join(words_of(evaluation)[:13])


def test_equal_hashes_of_different_runs_are_no_hit(monkeypatch):
    def runs(hashes: np.ndarray, length: int) -> np.ndarray:
        return np.zeros(max(len(hashes) - length + 1, 0), np.uint64)

    monkeypatch.setattr(contamination, "runs", runs)
    rng = random.Random(1)
    evaluations = [" ".join(rng.choices(ALPHABET, k=rng.randint(8, 30))) for _ in range(20)]
    sought = Contamination(evaluations)
    assert sought.hit(" ".join(rng.choices(ALPHABET, k=200))) is None
    for evaluation in evaluations:
        text = " ".join([*rng.choices(ALPHABET, k=20), evaluation, "x"])
        assert sought.hit(text) == naive_hit(evaluations, text) is not None


def test_the_order_of_the_evaluation_texts_and_their_repeats_make_no_difference():
    rng = random.Random(3)
    evaluations = [" ".join(rng.choices(ALPHABET, k=15)) for _ in range(20)]
    first = Contamination(evaluations)
    second = Contamination([*evaluations[::-1], evaluations[4]])
    assert first.fingerprint == second.fingerprint
    assert pickle.dumps(first) == pickle.dumps(second)


def test_the_fingerprint_changes_with_what_is_sought():
    texts = [" ".join(ALPHABET[:length]) for length in (8, 12, 13, 26)]
    variants = [texts[:count] for count in range(5)]
    # Where a text ends counts, too.
    first, second = " ".join(ALPHABET[:9]), " ".join(ALPHABET[9:18])
    variants += [[first, second], [f"{first} {second}"], [f"{first}{second}"]]
    assert len({Contamination(variant).fingerprint for variant in variants}) == len(variants)


def test_a_question_in_a_novel_is_found_and_nothing_else(shared_data):
    questions = [
        json.loads(line)["question"]
        for line in (shared_data / "gsm8k" / "test.jsonl").read_text().splitlines()
    ]
    sought = Contamination(questions)
    rng = random.Random(4)
    with gzip.open(shared_data / "text" / "novels_val.jsonl.gz", "rt") as file:
        novels = [json.loads(line)["text"] for line in list(file)[:20]]
    for novel in novels:
        assert sought.hit(novel) is naive_hit(questions, novel) is None
        place = rng.randrange(len(novel))
        question = rng.choice(questions)
        text = f"{novel[:place]}\n{question}\n{novel[place:]}"
        assert sought.hit(text) == " ".join(words_of(question)[:13])
