"""The order in which training reads its data: a function of the seed and the position alone.

A run reads an endless row of blocks, numbered from 0 on: all blocks of the data in one random
order, then all of them in another, and so on. An optimizer step takes the next ones, whoever reads
them. So neither the number of ranks nor micro-batch or loader processes change what a step is
trained on, and a run continues from the number of steps it has made.

The order is by chunk: chunks come in random order, and each one's blocks in random order. Documents
are shuffled as data are prepared; to be read whole is what chunks from S3 want.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from dualpath_cli.seeds import seed_from

NAME = "by chunk, 1"
"""Names this order in the run folder; another order must have another name."""


class SampleOrder:
    """The block at each position of the row."""

    def __init__(self, chunk_blocks: Sequence[int], seed: int) -> None:
        """`chunk_blocks` are the numbers of blocks in each chunk, one block at least in all."""
        self.seed = seed
        self.chunk_blocks = np.asarray(chunk_blocks, dtype=np.int64)
        self.epoch_blocks = int(self.chunk_blocks.sum())
        """Blocks after which the data begin again."""
        self._first = np.cumsum(self.chunk_blocks) - self.chunk_blocks
        # Of the epoch `_held`: its chunks in their order, and where each ends.
        self._held = -1
        self._chunks = self._ends = self._first

    def at(self, position: int) -> tuple[int, int]:
        """Returns the chunk at a position, and the block: its place among all of the data."""
        epoch, rest = divmod(position, self.epoch_blocks)
        place = self._place(epoch, rest)
        chunk = int(self._chunks[place])
        count = int(self.chunk_blocks[chunk])
        inside = permutation(count, self.seed, epoch, chunk)
        start = int(self._ends[place]) - count
        return chunk, int(self._first[chunk] + inside[rest - start])

    def next_chunk(self, position: int) -> int:
        """Returns the chunk that is read after the one at a position."""
        epoch, rest = divmod(position, self.epoch_blocks)
        place = self._place(epoch, rest)
        return self.at(epoch * self.epoch_blocks + int(self._ends[place]))[0]

    def _place(self, epoch: int, rest: int) -> int:
        """Returns the place, in the epoch's order of chunks, of the one that holds a position."""
        if epoch != self._held:
            self._chunks = permutation(len(self.chunk_blocks), self.seed, epoch)
            self._ends = np.cumsum(self.chunk_blocks[self._chunks])
            self._held = epoch
        return int(np.searchsorted(self._ends, rest, side="right"))  # passes empty chunks over


@lru_cache(maxsize=4)
def permutation(count: int, *names: int) -> npt.NDArray[np.int64]:
    """Returns the numbers below `count` in the random order that belongs to the names.

    Sorted by the raw output of a generator, which NumPy promises never to change; what its
    `permutation` returns it may.
    """
    keys = np.random.PCG64(seed_from("order", *names)).random_raw(count)
    return np.argsort(keys, kind="stable")


@dataclass(frozen=True)
class MicroBatches(Sampler[list[int]]):
    """One rank's positions for each micro-batch of the optimizer steps from `start` to `stop`.

    Of each step's sequences a rank takes every `ranks`-th.
    """

    start: int
    stop: int
    sequences: int
    """Sequences of an optimizer step, on all ranks."""
    micro_batch: int
    ranks: int
    rank: int
    origin: int = 0
    """Step at which the data began: the row's position 0."""

    def __len__(self) -> int:
        """Micro-batches of the whole run, those before `start` as well: what Lightning counts."""
        return self.stop * self.sequences // (self.ranks * self.micro_batch)

    def __iter__(self) -> Iterator[list[int]]:
        """Yields positions, `micro_batch` at a time."""
        for step in range(self.start - self.origin, self.stop - self.origin):
            first = step * self.sequences
            own = range(first + self.rank, first + self.sequences, self.ranks)
            for at in range(0, len(own), self.micro_batch):
                yield list(own[at : at + self.micro_batch])
