"""Writing a batch of texts, one id of each at a time, until all have ended.

Shapes: B prompts, T new positions, V rows of the vocabulary.
"""

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from dualpath_cli.decoding.sampler import Sampler

NextLogits = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Maps new ids (B, T), and which of them are not padding (B, T), to the logits of the id after the
last, (B, V). It remembers earlier ids."""

End = Literal["eot", "stop", "length", "window"]
"""Why a text ended: the model wrote end-of-text, or a stop; it has as many ids as were asked for;
or it fills the model's window."""


@dataclass(frozen=True)
class Limits:
    """The limits at which a text ends."""

    max_new_tokens: int
    window: int  # positions that a model reads at most, the prompt's included
    eot_id: int | None  # end-of-text; None where it is an id like any other
    stops: tuple[str, ...] = ()  # texts that end a text, and are no part of it

    def positions(self, lengths: Sequence[int]) -> int:
        """The most positions that a batch of prompts of these lengths takes, with padding."""
        # The last id of a text is not read again, so that it needs no place.
        steps = max(min(self.max_new_tokens, self.window - length + 1) for length in lengths)
        return max(lengths) + steps - 1


@dataclass(frozen=True)
class Piece:
    """The addition of a new id to a text."""

    row: int  # place of the prompt in its batch
    id: int
    text: str  # the part that is certain by now; a later id may be needed to complete a character
    end: End | None = None  # why it is the last one, if it is


class TextStream:
    """Gives out text as soon as it is certain; the pieces add up to the text before a stop."""

    def __init__(self, token_values: Sequence[bytes], stops: Sequence[str] = ()) -> None:
        """`token_values` are the bytes of each id. A text ends before the first of `stops`."""
        self._token_values = token_values
        self._stops = stops
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stopped = False
        """Whether a stop has come: then all of the text was given out."""

    def push(self, id: int) -> str:
        """Takes the next id and returns what is certain by now.

        Held back are bytes that later ones may complete to a character, and characters that later
        ones may complete to a stop.
        """
        return self._take(self._decoder.decode(self._token_values[id]))

    def finish(self) -> str:
        """Returns what was held back; half a character becomes U+FFFD."""
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
        certain = len(text) - max((_begun(text, stop) for stop in self._stops), default=0)
        self._held = text[certain:]
        return text[:certain]


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of a text are the beginning of a stop."""
    most = min(len(text), len(stop) - 1)
    return next((count for count in range(most, 0, -1) if text.endswith(stop[:count])), 0)


def write_on(
    next_logits: NextLogits,
    prompts: Sequence[Sequence[int]],
    sampler: Sampler,
    generators: Sequence[torch.Generator],
    token_values: Sequence[bytes],
    limits: Limits,
    select: Callable[[Sequence[int]], object] | None = None,
) -> Iterator[Piece]:
    """Yields a piece for each new id of each text; each prompt has an id, and fits the window.

    There is one generator a text; prompts beyond them only fill the batch up. Once half of a batch
    has ended, `select` is called with the places of those that go on; without it, texts that have
    ended stay in the batch.
    """
    texts = [list(ids) for ids in prompts]
    streams = [TextStream(token_values, limits.stops) for _ in prompts]
    read = list(range(len(prompts)))
    going = set(range(len(generators)))
    ids_BT, mask_BT = filled_up_on_the_left(prompts)
    while going:
        places = [place for place, row in enumerate(read) if row in going]
        rows = [read[place] for place in places]
        logits_BV = next_logits(ids_BT, mask_BT)[places]
        probs_BV = sampler.probabilities(logits_BV, [texts[row] for row in rows])
        drawn = sampler.draw(probs_BV, [generators[row] for row in rows])
        ids_BT = torch.zeros(len(read), 1, dtype=torch.long)  # any id where a text has ended
        ids_BT[places] = drawn[:, None]
        for row, id in zip(rows, drawn.tolist(), strict=True):
            texts[row].append(id)
            new, length = len(texts[row]) - len(prompts[row]), len(texts[row]) - 1
            piece, end = step(streams[row], id, new, length, limits)
            if end is not None:
                going.remove(row)
            yield Piece(row, id, piece, end)
        if select is not None and 0 < 2 * len(going) <= len(read):
            places = [place for place, row in enumerate(read) if row in going]
            select(places)
            read, ids_BT = [read[place] for place in places], ids_BT[places]
        mask_BT = torch.ones_like(ids_BT, dtype=torch.bool)


def step(
    stream: TextStream, id: int, new: int, read: int, limits: Limits
) -> tuple[str, End | None]:
    """The addition of an id to a text that has `new` ids now, and why the text ends, if it does."""
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
    """Numbers of prompts, the longest first: what a batch takes is known at once."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def filled_up_on_the_left(prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts as a tensor (B, T), padded on the left, and a mask that is False at padding."""
    longest = max(map(len, prompts))
    rows = [[*[0] * (longest - len(ids)), *ids] for ids in prompts]  # any id: none looks there
    lengths_B1 = torch.tensor([[len(ids)] for ids in prompts])
    return torch.tensor(rows), torch.arange(longest) >= longest - lengths_B1
