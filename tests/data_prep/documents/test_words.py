"""Words: those that `re` finds, each with a hash of its own."""

import random

from hypothesis import example, given
from hypothesis import strategies as st

from data_prep.documents import words as hashing
from data_prep.documents.words import Words
from tests.data_prep.documents.plain_words import words_of

TEXTS = st.text(st.one_of(st.sampled_from("aAbß_1 .İΣς\u0301\ud800語"), st.characters(codec=None)))


@given(TEXTS)
@example("ΑΣ. Σ İstanbul\x1fé")
def test_words_are_those_of_re(text):
    words = Words(text)
    assert words[:] == words_of(text)
    assert len(words) == len(words.hashes) == len(words_of(text))


@given(st.lists(TEXTS, max_size=8))
def test_words_have_equal_hashes_where_they_are_equal_wherever_they_stand(texts):
    pairs = {
        pair for t in texts for pair in zip(words_of(t), Words(t).hashes.tolist(), strict=True)
    }
    assert len({word for word, _ in pairs}) == len(pairs) == len({hash for _, hash in pairs})


def test_words_of_a_long_text_hash_as_they_do_alone():
    rng = random.Random(0)
    words = ["é", *(f"w{rng.getrandbits(40):x}" for _ in range(30_000))]
    hashes = Words(" ".join(words)).hashes
    places = [0, *rng.sample(range(len(words)), 500), len(words) - 1]
    assert all(hashes[place] == Words(words[place]).hashes[0] for place in places)


def test_a_word_longer_than_what_is_hashed_at_a_time_hashes_by_its_beginning():
    start = "ab" * (hashing._SPAN // 2)
    hashes = Words(f"one {start}x two {start}y {start} {start[:-1]} one").hashes
    assert hashes[1] == hashes[3] == hashes[4] != hashes[5]
    assert hashes[0] == hashes[6] == Words("one").hashes[0]
    assert hashes[2] == Words("two").hashes[0]
    to_the_last, other = Words(f"{start[:-1]}y {start[:-1]}z").hashes
    assert to_the_last != other
