"""Generating texts: sampling, a batch of texts id by id, and one text by drafts.

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
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention


class Sampler:
    def __init__(self, sampling: Sampling, ids: int) -> None:
        """`ids` is the tokenizer's number of ids; further rows of the vocabulary have
        probability 0."""
        self._sampling = sampling
        self._ids = ids

    def probabilities(self, logits_BV: torch.Tensor) -> torch.Tensor:
        """Maps logits to probabilities (B, V), in float32, or float64 for float64
        logits."""
        exact = torch.promote_types(logits_BV.dtype, torch.float32)
        logits_BI = logits_BV[:, : self._ids].to(exact)
        if self._sampling.greedy:
            probs_BI = _all_to_likeliest(logits_BI)
        else:
            scaled_BI = logits_BI / self._sampling.temperature
            probs_BI = self._filtered(scaled_BI).softmax(-1)

        missing = logits_BV.shape[-1] - probs_BI.shape[-1]
        return F.pad(probs_BI, (0, missing))

    def draw(
        self, probs_BV: torch.Tensor, generators: Sequence[torch.Generator]
    ) -> torch.Tensor:
        """Draws an id for each sequence, (B,), on the CPU.

        Each sequence takes one number from its own generator, on the CPU, so that its
        id does not depend on the batch nor, except for rounding, on the device.

        Raises:
            RunFailed: if probabilities are nan or infinite.
        """
        numbers = [
            torch.rand((), dtype=torch.float64, generator=generator)
            for generator in generators
        ]
        numbers_B1 = torch.stack(numbers)[:, None].to(probs_BV.device)

        cumulative_BV = probs_BV.double().cumsum(-1)
        total_B1 = cumulative_BV[:, -1:].contiguous()
        drawn_B1 = numbers_B1 * total_B1
        ids_B1 = torch.searchsorted(cumulative_BV, drawn_B1, right=True)
        # If rounding makes the number the whole sum, the last id with any probability
        # is taken.
        ids_B1 = ids_B1.minimum(torch.searchsorted(cumulative_BV, total_B1))

        ids_B = torch.where(total_B1.isfinite(), ids_B1, -1)[:, 0].cpu()
        if (ids_B < 0).any():
            raise RunFailed("the model's logits are nan or infinite")
        return ids_B

    def _filtered(self, logits_BI: torch.Tensor) -> torch.Tensor:
        """Applies top_k and top_p: the logits of excluded ids become -inf."""
        sampling = self._sampling
        if sampling.top_k:
            k = min(sampling.top_k, logits_BI.shape[-1])
            least_B1 = logits_BI.topk(k).values[:, -1:]
            logits_BI = logits_BI.masked_fill(logits_BI < least_B1, -torch.inf)

        if sampling.top_p < 1:
            sorted_BI, order_BI = logits_BI.sort()
            cumulative_BI = sorted_BI.softmax(-1).cumsum(-1)
            excluded_BI = cumulative_BI <= 1 - sampling.top_p
            excluded_BI[:, -1] = False
            excluded_BI = excluded_BI.scatter(1, order_BI, excluded_BI)
            logits_BI = logits_BI.masked_fill(excluded_BI, -torch.inf)

        return logits_BI


def _all_to_likeliest(logits_BI: torch.Tensor) -> torch.Tensor:
    """Probability 1 for the likeliest id, (B, I); nan where a logit is nan."""
    n_ids = logits_BI.shape[-1]
    likeliest_B = logits_BI.argmax(-1)
    probs_BI = F.one_hot(likeliest_B, n_ids).to(logits_BI.dtype)

    # argmax takes nan for the largest: `draw` must see it.
    has_nan_B1 = logits_BI.isnan().any(-1, keepdim=True)
    return probs_BI.masked_fill(has_nan_B1, torch.nan)


EndReason = Literal["eot", "stop", "length", "window"]
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
        most = self.max_new_tokens
        new_tokens = [min(most, self.window - length + 1) for length in lengths]
        # The last id of a text is not read again, so that it needs no position.
        return max(lengths) + max(new_tokens) - 1


@dataclass(frozen=True)
class NewToken:
    """A token of a text, and the text that it makes certain."""

    row: int  # place of the prompt in its batch
    id: int
    text: str  # the certain part; a later id may be needed to complete a character
    end: EndReason | None = None  # the reason, if the text ends with this id


class TextStream:
    """Returns text as soon as it is certain; the pieces add up to the text before a
    stop."""

    def __init__(
        self, token_values: Sequence[bytes], stops: Sequence[str] = ()
    ) -> None:
        """`token_values` are the bytes of each id. A text ends before the first of
        `stops`."""
        self._token_values = token_values
        self._stops = stops
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._uncertain = ""
        self.stopped = False  # whether a stop was found: then all text was returned

    def push(self, id: int) -> str:
        """Takes the next id and returns the text that has become certain.

        Bytes that may be part of an unfinished character, and characters that may be
        part of an unfinished stop, wait for the next ids.
        """
        return self._take(self._decoder.decode(self._token_values[id]))

    def finish(self) -> str:
        """Returns the uncertain text; half a character becomes U+FFFD."""
        text = self._take(self._decoder.decode(b"", final=True))
        text += self._uncertain
        self._uncertain = ""
        return text

    def _take(self, text: str) -> str:
        if self.stopped:
            return ""

        text = self._uncertain + text
        places = [text.find(stop) for stop in self._stops if stop in text]
        if places:
            self.stopped = True
            self._uncertain = ""
            return text[: min(places)]

        begun = max((_begun(text, stop) for stop in self._stops), default=0)
        certain = len(text) - begun
        self._uncertain = text[certain:]
        return text[:certain]


def _begun(text: str, stop: str) -> int:
    """The number of characters at the end of a text that begin a stop."""
    most = min(len(text), len(stop) - 1)
    for count in range(most, 0, -1):
        if text.endswith(stop[:count]):
            return count
    return 0


Select = Callable[[Sequence[int]], object]
"""Keeps the texts at these places of a batch."""


def generate_batch(
    next_logits: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    prompts: Sequence[Sequence[int]],
    sampler: Sampler,
    generators: Sequence[torch.Generator],
    token_values: Sequence[bytes],
    limits: Limits,
    select: Select | None = None,
) -> Iterator[NewToken]:
    """Yields each new token of each text; each prompt has an id, and fits the window.

    `next_logits` maps new ids (B, T) and a mask, False at padding, (B, T) to the logits
    of the next id, (B, V), and remembers earlier ids. Each text has a generator;
    prompts beyond the generators only fill the batch. Once half of a batch has ended,
    `select` is called with the places of the other texts; without `select`, ended texts
    stay in the batch.
    """
    streams = [TextStream(token_values, limits.stops) for _ in prompts]
    n_new = [0] * len(prompts)  # ids of each text
    batch = list(range(len(prompts)))  # the row of each place
    unfinished = set(range(len(generators)))

    def unfinished_places() -> list[int]:
        return [place for place, row in enumerate(batch) if row in unfinished]

    ids_BT, mask_BT = _pad_left(prompts)
    while unfinished:
        places = unfinished_places()
        rows = [batch[place] for place in places]
        logits_BV = next_logits(ids_BT, mask_BT)
        probs_BV = sampler.probabilities(logits_BV[places])
        drawn = sampler.draw(probs_BV, [generators[row] for row in rows])

        for row, id in zip(rows, drawn.tolist(), strict=True):
            n_new[row] += 1
            n_read = len(prompts[row]) + n_new[row] - 1
            text, end = add_token(streams[row], id, n_new[row], n_read, limits)
            if end is not None:
                unfinished.remove(row)
            yield NewToken(row, id, text, end)

        # Where a text has ended, any id is read.
        ids_BT = torch.zeros(len(batch), 1, dtype=torch.long)
        ids_BT[places] = drawn[:, None]
        if select is not None and 0 < 2 * len(unfinished) <= len(batch):
            places = unfinished_places()
            select(places)
            batch = [batch[place] for place in places]
            ids_BT = ids_BT[places]
        mask_BT = torch.ones_like(ids_BT, dtype=torch.bool)


def _pad_left(prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids (B, T), and a mask that is False at padding; no token looks at padding."""
    lengths = [len(ids) for ids in prompts]
    longest = max(lengths)
    padded = [[*[0] * (longest - len(ids)), *ids] for ids in prompts]
    first_B1 = longest - torch.tensor(lengths)[:, None]
    return torch.tensor(padded), torch.arange(longest) >= first_B1


