"""Texts and prepared tokens as windows to score, and their loss, in every command.

Documents are cut into windows of the model's length. Each begins with an end-of-text
token, and none crosses two documents, so every token of a text is scored once. In a
prepared data folder a window is a block of the token stream. A limit of tokens draws
windows at random: the beginning of a file, such as the first of several books, is not
representative.
"""

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from torchmetrics import Metric

from dualpath_cli.base.errors import UserError
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.model.loss import IGNORE

Tokens = npt.NDArray[np.integer]

# batches are padded to a multiple of this many positions: fewer shapes, faster kernels
PAD_TO = 16
LEAST_DOCUMENTS = 10  # documents to draw from at least, if the source has so many


def document_windows(
    documents: Iterable[str],
    tokenizer: Tokenizer,
    length: int,
    max_tokens: int | None = None,
    seed: int = 0,
) -> tuple[list[Tokens], list[int]]:
    """Cuts documents into windows of end-of-text and up to `length` tokens of one of
    them.

    With `max_tokens`, windows with that number of scored tokens are drawn: first
    documents, in the random order of `seed`, until these hold enough; then windows of
    the documents. No document gives more than a tenth, to the next whole window, unless
    there are too few documents. The last window is cut to fit. Only the drawn documents
    are held in memory.

    Returns the windows in the order of the text, and each one's document, numbered from
    0.
    """
    chosen: Iterable[tuple[int, Tokens]]
    if max_tokens is None:
        chosen = (
            (n, np.asarray(tokenizer.encode(text))) for n, text in enumerate(documents)
        )
    else:
        chosen = _drawn_documents(documents, tokenizer, max_tokens, seed)
    cut = [
        (np.concatenate(([tokenizer.eot_id], tokens[start : start + length])), number)
        for number, tokens in chosen
        for start in range(0, len(tokens), length)
    ]
    windows, numbers = [window for window, _ in cut], [number for _, number in cut]
    if max_tokens is None:
        return windows, numbers
    scored = [len(window) - 1 for window in windows]
    totals, given = np.bincount(numbers, scored), np.zeros(1 + max(numbers, default=0))
    most = _tenth(max_tokens)
    if totals.clip(max=most).sum() < max_tokens:
        most = max_tokens
    left, kept = max_tokens, {}
    for place in np.random.default_rng((seed, 1)).permutation(len(windows)).tolist():
        if left and given[numbers[place]] < most:
            kept[place] = windows[place][: 1 + left]
            left -= len(kept[place]) - 1
            given[numbers[place]] += scored[place]
    return [kept[place] for place in sorted(kept)], [
        numbers[place] for place in sorted(kept)
    ]


def _drawn_documents(
    documents: Iterable[str], tokenizer: Tokenizer, max_tokens: int, seed: int
) -> list[tuple[int, Tokens]]:
    """Numbers and tokens, in the order of the text, of the first documents in a random
    order.

    The fewest that hold `max_tokens`, where a document counts up to a tenth of these.
    """
    draw = np.random.default_rng((seed, 0))
    most, held = _tenth(max_tokens), 0
    # the last one in the random order on top
    drawn: list[tuple[float, int, Tokens]] = []
    for number, text in enumerate(documents):
        place = float(draw.random())
        if held >= max_tokens and place > -drawn[0][0]:
            continue
        tokens = np.asarray(tokenizer.encode(text))
        heapq.heappush(drawn, (-place, number, tokens))
        held += min(len(tokens), most)
        while held - (last := min(len(drawn[0][2]), most)) >= max_tokens:
            heapq.heappop(drawn)
            held -= last
    return sorted(
        ((number, tokens) for _, number, tokens in drawn), key=lambda pair: pair[0]
    )


