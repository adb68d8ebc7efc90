"""Classes of tokens: which tokens of a source are of a class, and as many random others.

Shapes: a list over windows, each entry (T,) over the window's input tokens.
"""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from dualpath_cli.errors import UserError
from dualpath_cli.study.ablation.options import TokenClass
from dualpath_cli.study.parts_of_speech import Tagger
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training.windows import Tokens

Tags = list[npt.NDArray[np.str_]]
Masks = list[npt.NDArray[np.bool_]]


def tag(ids: Sequence[Tokens], tokenizer: Tokenizer, tagger: Tagger) -> Tags:
    """Returns the part of speech of each token; end-of-text has none, the empty string."""
    values = tokenizer.token_values()
    values[tokenizer.eot_id] = b"\n\n"  # keeps the words of two documents apart
    found = tagger.tags([values[id] for id in each.tolist()] for each in ids)
    return [
        np.where(each == tokenizer.eot_id, "", np.array(tags, dtype=np.str_))
        for each, tags in zip(ids, found, strict=True)
    ]


def masks_of(tags: Tags, chosen: TokenClass, random_seed: int | None) -> Masks:
    """Returns which tokens are of a class, or with a seed as many random others."""
    members = of_class(tags, chosen)
    if random_seed is None:
        return members
    return random_others(tags, members, random_seed, chosen.name)


def of_class(tags: Tags, chosen: TokenClass) -> Masks:
    """Returns which tokens are of a class."""
    return [np.isin(each, chosen.upos) for each in tags]


def random_others(tags: Tags, members: Masks, seed: int, name: str) -> Masks:
    """Returns as many tokens as there are members, drawn at random from all others of the source.

    The draw depends on the seed, the class's name and the source's tags. Raises UserError where the
    others are fewer than the members.
    """
    wanted = count(members)
    others = [(each != "") & ~mask for each, mask in zip(tags, members, strict=True)]
    flat = np.concatenate(others)
    places = np.flatnonzero(flat)
    if len(places) < wanted:
        raise UserError(
            f"class '{name}' has {wanted:,} tokens, more than the {len(places):,} others that "
            "random ones could be drawn from; choose fewer parts of speech"
        )
    content = f"{seed}/{name}/{hashlib.sha256(flat.tobytes()).hexdigest()}"
    digest = hashlib.blake2b(content.encode(), digest_size=8).digest()
    draw = np.random.default_rng(int.from_bytes(digest, "big"))
    chosen = np.zeros(len(flat), np.bool_)
    chosen[draw.choice(places, wanted, replace=False)] = True
    ends = np.cumsum([len(mask) for mask in others])
    return np.split(chosen, ends[:-1])


def count(masks: Iterable[npt.NDArray[np.bool_]]) -> int:
    """Returns how many tokens masks choose."""
    return sum(int(mask.sum()) for mask in masks)
