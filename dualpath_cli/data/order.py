"""The order in which training reads its data: a function of seed and position only.

A run reads an endless sequence of blocks, numbered from 0: all blocks of the data in
one random order, then all of them in another, and so on. An optimizer step takes the
next ones, whichever rank reads them. So ranks, micro-batch and loader processes do not
change what a step is trained on, and a run continues from its number of steps.

Chunks come in random order, and the blocks within each in random order: a chunk from S3
is read whole before the next one. Documents were shuffled when the data were prepared.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from dualpath_cli.base.seeds import seed_from

NAME = "by chunk, 1"  # name of this order in the run folder; change it with the order


class SampleOrder:
    """The block at each position of the sequence."""

    def __init__(self, chunk_blocks: Sequence[int], seed: int) -> None:
        """`chunk_blocks` are the numbers of blocks in each chunk, not all of them 0."""
        self.seed = seed
        self.chunk_blocks = np.asarray(chunk_blocks, dtype=np.int64)
        self.epoch_blocks = int(self.chunk_blocks.sum())
        """Blocks after which the data begin again."""
        self._first = np.cumsum(self.chunk_blocks) - self.chunk_blocks

        # Of the epoch `_held`: its chunks in their order, and where each ends.
        self._held = -1
        self._chunks = self._ends = self._first

    def at(self, position: int) -> tuple[int, int]:
        """Returns the chunk at a position, and the number of its block in the data."""
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
        """Returns which chunk, in the epoch's order of chunks, holds a position."""
        if epoch != self._held:
            self._chunks = permutation(len(self.chunk_blocks), self.seed, epoch)
            self._ends = np.cumsum(self.chunk_blocks[self._chunks])
            self._held = epoch

        # passes empty chunks over
        return int(np.searchsorted(self._ends, rest, side="right"))


@lru_cache(maxsize=4)
def permutation(count: int, *names: int) -> npt.NDArray[np.int64]:
    """Returns the numbers below `count` in the random order of the names.

    NumPy promises never to change a generator's raw output, unlike its `permutation`.
    """
    keys = np.random.PCG64(seed_from("order", *names)).random_raw(count)
    return np.argsort(keys, kind="stable")


@dataclass(frozen=True)
class StepSequences(Sampler[list[int]]):
    """One rank's positions in each of the optimizer steps from `start` to `stop`.

    Of each step's sequences a rank takes every `ranks`-th.
    """

    start: int
    stop: int
    sequences: int  # sequences of an optimizer step, on all ranks
    ranks: int
    rank: int
    origin: int = 0  # step at which the data began: position 0 of the sequence

    def __len__(self) -> int:
        """Steps of the whole run, also those before `start`, as Lightning counts
        them."""
        return self.stop

    def __iter__(self) -> Iterator[list[int]]:
        """Yields the positions of a step at a time."""
        for step in range(self.start - self.origin, self.stop - self.origin):
            first = step * self.sequences
            yield list(range(first + self.rank, first + self.sequences, self.ranks))
