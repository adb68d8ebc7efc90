"""Texts and prepared tokens as windows to score, in every command.

Documents are cut into windows of the model's length. Each begins with an end-of-text
token, and none crosses two documents, so every token of a text is scored once. In a
prepared data folder a window is a block of the token stream. A limit of tokens draws
windows at random: the beginning of a file, such as the first of several books, is not
representative.
"""

import heapq
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from dualpath_cli.base.errors import UserError
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.model.loss import IGNORE

Window = npt.NDArray[np.integer]
"""Token ids, (tokens,); in a window the first one is not scored."""

PAD_TO = 16
"""Batches are padded to a multiple of so many positions: fewer shapes, faster
kernels."""

LEAST_DOCUMENTS = 10  # documents to draw from at least, if the source has so many


def document_windows(
    documents: Iterable[str],
    tokenizer: Tokenizer,
    length: int,
    max_tokens: int | None = None,
    seed: int = 0,
) -> tuple[list[Window], list[int]]:
    """Cuts documents into windows of end-of-text and up to `length` of their tokens.

    With `max_tokens`, windows with that number of scored tokens are drawn: first
    documents, in the random order of `seed`, until these hold enough; then windows of
    the documents. No document gives more than a tenth, to the next whole window, unless
    there are too few documents. The last window is cut to fit. Only the drawn documents
    are held in memory.

    Returns the windows in the order of the text, and each one's document, numbered from
    0.
    """
    if max_tokens is None:
        encoded = (np.asarray(tokenizer.encode(text)) for text in documents)
        return _cut(enumerate(encoded), tokenizer.eot_id, length)

    drawn = _drawn_documents(documents, tokenizer, max_tokens, seed)
    windows, numbers = _cut(drawn, tokenizer.eot_id, length)
    return _drawn_windows(windows, numbers, max_tokens, seed)


def _cut(
    documents: Iterable[tuple[int, Window]], eot_id: int, length: int
) -> tuple[list[Window], list[int]]:
    """Cuts numbered documents into windows, and returns each one's number."""
    windows = []
    numbers = []
    for number, tokens in documents:
        for start in range(0, len(tokens), length):
            window = np.concatenate(([eot_id], tokens[start : start + length]))
            windows.append(window)
            numbers.append(number)
    return windows, numbers


def _drawn_documents(
    documents: Iterable[str], tokenizer: Tokenizer, max_tokens: int, seed: int
) -> list[tuple[int, Window]]:
    """Numbers and tokens, in the order of the text, of the first in a random order.

    The fewest documents that hold `max_tokens`, where each counts up to a tenth of
    these.
    """
    random = np.random.default_rng((seed, 0))
    most = _tenth(max_tokens)
    counted = 0  # tokens of the drawn documents

    # A heap, with the last one in the random order on top.
    drawn: list[tuple[float, int, Window]] = []
    for number, text in enumerate(documents):
        place = float(random.random())
        if counted >= max_tokens and place > -drawn[0][0]:
            continue

        tokens = np.asarray(tokenizer.encode(text))
        heapq.heappush(drawn, (-place, number, tokens))
        counted += min(len(tokens), most)
        while counted - (last := min(len(drawn[0][2]), most)) >= max_tokens:
            heapq.heappop(drawn)
            counted -= last

    numbered = [(number, tokens) for _, number, tokens in drawn]
    return sorted(numbered, key=lambda pair: pair[0])


def _drawn_windows(
    windows: Sequence[Window], numbers: Sequence[int], max_tokens: int, seed: int
) -> tuple[list[Window], list[int]]:
    """Draws windows with `max_tokens` scored tokens, of all documents alike."""
    scored = [len(window) - 1 for window in windows]
    totals = np.bincount(numbers, scored)  # by document
    most = _tenth(max_tokens)
    if totals.clip(max=most).sum() < max_tokens:
        most = max_tokens  # too few documents

    left = max_tokens
    taken = np.zeros(1 + max(numbers, default=0))  # tokens, by document
    kept = {}
    order = np.random.default_rng((seed, 1)).permutation(len(windows))
    for place in order.tolist():
        number = numbers[place]
        if left and taken[number] < most:
            kept[place] = windows[place][: 1 + left]
            left -= len(kept[place]) - 1
            taken[number] += scored[place]

    places = sorted(kept)
    return [kept[place] for place in places], [numbers[place] for place in places]


