"""Self-speculation: the model drafts with one loop, and verifies what it drafted with all of them.

Texts are distributed as without drafts: a drafted id is kept with probability min(1, p / q), where
p is its probability with all loops and q with one; the first that is not kept is drawn again from
max(0, p - q) (Leviathan et al. 2023, arXiv 2211.17192).

Shapes: N ids of a draft, V rows of the vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from dualpath_cli.decoding.decoder import Decoder
from dualpath_cli.decoding.sampler import Sampler
from dualpath_cli.decoding.writing import Limits, Piece, TextStream, step
from dualpath_cli.intervention import Intervention

DRAFT = Intervention(loops=1)
"""The intervention under which drafts are written: of K + 1 sublayers a layer it takes two."""


@dataclass
class Drafts:
    """Counts of drafted ids."""

    ids: int = 0
    accepted: int = 0


def write_on_drafts(
    decoder: Decoder,
    prompt: Sequence[int],
    sampler: Sampler,
    generator: torch.Generator,
    token_values: Sequence[bytes],
    limits: Limits,
    length: int,
    drafts: Drafts,
) -> Iterator[Piece]:
    """Yields a piece for each new id of one text, by drafts of `length` ids at most.

    `drafts` counts them. The decoder has begun, and has `DRAFT` for its drafts.
    """
    text, stream = list(prompt), TextStream(token_values, limits.stops)
    end = None
    while end is None:
        # A draft and the id after it must not go beyond the last id that may be written.
        left = min(limits.max_new_tokens - (len(text) - len(prompt)), limits.window + 1 - len(text))
        for id in draw_some(decoder, text, sampler, generator, min(length, left - 1), drafts):
            text.append(id)
            piece, end = step(stream, id, len(text) - len(prompt), len(text) - 1, limits)
            yield Piece(0, id, piece, end)
            if end is not None:
                break


def draw_some(
    decoder: Decoder,
    text: Sequence[int],
    sampler: Sampler,
    generator: torch.Generator,
    length: int,
    drafts: Drafts,
) -> list[int]:
    """Draws from one to `length` + 1 ids that follow a text, of which some are drafted.

    Of the text the decoder has read all but the last id, or nothing.
    """
    if decoder.length == 0 and len(text) > 1:
        decoder.logits(torch.tensor([text[:-1]]), last=1)
    read = len(text) - 1
    length = length if read else 0  # with nothing read, there is nothing to come back to
    drafted, q_NV = _draft(decoder, text, sampler, generator, length)
    decoder.rewind(read)
    logits_NV = decoder.logits(torch.tensor([[text[-1], *drafted]]))[0]
    texts = [[*text, *drafted[:count]] for count in range(len(drafted) + 1)]
    p_NV = sampler.probabilities(logits_NV, texts)
    kept, drawn = verified(drafted, q_NV, p_NV, sampler, generator)
    drafts.ids += len(drafted)
    drafts.accepted += kept
    decoder.rewind(read + 1 + kept)
    return [*drafted[:kept], drawn]


def _draft(
    decoder: Decoder,
    text: Sequence[int],
    sampler: Sampler,
    generator: torch.Generator,
    length: int,
) -> tuple[list[int], list[torch.Tensor]]:
    """Ids that follow a text by one loop, and the probabilities (V,) that each was drawn from."""
    drafted: list[int] = []
    q_NV: list[torch.Tensor] = []
    for _ in range(length):
        ids = torch.tensor([[[*text, *drafted][-1]]])
        q_1V = sampler.probabilities(decoder.logits(ids, drafting=True)[:, -1], [[*text, *drafted]])
        drafted.append(int(sampler.draw(q_1V, [generator])))
        q_NV.append(q_1V[0])
    return drafted, q_NV


def verified(
    drafted: Sequence[int],
    q_NV: Sequence[torch.Tensor],
    p_NV: torch.Tensor,
    sampler: Sampler,
    generator: torch.Generator,
) -> tuple[int, int]:
    """How many of N drafted ids are kept, and the id that follows them.

    `q_NV` are the probabilities that they were drawn from, `p_NV` (N + 1, V) the model's own.
    """
    for place, (id, q_V, p_V) in enumerate(zip(drafted, q_NV, p_NV[:-1], strict=True)):
        chance = torch.rand((), dtype=torch.float64, generator=generator)
        if not chance * float(q_V[id]) < float(p_V[id]):  # also where p is no number
            rest_V = (p_V - q_V).clamp(min=0)
            rest_V = p_V if float(rest_V.sum()) == 0 else rest_V  # where rounding left nothing
            return place, int(sampler.draw(rest_V[None], [generator]))
    return len(drafted), int(sampler.draw(p_NV[-1:], [generator]))
