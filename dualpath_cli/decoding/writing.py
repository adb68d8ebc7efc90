"""Writing texts: sampling, a batch of texts id by id, and one text by drafts.

In self-speculation the model drafts with one loop, and verifies the draft with all
loops. Texts have the same distribution as without drafts: a drafted id is kept with
probability min(1, p / q), where p is its probability with all loops and q with one; the
first rejected id is drawn again from max(0, p - q) (Leviathan et al. 2023, arXiv
2211.17192).

Shapes: B prompts, T new positions, V rows of the vocabulary, I ids of the tokenizer, N
ids of a draft.
"""

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from dualpath_cli.base.errors import RunFailed
from dualpath_cli.decoding.decoder import Decoder
from dualpath_cli.decoding.options import Sampling
from dualpath_cli.spec.intervention import Intervention


class Sampler:
    def __init__(self, sampling: Sampling, ids: int) -> None:
        """`ids` is the tokenizer's number of ids; other rows of the vocabulary get
        nothing."""
        self._sampling, self._ids = sampling, ids

    def probabilities(self, logits_BV: torch.Tensor) -> torch.Tensor:
        """Maps logits to probabilities (B, V), in float32, or float64 for float64
        logits."""
        sampling, vocabulary = self._sampling, logits_BV.shape[-1]
        exact = torch.promote_types(logits_BV.dtype, torch.float32)
        logits_BI = logits_BV[:, : self._ids].to(exact)
        if sampling.greedy:
            probs_BI = F.one_hot(logits_BI.argmax(-1), logits_BI.shape[-1]).to(exact)
            probs_BI = probs_BI.masked_fill(
                logits_BI.isnan().any(-1, keepdim=True), torch.nan
            )
        else:
            probs_BI = self._filtered(logits_BI / sampling.temperature).softmax(-1)
        return F.pad(probs_BI, (0, vocabulary - probs_BI.shape[-1]))

    def draw(
        self, probs_BV: torch.Tensor, generators: Sequence[torch.Generator]
    ) -> torch.Tensor:
        """Draws an id for each sequence, (B,), on the CPU.

        Each sequence takes one number from its own generator, on the CPU, so that its
        id does not depend on the batch nor, except for rounding, on the device.

        Raises:
            RunFailed: if probabilities are nan or infinite.
        """
        numbers_B = torch.stack(
            [torch.rand((), dtype=torch.float64, generator=each) for each in generators]
        )
        cumulative_BV = probs_BV.double().cumsum(-1)
        all_B1 = cumulative_BV[:, -1:].contiguous()
        wanted_B1 = numbers_B[:, None].to(probs_BV.device) * all_B1
        ids_B1 = torch.searchsorted(cumulative_BV, wanted_B1, right=True)
        # If rounding makes the number the whole sum, the last id with any probability
        # is taken.
        ids_B1 = ids_B1.minimum(torch.searchsorted(cumulative_BV, all_B1))
        ids_B = torch.where(all_B1.isfinite(), ids_B1, -1)[:, 0].cpu()
        if (ids_B < 0).any():
            raise RunFailed("the model's logits are nan or infinite")
        return ids_B

    def _filtered(self, logits_BI: torch.Tensor) -> torch.Tensor:
        """Applies top_k and top_p: the logits of excluded ids become -inf."""
        sampling = self._sampling
        if sampling.top_k:
            least_B1 = logits_BI.topk(min(sampling.top_k, logits_BI.shape[-1])).values[
                :, -1:
            ]
            logits_BI = logits_BI.masked_fill(logits_BI < least_B1, -torch.inf)
        if sampling.top_p < 1:
            sorted_BI, order_BI = logits_BI.sort()
            out_BI = sorted_BI.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
            out_BI[:, -1] = False
            logits_BI = logits_BI.masked_fill(
                out_BI.scatter(1, order_BI, out_BI), -torch.inf
            )
        return logits_BI


End = Literal["eot", "stop", "length", "window"]
"""The reason of a text's end: the model wrote end-of-text or a stop; the text has the
requested number of ids; or it fills the model's window."""


