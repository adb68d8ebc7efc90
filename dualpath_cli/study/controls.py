"""The tokens of a class, and random tokens that match its number, runs and positions.

Forcing a token costs more if it has more context, and if its neighbours are forced too.
So random tokens have the positions of the class's tokens within a window, and come in
runs of the same length, each in a window drawn at random.

Shapes: W windows, T positions.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.seeds import seed_from
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.windows import Window
from dualpath_cli.study.parts_of_speech import Tagger

Mask = npt.NDArray[np.bool_]
Tags = list[npt.NDArray[np.str_]]
"""For each window, the part of speech of each token, (T,)."""
Masks = list[Mask]
"""For each window, True at tokens of a class, (T,)."""


def tag_windows(ids: Sequence[Window], tokenizer: Tokenizer, tagger: Tagger) -> Tags:
    """The part of speech of each token; end-of-text has none, the empty string."""
    values = tokenizer.token_values()
    values[tokenizer.eot_id] = b"\n\n"  # separates the words of two documents

    tags = tagger.tags([values[id] for id in window.tolist()] for window in ids)
    return [
        np.where(window == tokenizer.eot_id, "", np.array(window_tags, dtype=np.str_))
        for window, window_tags in zip(ids, tags, strict=True)
    ]


def class_masks(tags: Tags, upos: Sequence[str]) -> Masks:
    """True at tokens of these parts of speech."""
    return [np.isin(window, upos) for window in tags]


def _count_true(masks: Masks) -> int:
    return sum(int(mask.sum()) for mask in masks)


@dataclass(frozen=True)
class MatchQuality:
    """How closely random tokens match their class; nan for a class without tokens."""

    # share of random tokens at the same position as their counterpart
    same_position: float
    moved: float  # mean distance of a random token from this position
    run: float  # mean length of the class's runs of neighbours
    random_run: float  # mean length of the random tokens' runs

    @classmethod
    def mean(cls, several: "list[MatchQuality]") -> "MatchQuality":
        """The mean of each number."""
        means = {}
        for field in fields(cls):
            values = [getattr(quality, field.name) for quality in several]
            means[field.name] = float(np.mean(values))

        return cls(**means)


def matched_random_tokens(
    tags: Tags, members: Masks, seed: int, name: str
) -> tuple[Masks, MatchQuality]:
    """As many random tokens as members, drawn from all other tokens of the source.

    Each run of members gets a random run of the same length at the same position of a
    window; if no such place is left, at a near position, or in two parts. The draw
    depends on the seed, the class's name and the source's tags.
    """
    wanted = _count_true(members)
    others = [
        (window != "") & ~mask for window, mask in zip(tags, members, strict=True)
    ]
    available = _count_true(others)
    if available < wanted:
        raise UserError(
            f"class '{name}' has {wanted:,} tokens, more than the {available:,} other "
            "tokens to draw random ones from; choose fewer parts of speech"
        )

    # A draw of its own for each seed, class and text, whatever was drawn before.
    digest = hashlib.sha256(np.concatenate(others).tobytes()).hexdigest()
    draw = np.random.default_rng(seed_from(seed, name, digest))
    lengths = [len(mask) for mask in members]
    members_TW = _padded(members, lengths)
    free_TW = _padded(others, lengths)
    taken_TW = np.zeros_like(free_TW)
    moved: list[int] = []  # the distance of each random token

    # Longest first, as long runs fit in few places; equal ones in random order.
    runs = [(length, start) for start, length in _runs(members_TW)]
    draw.shuffle(runs)
    runs.sort(key=lambda run: run[0])
    while runs:
        length, start = runs.pop()
        place = _place(free_TW, taken_TW, start, length, draw)
        if place is None:
            # No window has room for the whole run.
            half = length // 2
            runs += [(length - half, start + half), (half, start)]
            continue

        position, window = place
        taken_TW[position : position + length, window] = True
        free_TW[position : position + length, window] = False
        moved += [abs(position - start)] * length

    random = [taken_TW[:length, window] for window, length in enumerate(lengths)]
    if not wanted:
        return random, MatchQuality(*[float("nan")] * 4)
    return random, MatchQuality(
        same_position=float(np.mean(np.equal(moved, 0))),
        moved=float(np.mean(moved)),
        run=_mean_run(members_TW),
        random_run=_mean_run(taken_TW),
    )


def _padded(masks: Masks, lengths: list[int]) -> Mask:
    padded_TW = np.zeros((max(lengths), len(lengths)), np.bool_)
    for window, mask in enumerate(masks):
        padded_TW[: len(mask), window] = mask
    return padded_TW


def _runs(mask_TW: Mask) -> Iterator[tuple[int, int]]:
    """Yields the start and the length of each run of neighbours."""
    edges_WT = np.diff(mask_TW.T.astype(np.int8), axis=1, prepend=0, append=0)
    _, starts = (edges_WT == 1).nonzero()
    _, ends = (edges_WT == -1).nonzero()
    yield from zip(starts.tolist(), (ends - starts).tolist(), strict=True)


def _mean_run(mask_TW: Mask) -> float:
    return float(np.mean([length for _, length in _runs(mask_TW)]))


def _place(
    free_TW: Mask, taken_TW: Mask, start: int, length: int, draw: np.random.Generator
) -> tuple[int, int] | None:
    """Finds a free place for a run, (position, window), nearest to the position
    `start`."""
    last = len(free_TW) - length
    # Further away, and beside another run, only if no near place is free.
    for reach, apart in ((16, True), (last, False)):
        for distance in range(reach + 1):
            for position in {start - distance, start + distance}:
                if not 0 <= position <= last:
                    continue

                fits_W = free_TW[position : position + length].all(0)
                if apart:  # runs that touch would be one longer run
                    if position:
                        fits_W &= ~taken_TW[position - 1]
                    if position < last:
                        fits_W &= ~taken_TW[position + length]
                if fits_W.any():
                    return position, int(draw.choice(np.flatnonzero(fits_W)))

    return None
