"""Where a word ends, in tokens."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.study.routing.reader import MOST_ALIGNED, anchor_positions

VALUES = [b"<eot>", b"a", b"ab", b"b", b" A", "é".encode()[:1], "é".encode()[1:]]
windows = st.lists(st.lists(st.integers(1, 6), max_size=8), min_size=1, max_size=4)


@given(windows, st.sampled_from(["a", "ab", "ba", "é", "bé", " A", "aba", "zz"]))
def test_the_anchor_is_the_token_in_which_the_word_first_ends(ids, word):
    windows = [np.array([0, *window]) for window in ids]
    positions = anchor_positions(windows, range(len(ids)), VALUES, word)
    for window, position in zip(ids, positions, strict=True):
        # Token by token: the first prefix of the text that holds the word.
        prefixes = [b"".join(VALUES[id] for id in window[: n + 1]) for n in range(len(window))]
        holds = [n + 1 for n, prefix in enumerate(prefixes) if word.encode() in prefix]
        assert position == (holds[0] if holds else -1)


def test_no_more_than_a_thousand_sequences_are_aligned_the_first_ones_of_the_source():
    count = MOST_ALIGNED + 5
    numbers = list(reversed(range(count)))
    positions = anchor_positions([np.array([0, 1])] * count, numbers, VALUES, "a")
    assert (positions >= 0).sum() == MOST_ALIGNED
    assert (positions[:5] == -1).all()  # their numbers are the highest
