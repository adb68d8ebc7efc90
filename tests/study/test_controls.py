"""Random tokens beside a class: as many, where and in runs as long as the class's own."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.base.errors import UserError
from dualpath_cli.study.controls import Masks, Match, members_of, random_others, tag
from tests.data.small_tokenizer import tokenizer_with

NUMBERS = ("NUM", "SYM")
tags_of_windows = st.lists(
    st.lists(st.sampled_from(["", "NUM", "NOUN", "VERB", "ADJ"]), min_size=1, max_size=20),
    min_size=1,
    max_size=8,
)


def runs_of(masks: Masks) -> Counter[tuple[int, int]]:
    """How often there is a run of some start and length, over all windows."""
    runs: Counter[tuple[int, int]] = Counter()
    for mask in masks:
        start = None
        for position, flag in enumerate([*mask.tolist(), False]):
            if flag and start is None:
                start = position
            if not flag and start is not None:
                runs[start, position - start] += 1
                start = None
    return runs


@given(tags_of_windows, st.integers(0, 3))
def test_random_others_are_as_many_and_never_members_or_end_of_text(windows, seed):
    tags = [np.array(window, dtype=np.str_) for window in windows]
    members = members_of(tags, NUMBERS)
    wanted = sum(mask.sum() for mask in members)
    others = sum((window != "").sum() for window in tags) - wanted
    if others < wanted:
        with pytest.raises(UserError, match=r"class 'numbers' has \d+ tokens, more than the"):
            random_others(tags, members, seed, "numbers")
        return
    drawn, match = random_others(tags, members, seed, "numbers")
    assert [mask.shape for mask in drawn] == [mask.shape for mask in members]
    assert sum(mask.sum() for mask in drawn) == wanted
    for mask, member, window in zip(drawn, members, tags, strict=True):
        assert not (mask & member).any()
        assert not (mask & (window == "")).any()
    again, _ = random_others(tags, members, seed, "numbers")
    assert all(np.array_equal(a, b) for a, b in zip(drawn, again, strict=True))
    for runs, mean in ((runs_of(members), match.run), (runs_of(drawn), match.random_run)):
        lengths = [length for (_, length), times in runs.items() for _ in range(times)]
        assert mean == pytest.approx(np.mean(lengths) if lengths else np.nan, nan_ok=True)


@given(tags_of_windows, st.integers(0, 3))
def test_where_there_is_room_runs_keep_their_position_and_length(windows, seed):
    """Beside each window one without members for each of them."""
    room = [["NOUN"] * 20 for _ in range(sum(map(len, windows)))]
    tags = [np.array(window, dtype=np.str_) for window in windows + room]
    members = members_of(tags, NUMBERS)
    drawn, match = random_others(tags, members, seed, "numbers")
    assert runs_of(drawn) == runs_of(members)
    if any(mask.any() for mask in members):
        assert match == Match(1.0, 0.0, match.run, match.run)


def test_without_room_a_run_moves_and_then_is_cut():
    # The only others begin at position 4: the pair moves there from position 1.
    tags = [np.array(["NOUN", "NUM", "NUM", "", "NOUN", "NOUN"])]
    (drawn,), match = random_others(tags, members_of(tags, NUMBERS), 0, "numbers")
    assert drawn.tolist() == [False] * 4 + [True] * 2
    assert match == Match(0.0, 3.0, 2.0, 2.0)
    tags = [np.array(["NOUN", "NUM", "NUM", "", "NOUN"])]
    (drawn,), match = random_others(tags, members_of(tags, NUMBERS), 0, "numbers")
    assert drawn.tolist() == [True, False, False, False, True]
    assert (match.run, match.random_run) == (2.0, 1.0)


def test_every_window_is_as_likely_as_any():
    tags = [np.array(["NOUN", "NUM", "NOUN"]), *[np.array(["NOUN"] * 3)] * 4]
    members = members_of(tags, NUMBERS)
    times = np.zeros(5)
    for seed in range(800):
        drawn, _ = random_others(tags, members, seed, "numbers")
        assert [mask[1] for mask in drawn] == [mask.any() for mask in drawn]
        times += [mask.any() for mask in drawn]
    # Binomial(800, 1/4): mean 200, standard deviation 12.2.
    assert times[0] == 0
    assert np.abs(times[1:] - 200).max() < 5 * 12.2


def test_the_seed_and_the_class_decide_which_others():
    tags = [np.array(["NUM", "NOUN"]), *[np.array(["NOUN", "NOUN"])] * 50]
    members = members_of(tags, NUMBERS)
    first, other, named = (
        np.concatenate(random_others(tags, members, seed, name)[0])
        for seed, name in ((0, "numbers"), (1, "numbers"), (0, "figures"))
    )
    assert (first != other).any()
    assert (first != named).any()


def test_input_tokens_are_tagged_and_end_of_text_is_not():
    tokenizer = tokenizer_with(["h e", "l l"])
    hell = tokenizer.encode("hell")
    window = np.array([tokenizer.eot_id, *hell, tokenizer.eot_id, *tokenizer.encode("hello")])

    class Fake:
        def tags(self, windows):
            for values in windows:
                # Words of two documents do not touch.
                assert b"".join(values) == b"\n\nhell\n\nhell"
                yield [value.decode().upper() for value in values]

    tags = tag([window[:-1]], tokenizer, Fake())
    assert [window.tolist() for window in tags] == [["", "HE", "LL", "", "HE", "LL"]]