def _tenth(max_tokens: int) -> int:
    return -(-max_tokens // LEAST_DOCUMENTS)


def folder_windows(
    folder: str | Path,
    length: int,
    max_tokens: int | None = None,
    seed: int = 0,
    verify: bool = True,
) -> list[Window]:
    """Returns the blocks of `length` + 1 tokens of a data folder, in their order.

    With `max_tokens`, the most blocks that hold no more tokens, at least one, drawn at
    random.
    """
    from dualpath_cli.data.blocks import Blocks

    blocks = Blocks(str(folder), length + 1, verify=verify)
    chosen = np.arange(len(blocks))
    count = len(blocks) if max_tokens is None else max(1, max_tokens // length)
    if count < len(blocks):
        drawn = np.random.default_rng(seed).choice(chosen, count, replace=False)
        chosen = np.sort(drawn)
    return [np.asarray(blocks[block]) for block in chosen.tolist()]


def check_ids(tokens: Window, vocab_size: int, place: str) -> None:
    """Refuses ids beyond the vocabulary, with which a GPU fails without a message."""
    highest = int(tokens.max())
    if highest >= vocab_size:
        raise UserError(
            f"{place}: holds the token id {highest}, beyond the vocabulary of "
            f"{vocab_size} entries; `--data.verify always` says in which chunk"
        )


class Windows(Dataset[Window]):
    """Windows in memory, the longest first: those of a batch are of like length.

    Empty windows, which score nothing, are appended up to a multiple.
    """

    def __init__(
        self,
        windows: Iterable[Window],
        documents: Sequence[int] | None = None,
        multiple_of: int = 1,
    ) -> None:
        """`documents` are the numbers of the windows' documents; None where unknown."""
        numbered = list(enumerate(windows))
        numbered.sort(key=lambda pair: len(pair[1]), reverse=True)

        self.windows = [window for _, window in numbered]
        self.numbers = [number for number, _ in numbered]
        """Place of each window among those that were cut, from 0 on."""
        self.documents = documents and [documents[number] for number in self.numbers]
        """Number of each window's document in the source; None where it is unknown."""
        self.n_filled = len(self.windows)
        """Number of real windows; those after them fill up batches."""

        scored = [len(window) - 1 for window in self.windows]
        self.tokens = np.array(scored, dtype=np.int64)
        """Scored tokens of each real window."""
        self.n_tokens = int(self.tokens.sum())

        # So that batches divide evenly among ranks: sharded models must run in step.
        missing = -len(self.windows) % multiple_of
        self.windows += [np.zeros(1, dtype=np.int64)] * missing

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> Window:
        return self.windows[index]

    def batches(self, micro_batch: int, length: int, ranks: int = 1) -> list[range]:
        """Places of the windows of each batch of all ranks, in order.

        Ranks take every other window. On each rank a batch has no more positions than
        `micro_batch` windows of `length` tokens, or one window.
        """
        # So batches of full windows have the shape that a model is compiled for. Short
        # windows come more at a time: small batches mostly wait for their launches.
        positions = micro_batch * padded(length)
        batches = []
        start = 0
        while start < len(self.windows):
            longest = padded(len(self.windows[start]) - 1)
            on_a_rank = max(1, positions // longest)
            stop = min(start + on_a_rank * ranks, len(self.windows))
            batches.append(range(start, stop))
            start = stop
        return batches


def padded(length: int) -> int:
    """Positions of a batch whose longest window has `length` of them."""
    return -(-max(1, length) // PAD_TO) * PAD_TO


def collate(
    windows: list[Window], last_is_input: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stacks windows to input tokens and targets, (B, T) int64 each, right-padded.

    The last token of a window is only a target. With `last_is_input` it is an input
    without a target, in a full window one position beyond those of training. Targets of
    padding are IGNORE.
    """
    # Attention is causal: neither this input nor padding, which comes after all tokens,
    # changes a loss.
    longest = max(len(window) for window in windows)
    positions = padded(longest if last_is_input else longest - 1)
    tokens = torch.zeros(len(windows), positions, dtype=torch.int64)
    targets = torch.full((len(windows), positions), IGNORE, dtype=torch.int64)

    for row, window in enumerate(windows):
        ids = torch.from_numpy(window.astype(np.int64))
        inputs = ids if last_is_input else ids[:-1]
        tokens[row, : len(inputs)] = inputs
        targets[row, : len(ids) - 1] = ids[1:]
    return tokens, targets