def add_token(
    stream: TextStream, id: int, new: int, read: int, limits: Limits
) -> tuple[str, EndReason | None]:
    """The text that an id makes certain, and the reason if the text ends.

    `new` counts the new ids with this one, `read` the ids before it.
    """
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


def batches_by_length(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Indices of prompts by batch, longest first."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def draft_of(config: ModelConfig) -> Intervention:
    """The intervention of a model's drafts: one step of every loop, so that a dual
    layer runs 2 of its K + 1 sublayers, and one repetition of a core."""
    return Intervention(
        loops=1 if config.deep_layers else None,
        core_loops=None if config.core is None else 1,
    )


@dataclass
class DraftCounts:
    """Numbers of drafted ids."""

    ids: int = 0
    accepted: int = 0


def generate_with_drafts(
    decoder: Decoder,
    prompt: Sequence[int],
    sampler: Sampler,
    generator: torch.Generator,
    token_values: Sequence[bytes],
    limits: Limits,
    length: int,
    counts: DraftCounts,
) -> Iterator[NewToken]:
    """Yields each new token of one text, by drafts of `length` ids at most.

    Adds to `counts`. The decoder has begun, and drafts as `draft_of`.
    """
    stream = TextStream(token_values, limits.stops)
    ids = list(prompt)
    if len(ids) > 1:
        decoder.logits(torch.tensor([ids[:-1]]), last=1)

    # Here all ids of the text but the last have been read.
    end: EndReason | None = None
    while end is None:
        n_read = len(ids) - 1
        # A draft and the id after it must stay within the limit of the text.
        n_new = len(ids) - len(prompt)
        left = min(limits.max_new_tokens - n_new, limits.window + 1 - len(ids))

        # If nothing was read before, there is nothing to rewind to.
        most = min(length, left - 1) if n_read else 0
        drafted, q_NV = write_draft(decoder, ids[-1], most, sampler, generator)

        decoder.rewind(n_read)
        logits_NV = decoder.logits(torch.tensor([[ids[-1], *drafted]]))[0]
        p_NV = sampler.probabilities(logits_NV)
        kept, next_id = verify_draft(drafted, q_NV, p_NV, sampler, generator)
        decoder.rewind(n_read + 1 + kept)
        counts.ids += len(drafted)
        counts.accepted += kept

        for id in [*drafted[:kept], next_id]:
            ids.append(id)
            n_new = len(ids) - len(prompt)
            text, end = add_token(stream, id, n_new, len(ids) - 1, limits)
            yield NewToken(0, id, text, end)
            if end is not None:
                break


def write_draft(
    decoder: Decoder,
    last: int,
    length: int,
    sampler: Sampler,
    generator: torch.Generator,
) -> tuple[list[int], list[torch.Tensor]]:
    """Drafts the N ids that follow the `last` one; returns them, and the probabilities
    (V,) of each draw."""
    drafted = []
    q_NV = []
    for _ in range(length):
        logits_11V = decoder.logits(torch.tensor([[last]]), drafting=True)
        q_1V = sampler.probabilities(logits_11V[:, -1])
        last = int(sampler.draw(q_1V, [generator]))
        drafted.append(last)
        q_NV.append(q_1V[0])

    return drafted, q_NV


def verify_draft(
    drafted: Sequence[int],
    q_NV: Sequence[torch.Tensor],
    p_NV: torch.Tensor,
    sampler: Sampler,
    generator: torch.Generator,
) -> tuple[int, int]:
    """The number of drafted ids that are kept, of N, and the id that follows them.

    `q_NV` are the probabilities of the drafts, `p_NV` (N + 1, V) those of the model.
    """
    draws = zip(drafted, q_NV, p_NV[:-1], strict=True)
    for place, (id, q_V, p_V) in enumerate(draws):
        p = float(p_V[id])
        q = float(q_V[id])
        chance = torch.rand((), dtype=torch.float64, generator=generator)
        is_kept = bool(chance * q < p)  # False if p is nan
        if is_kept:
            continue

        rest_V = (p_V - q_V).clamp(min=0)
        rounding_left_nothing = float(rest_V.sum()) == 0
        if rounding_left_nothing:
            rest_V = p_V
        return place, int(sampler.draw(rest_V[None], [generator]))

    return len(drafted), int(sampler.draw(p_NV[-1:], [generator]))