def _tenth(max_tokens: int) -> int:
    return -(-max_tokens // LEAST_DOCUMENTS)


def folder_windows(
    folder: str | Path,
    length: int,
    max_tokens: int | None = None,
    seed: int = 0,
    verify: bool = True,
) -> list[Tokens]:
    """Returns the blocks of `length` + 1 tokens of a prepared data folder, in their
    order.

    With `max_tokens`, the most blocks that hold no more tokens, at least one, drawn at
    random.
    """
    from dualpath_cli.data.blocks import Blocks

    blocks = Blocks(str(folder), length + 1, verify=verify)
    chosen = np.arange(len(blocks))
    if max_tokens is not None and (count := max(1, max_tokens // length)) < len(blocks):
        chosen = np.sort(
            np.random.default_rng(seed).choice(chosen, count, replace=False)
        )
    return [np.asarray(blocks[block]) for block in chosen.tolist()]


def check_ids(tokens: Tokens, vocab_size: int, place: str) -> None:
    """Refuses ids beyond the vocabulary, with which a GPU fails without a message."""
    if (highest := int(tokens.max())) >= vocab_size:
        raise UserError(
            f"{place}: holds the token id {highest}, beyond the vocabulary of "
            f"{vocab_size} entries; `--data.verify always` says in which chunk"
        )


class Windows(Dataset[Tokens]):
    """Windows held in memory, longest first, so that a batch holds windows of like
    length.

    Empty windows, which score nothing, are appended so that batches divide evenly among
    ranks: sharded models must run in step.
    """

    def __init__(
        self,
        windows: Iterable[Tokens],
        documents: Sequence[int] | None = None,
        multiple_of: int = 1,
    ) -> None:
        """`documents` are the numbers of the windows' documents; None where unknown."""
        numbered = sorted(
            enumerate(windows), key=lambda pair: len(pair[1]), reverse=True
        )
        self.windows = [window for _, window in numbered]
        self.numbers = [number for number, _ in numbered]
        """Place of each window among those that were cut, from 0 on."""
        self.documents = documents and [documents[number] for number in self.numbers]
        """Number of each window's document in the source; None where it is unknown."""
        self.n_filled = len(self.windows)
        """Number of real windows; those after them fill up batches."""
        self.tokens = np.array(
            [len(window) - 1 for window in self.windows], dtype=np.int64
        )
        """Scored tokens of each real window."""
        self.n_tokens = int(self.tokens.sum())
        missing = -len(self.windows) % multiple_of
        self.windows += [np.zeros(1, dtype=np.int64)] * missing

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> Tokens:
        return self.windows[index]

    def batches(self, micro_batch: int, length: int, ranks: int = 1) -> list[range]:
        """Places of the windows of each batch, of all ranks, in order; ranks take every
        other one.

        On each rank a batch holds no more positions than `micro_batch` windows of
        `length` tokens, or one window. So batches of full windows have the shape that a
        model is compiled for. Short windows come more at a time: small batches mostly
        wait for their launches.
        """
        found, start = [], 0
        while start < len(self.windows):
            most = micro_batch * padded(length) // padded(len(self.windows[start]) - 1)
            stop = min(start + max(1, most) * ranks, len(self.windows))
            found.append(range(start, stop))
            start = stop
        return found


def padded(length: int) -> int:
    """Positions of a batch whose longest window has `length` of them."""
    return -(-max(1, length) // PAD_TO) * PAD_TO


def collate(
    windows: list[Tokens], last_is_input: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stacks windows to input tokens and targets, (B, T) int64 each, padded on the
    right.

    The last token of a window is only a target. With `last_is_input` it is an input
    without a target, in a full window one position beyond those of training. Attention
    is causal, so neither this input nor padding, which comes after all tokens, changes
    a loss. Targets of padding are IGNORE.
    """
    positions = padded(max(len(window) for window in windows) - (not last_is_input))
    tokens = torch.zeros(len(windows), positions, dtype=torch.int64)
    targets = torch.full((len(windows), positions), IGNORE, dtype=torch.int64)
    for row, window in enumerate(windows):
        ids = torch.from_numpy(window.astype(np.int64))
        inputs = ids if last_is_input else ids[:-1]
        tokens[row, : len(inputs)] = inputs
        targets[row, : len(ids) - 1] = ids[1:]
    return tokens, targets


_SUMS = ("nats", "tokens", "text_nats", "text_bytes")


class LanguageModelLoss(Metric):
    """Mean loss per scored token and bits per byte of text.

    Loss is nats per token over all positions whose target is not `loss.IGNORE`. Bits
    per byte is nats / (ln 2 x bytes) over the targets that are text: special tokens
    (end of text) have no bytes and count in neither sum.
    """

    full_state_update = False
    nats: torch.Tensor
    tokens: torch.Tensor
    text_nats: torch.Tensor
    text_bytes: torch.Tensor
    bytes_of_token: torch.Tensor

    def __init__(self, token_bytes: Sequence[int]) -> None:
        """`token_bytes` holds the number of UTF-8 bytes of each token id, 0 for special
        tokens."""
        super().__init__()
        for name in _SUMS:
            self.add_state(
                name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum"
            )
        table = torch.tensor(token_bytes, dtype=torch.int64)
        self.register_buffer("bytes_of_token", table, persistent=False)

    def update(self, nll: torch.Tensor, targets: torch.Tensor) -> None:
        """Adds a batch: losses in nats and target ids, both (B, T)."""
        scored = targets != IGNORE
        nll = nll.double() * scored
        n_bytes = self.bytes_of_token[targets.clamp(min=0)] * scored
        self.nats += nll.sum()
        self.tokens += scored.sum()
        self.text_nats += (nll * (n_bytes > 0)).sum()
        self.text_bytes += n_bytes.sum()

    def sums(self) -> dict[str, float]:
        """The sums of all ranks so far; a collective call."""
        total = torch.stack([getattr(self, name) for name in _SUMS])
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(total)
        return dict(zip(_SUMS, total.tolist(), strict=True))

    def add(self, sums: Mapping[str, float]) -> None:
        """Adds the result of `sums`; on one rank alone."""
        for name, value in sums.items():
            getattr(self, name).add_(value)

    def compute(self) -> dict[str, torch.Tensor]:
        """Returns `loss` and `bits_per_byte`; nan where nothing was scored."""
        return {
            "loss": self.nats / self.tokens,
            "bits_per_byte": self.text_nats / (math.log(2) * self.text_bytes),
        }
