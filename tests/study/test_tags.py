"""Tags of a window's tokens."""

import numpy as np

from dualpath_cli.study.tags import tag
from tests.small_tokenizer import tokenizer_with


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
