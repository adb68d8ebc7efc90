"""Cleaning: one way to write each text, and nothing lost but how it was written."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from data_prep.documents.clean import clean, problem

# Much of what cleaning is about, and what could hide it: marks that compose, jamo, singletons.
TEXTS = st.text(
    st.one_of(
        st.sampled_from("\r\n\0\ufeff e\u0301\u0323\u1100\u1161\u212b\u0958"), st.characters()
    )
)


def by_hand(text: str) -> str:
    """Cleans one character at a time."""
    kept: list[str] = []
    text = "".join(character for character in text if character != "\0")
    for place, character in enumerate(text):
        if character == "\r":
            if text[place + 1 : place + 2] != "\n":
                kept.append("\n")
        elif character != "\ufeff" or kept:
            kept.append(character)
    return unicodedata.normalize("NFC", "".join(kept))


@given(TEXTS)
@example("\r\0\n")
@example("\0\ufeff\0\ufeff\u0301")
@example("\ufeffa\ufeffb")  # one inside a text stays
@example("\ufb01 \u00b2")  # compatible characters stay apart
def test_cleaning_does_what_it_says(text):
    assert clean(text) == by_hand(text)


@given(TEXTS)
def test_cleaning_a_cleaned_text_changes_nothing(text):
    assert clean(clean(text)) == clean(text)


@pytest.mark.parametrize("text", ["", " ", "\n\t\n", "\u3000\u2028"])
@pytest.mark.parametrize("min_chars", [0, 1, 100])
def test_a_text_of_whitespace_is_empty(text, min_chars):
    assert problem(text, min_chars) == "empty"


@given(st.text(st.characters(categories=["L"]), min_size=1), st.integers(0, 20))
def test_a_text_is_too_short_with_fewer_characters(text, min_chars):
    assert problem(text, min_chars) == ("too short" if len(text) < min_chars else None)