@dataclass(frozen=True)
class Limits:
    max_new_tokens: int
    window: int  # the most positions that the model reads, prompt included
    eot_id: int  # end-of-text
    stops: tuple[str, ...] = ()  # strings that end a text, and are not part of it

    def positions(self, lengths: Sequence[int]) -> int:
        """The most positions that a batch of prompts of these lengths takes, with
        padding."""
        # The last id of a text is not read again, so that it needs no position.
        steps = max(
            min(self.max_new_tokens, self.window - length + 1) for length in lengths
        )
        return max(lengths) + steps - 1


@dataclass(frozen=True)
class Addition:
    row: int  # place of the prompt in its batch
    id: int
    text: str  # the certain part; a later id may be needed to complete a character
    end: End | None = None  # the reason, if the text ends with this id


class TextStream:
    """Returns text as soon as it is certain; the pieces add up to the text before a
    stop."""

    def __init__(
        self, token_values: Sequence[bytes], stops: Sequence[str] = ()
    ) -> None:
        """`token_values` are the bytes of each id. A text ends before the first of
        `stops`."""
        self._token_values, self._stops = token_values, stops
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stopped = False  # whether a stop was found: then all text was returned

    def push(self, id: int) -> str:
        """Takes the next id and returns the text that has become certain.

        Bytes that may be part of an unfinished character, and characters that may be
        part of an unfinished stop, are held back.
        """
        return self._take(self._decoder.decode(self._token_values[id]))

    def finish(self) -> str:
        """Returns the text held back; half a character becomes U+FFFD."""
        text = self._take(self._decoder.decode(b"", final=True))
        rest, self._held = self._held, ""
        return text + rest

    def _take(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        found = [text.find(stop) for stop in self._stops if stop in text]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        certain = len(text) - max(
            (_begun(text, stop) for stop in self._stops), default=0
        )
        self._held = text[certain:]
        return text[:certain]


def _begun(text: str, stop: str) -> int:
    """The number of characters at the end of a text that begin a stop."""
    most = min(len(text), len(stop) - 1)
    return next(
        (count for count in range(most, 0, -1) if text.endswith(stop[:count])), 0
    )


def write_on(
    next_logits: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    prompts: Sequence[Sequence[int]],
    sampler: Sampler,
    generators: Sequence[torch.Generator],
    token_values: Sequence[bytes],
    limits: Limits,
    select: Callable[[Sequence[int]], object] | None = None,
) -> Iterator[Addition]:
    """Yields a piece for each new id of each text; each prompt has an id, and fits the
    window.

    `next_logits` maps new ids (B, T) and a mask, False at padding, (B, T) to the logits
    of the next id, (B, V), and remembers earlier ids. Each text has a generator;
    prompts beyond the generators only fill the batch. Once half of a batch has ended,
    `select` is called with the places of the other texts; without `select`, ended texts
    stay in the batch.
    """
    new = [0] * len(prompts)  # ids of each text
    streams = [TextStream(token_values, limits.stops) for _ in prompts]
    read = list(range(len(prompts)))
    going = set(range(len(generators)))
    # Padded on the left with any id: no token looks at padding.
    longest, lengths_B1 = (
        max(map(len, prompts)),
        torch.tensor([[len(ids)] for ids in prompts]),
    )
    ids_BT = torch.tensor([[*[0] * (longest - len(ids)), *ids] for ids in prompts])
    mask_BT = torch.arange(longest) >= longest - lengths_B1
    while going:
        places = [place for place, row in enumerate(read) if row in going]
        rows = [read[place] for place in places]
        probs_BV = sampler.probabilities(next_logits(ids_BT, mask_BT)[places])
        drawn = sampler.draw(probs_BV, [generators[row] for row in rows])
        # any id where a text has ended
        ids_BT = torch.zeros(len(read), 1, dtype=torch.long)
        ids_BT[places] = drawn[:, None]
        for row, id in zip(rows, drawn.tolist(), strict=True):
            new[row] += 1
            length = len(prompts[row]) + new[row] - 1
            piece, end = step(streams[row], id, new[row], length, limits)
            if end is not None:
                going.remove(row)
            yield Addition(row, id, piece, end)
        if select is not None and 0 < 2 * len(going) <= len(read):
            places = [place for place, row in enumerate(read) if row in going]
            select(places)
            read, ids_BT = [read[place] for place in places], ids_BT[places]
        mask_BT = torch.ones_like(ids_BT, dtype=torch.bool)


def step(
    stream: TextStream, id: int, new: int, read: int, limits: Limits
) -> tuple[str, End | None]:
    """The text added by an id (`new` ids with it), and the reason if the text ends."""
    if id == limits.eot_id:
        return stream.finish(), "eot"
    text = stream.push(id)
    if stream.stopped:
        return text, "stop"
    if new == limits.max_new_tokens:
        return text + stream.finish(), "length"
    if read == limits.window:
        return text + stream.finish(), "window"
    return text, None


def batches(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Indices of prompts by batch, longest first: the first batch shows the most
    memory."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


DRAFT = Intervention(loops=1)
"""The intervention of drafts: runs 2 of the K + 1 sublayers in a layer."""


@dataclass
class Drafts:
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
) -> Iterator[Addition]:
    """Yields a piece for each new id of one text, by drafts of `length` ids at most.

    `drafts` counts them. The decoder has begun, and has `DRAFT` for its drafts.
    """
    text, stream, end = list(prompt), TextStream(token_values, limits.stops), None
    if len(text) > 1:
        decoder.logits(torch.tensor([text[:-1]]), last=1)
    while end is None:  # all ids of the text but the last have been read
        read = len(text) - 1
        # A draft and the id after it must stay within the limit of the text.
        left = min(
            limits.max_new_tokens - (len(text) - len(prompt)),
            limits.window + 1 - len(text),
        )
        drafted: list[int] = []
        q_NV: list[torch.Tensor] = []  # probabilities (V,) of each draw
        # If nothing was read before, there is nothing to rewind to.
        for _ in range(min(length, left - 1) if read else 0):
            last = drafted[-1] if drafted else text[-1]
            logits_1V = decoder.logits(torch.tensor([[last]]), drafting=True)[:, -1]
            q_1V = sampler.probabilities(logits_1V)
            drafted.append(int(sampler.draw(q_1V, [generator])))
            q_NV.append(q_1V[0])
        decoder.rewind(read)
        logits_NV = decoder.logits(torch.tensor([[text[-1], *drafted]]))[0]
        p_NV = sampler.probabilities(logits_NV)
        kept, drawn = verified(drafted, q_NV, p_NV, sampler, generator)
        drafts.ids += len(drafted)
        drafts.accepted += kept
        decoder.rewind(read + 1 + kept)
        for id in [*drafted[:kept], drawn]:
            text.append(id)
            piece, end = step(
                stream, id, len(text) - len(prompt), len(text) - 1, limits
            )
            yield Addition(0, id, piece, end)
            if end is not None:
                break


def verified(
    drafted: Sequence[int],
    q_NV: Sequence[torch.Tensor],
    p_NV: torch.Tensor,
    sampler: Sampler,
    generator: torch.Generator,
) -> tuple[int, int]:
    """The number of drafted ids that are kept, of N, and the id that follows them.

    `q_NV` are the probabilities of the drafts, `p_NV` (N + 1, V) those of the model.
    """
    for place, (id, q_V, p_V) in enumerate(zip(drafted, q_NV, p_NV[:-1], strict=True)):
        chance = torch.rand((), dtype=torch.float64, generator=generator)
        if not chance * float(q_V[id]) < float(p_V[id]):  # also if p is nan
            rest_V = (p_V - q_V).clamp(min=0)
            # if rounding left nothing
            rest_V = p_V if float(rest_V.sum()) == 0 else rest_V
            return place, int(sampler.draw(rest_V[None], [generator]))
    return len(drafted), int(sampler.draw(p_NV[-1:], [generator]))
