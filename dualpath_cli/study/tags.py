"""The parts of speech of a source's tokens, and masks of the tokens that a class chooses.

Shapes: a list over windows, each entry (T,) over the tokens of the window.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from dualpath_cli.study.parts_of_speech import Tagger
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training.data.windows import Tokens

Tags = list[npt.NDArray[np.str_]]
Masks = list[npt.NDArray[np.bool_]]


def tag(ids: Sequence[Tokens], tokenizer: Tokenizer, tagger: Tagger) -> Tags:
    """Returns the part of speech of each token; end-of-text has none, the empty string."""
    values = tokenizer.token_values()
    values[tokenizer.eot_id] = b"\n\n"  # keeps the words of two documents apart
    tags = tagger.tags([values[id] for id in window.tolist()] for window in ids)
    return [
        np.where(window == tokenizer.eot_id, "", np.array(window_tags, dtype=np.str_))
        for window, window_tags in zip(ids, tags, strict=True)
    ]


def members_of(tags: Tags, upos: Sequence[str]) -> Masks:
    return [np.isin(window, upos) for window in tags]


def count(masks: Iterable[npt.NDArray[np.bool_]]) -> int:
    return sum(int(mask.sum()) for mask in masks)
