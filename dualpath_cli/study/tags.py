"""The parts of speech of a source's tokens, and masks of the tokens that a class chooses.

Shapes: a list over windows, each entry (T,) over the tokens of the window.
"""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from dualpath_cli.errors import UserError
from dualpath_cli.seeds import seed_from
from dualpath_cli.study.classes import TokenClass
from dualpath_cli.study.parts_of_speech import Tagger
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training.windows import Tokens

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


def members_of(tags: Tags, chosen: TokenClass) -> Masks:
    """Returns which tokens are of a class."""
    return [np.isin(window, chosen.upos) for window in tags]


def random_others(tags: Tags, members: Masks, seed: int, name: str) -> Masks:
    """Returns as many tokens as there are members, drawn at random from all others of the source.

    The draw depends on the seed, the class's name and the source's tags. Raises UserError where the
    others are fewer than the members.
    """
    wanted = count(members)
    others = [(window != "") & ~mask for window, mask in zip(tags, members, strict=True)]
    flat = np.concatenate(others)
    places = np.flatnonzero(flat)
    if len(places) < wanted:
        raise UserError(
            f"class '{name}' has {wanted:,} tokens, more than the {len(places):,} others that "
            "random ones could be drawn from; choose fewer parts of speech"
        )
    seed = seed_from(seed, name, hashlib.sha256(flat.tobytes()).hexdigest())
    chosen = np.zeros(len(flat), np.bool_)
    chosen[np.random.default_rng(seed).choice(places, wanted, replace=False)] = True
    ends = np.cumsum([len(mask) for mask in others])
    return np.split(chosen, ends[:-1])


def count(masks: Iterable[npt.NDArray[np.bool_]]) -> int:
    """Returns how many tokens masks choose."""
    return sum(int(mask.sum()) for mask in masks)
