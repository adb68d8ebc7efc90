"""Texts and prepared tokens as scored windows: what validate and every study command read.

Documents are cut into windows of the model's length. Each window begins after an end-of-text token
and none crosses two documents, so that every token of the text is scored exactly once. Prepared
data folders are packed already; there a window is a block of the token stream.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from dualpath_cli.model.loss import IGNORE
from dualpath_cli.text.tokenizer import Tokenizer

Tokens = npt.NDArray[np.integer]

PAD_TO = 64
"""Batches are padded to a multiple of this many positions: fewer shapes, faster kernels."""


def document_windows(
    documents: Iterable[str], tokenizer: Tokenizer, length: int, max_tokens: int | None = None
) -> Iterator[Tokens]:
    """Yields windows of end-of-text and up to `length` tokens of one document.

    Stops after `max_tokens` scored tokens; the last window is cut to fit.
    """
    left = max_tokens
    for document in documents:
        tokens = np.asarray(tokenizer.encode(document))
        for start in range(0, len(tokens), length):
            window = tokens[start : start + length][:left]
            if left is not None:
                left -= len(window)
            if len(window):
                yield np.concatenate(([tokenizer.eot_id], window))
            if left == 0:
                return


def folder_windows(
    folder: str | Path, length: int, max_tokens: int | None = None
) -> Iterator[Tokens]:
    """Yields the blocks of `length` + 1 tokens of a prepared data folder, in their order."""
    from litdata.utilities.env import _DistributedEnv

    from dualpath_cli.training.blocks import open_blocks

    blocks = open_blocks(str(folder), length + 1, shuffle=False)
    # litdata would count this rank's share; here every rank takes its own from the whole.
    blocks.distributed_env = _DistributedEnv(world_size=1, global_rank=0, num_nodes=1)
    count = len(blocks) if max_tokens is None else min(len(blocks), max(1, max_tokens // length))
    for i in range(count):
        yield np.asarray(blocks[i])


class Windows(Dataset[Tokens]):
    """Windows held in memory, longest first, so that a batch holds windows of like length.

    Empty windows are appended until every rank gets the same number of full batches: sharded
    models must run in step, and empty windows count nowhere.
    """

    def __init__(self, windows: Iterable[Tokens], multiple_of: int = 1) -> None:
        numbered = sorted(enumerate(windows), key=lambda pair: len(pair[1]), reverse=True)
        self.windows = [window for _, window in numbered]
        self.numbers = [number for number, _ in numbered]
        """Place of each window in the source, from 0 on."""
        self.n_filled = len(self.windows)
        """Windows that are not there to fill up a batch: the first ones."""
        self.tokens = np.array([len(window) - 1 for window in self.windows], dtype=np.int64)
        """Scored tokens of each of them."""
        self.n_tokens = int(self.tokens.sum())
        missing = -len(self.windows) % multiple_of
        self.windows += [np.zeros(1, dtype=np.int64)] * missing

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> Tokens:
        return self.windows[index]


def collate(
    windows: list[Tokens], last_is_input: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stacks windows to input tokens and targets, (B, T) int64 each, padded on the right.

    The last token of a window is only a target, or with `last_is_input` an input without a target:
    in a full window it stands one position beyond those of training. Attention is causal, so
    neither it nor padding, which comes after all tokens, changes a loss. Targets of padding are
    IGNORE.
    """
    longest = max(2, *(len(window) for window in windows)) - (not last_is_input)
    padded = -(-longest // PAD_TO) * PAD_TO
    tokens = torch.zeros(len(windows), padded, dtype=torch.int64)
    targets = torch.full((len(windows), padded), IGNORE, dtype=torch.int64)
    for row, window in enumerate(windows):
        ids = torch.from_numpy(window.astype(np.int64))
        inputs = ids if last_is_input else ids[:-1]
        tokens[row, : len(inputs)] = inputs
        targets[row, : len(ids) - 1] = ids[1:]
    return tokens, targets
