"""Tags of tokens, and the members of a class."""

import numpy as np

from dualpath_cli.study.tags import members_of, tag
from tests.small_tokenizer import tokenizer_with

NUMBERS = ("NUM", "SYM")


def tags_of(*windows: str) -> list[np.ndarray]:
    return [np.array(window.split(",")) for window in windows]


def test_members_are_the_tokens_with_one_of_the_tags():
    masks = members_of(tags_of(",NUM,VERB,SYM", ",NOUN"), NUMBERS)
    assert [mask.tolist() for mask in masks] == [[False, True, False, True], [False, False]]


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
