"""Classes of tokens: members by tag, and exactly as many random others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.errors import UserError
from dualpath_cli.study.classes import TokenClass
from dualpath_cli.study.tags import members_of, random_others, tag
from tests.small_tokenizer import tokenizer_with

NUMBERS = TokenClass("numbers", ("NUM", "SYM"), "wide")


def tags_of(*windows: str) -> list[np.ndarray]:
    return [np.array(window.split(",")) for window in windows]


def test_members_are_the_tokens_with_one_of_the_tags():
    masks = members_of(tags_of(",NUM,VERB,SYM", ",NOUN"), NUMBERS)
    assert [mask.tolist() for mask in masks] == [[False, True, False, True], [False, False]]


@given(
    st.lists(
        st.lists(st.sampled_from(["", "NUM", "NOUN", "VERB", "ADJ"]), min_size=1, max_size=20),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 3),
)
def test_random_others_are_as_many_and_never_members_or_end_of_text(windows, seed):
    tags = [np.array(window, dtype=np.str_) for window in windows]
    members = members_of(tags, NUMBERS)
    wanted = sum(mask.sum() for mask in members)
    others = sum((window != "").sum() for window in tags) - wanted
    if others < wanted:
        with pytest.raises(UserError, match=r"class 'numbers' has \d+ tokens, more than the"):
            random_others(tags, members, seed, "numbers")
        return
    drawn = random_others(tags, members, seed, "numbers")
    assert [mask.shape for mask in drawn] == [mask.shape for mask in members]
    assert sum(mask.sum() for mask in drawn) == wanted
    for mask, member, window in zip(drawn, members, tags, strict=True):
        assert not (mask & member).any()
        assert not (mask & (window == "")).any()
    again = random_others(tags, members, seed, "numbers")
    assert all(np.array_equal(a, b) for a, b in zip(drawn, again, strict=True))


def test_the_seed_and_the_class_decide_which_others():
    tags = tags_of(",".join(["NUM"] * 30 + ["NOUN"] * 300))
    members = members_of(tags, NUMBERS)
    first, other, named = (
        random_others(tags, members, seed, name)[0]
        for seed, name in ((0, "numbers"), (1, "numbers"), (0, "figures"))
    )
    assert (first != other).any()
    assert (first != named).any()


def test_every_other_token_is_as_likely_as_any():
    tags = tags_of(",".join(["NUM"] * 5 + ["NOUN"] * 20))
    members = members_of(tags, NUMBERS)
    drawn = sum(random_others(tags, members, seed, "numbers")[0].astype(int) for seed in range(800))
    # Binomial(800, 1/4): mean 200, standard deviation 12.2.
    assert drawn[5:].min() > 200 - 5 * 12.2
    assert drawn[5:].max() < 200 + 5 * 12.2


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
