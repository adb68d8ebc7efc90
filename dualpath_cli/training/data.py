"""DualPathDataModule: the training stream from litdata shards, and named validation sets."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from litdata import StreamingDataLoader, StreamingDataset
from torch.utils.data import DataLoader

from dualpath_cli.errors import UserError
from dualpath_cli.settings import DataSettings
from dualpath_cli.text.documents import Source, read_documents
from dualpath_cli.text.manifest import MANIFEST
from dualpath_cli.text.storage import exists, local_copy
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training.blocks import open_blocks
from dualpath_cli.training.module import Batch
from dualpath_cli.training.windows import (
    Tokens,
    Windows,
    check_ids,
    collate,
    document_windows,
    folder_windows,
)


class DualPathDataModule(LightningDataModule):
    """Streams training blocks of `seq_len` + 1 tokens and serves the validation windows."""

    def __init__(
        self,
        settings: DataSettings,
        tokenizer: Tokenizer,
        *,
        seq_len: int,
        micro_batch: int,
        seed: int,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.tokenizer = tokenizer
        self.seq_len = seq_len
        self.micro_batch = micro_batch
        self.seed = seed

    def setup(self, stage: str) -> None:
        """Checks that ranks take equal micro-batches: on machines of unlike GPUs `auto` differs.

        Raises:
            UserError: on a rank that would take another one than the first.
        """
        assert self.trainer is not None
        first = self.trainer.strategy.broadcast(self.micro_batch)
        if first != self.micro_batch:
            raise UserError(
                f"run.micro_batch=auto takes {first} on the first rank and {self.micro_batch} on "
                f"rank {self.trainer.global_rank}, whose GPU has other memory; give the smaller "
                f"one (--run.micro_batch {min(first, self.micro_batch)})"
            )

    def train_dataloader(self) -> "TrainingStream":
        """One stream a rank; its state is in the checkpoint, so a continued run repeats no batch.

        Raises:
            UserError: if the data does not fill a single step.
        """
        assert self.trainer is not None
        # Built here and not before: litdata asks for the rank, which exists only by now.
        blocks = open_blocks(
            self.settings.path,
            self.seq_len + 1,
            verify=self.settings.verify != "never",
            shuffle=True,
            # Over the whole chunk: litdata's default of 256 neighbouring blocks puts a batch
            # into one or two documents, and the loss jumps with them.
            item_shuffle_window="full",
            drop_last=True,
            seed=self.seed,
        )
        accumulate = self.trainer.accumulate_grad_batches
        stream = TrainingStream(
            blocks,
            accumulate,
            batch_size=self.micro_batch,
            num_workers=self.settings.workers,
            drop_last=True,
            collate_fn=partial(
                split_blocks,
                vocab_size=self.tokenizer.vocab_size,
                place=f"data.path '{self.settings.path}'",
            ),
            pin_memory=torch.cuda.is_available(),
        )
        if len(stream) == 0:
            raise UserError(
                f"data.path '{self.settings.path}' gives a device fewer than the {accumulate} "
                f"micro-batches of {self.micro_batch} sequences that one optimizer step takes; "
                "lower run.batch_tokens or prepare more data"
            )
        return stream

    def val_dataloader(self) -> list[DataLoader[Tokens]]:
        """One loader a validation set, in the order of `settings.val`."""
        return [self.loader(self.windows(name)) for name in self.settings.val]

    def windows(self, name: str) -> Windows:
        """The windows of a validation set, for as many ranks as there are.

        Raises UserError where the set holds no text.
        """
        assert self.trainer is not None
        settings = self.settings
        path, limit, seed = settings.val[name], settings.val_tokens, settings.val_seed
        numbers: list[int] | None = None
        if exists(f"{path}/{MANIFEST}"):
            verify = settings.verify != "never"
            windows = folder_windows(path, self.seq_len, limit, seed, verify)
            for window in windows:
                check_ids(window, self.tokenizer.vocab_size, f"data.val.{name} '{path}'")
        else:
            documents = read_documents(Source(name, local_copy(path)))
            windows, numbers = document_windows(
                documents, self.tokenizer, self.seq_len, limit, seed
            )
        if not windows:
            raise UserError(f"data.val.{name} '{path}' holds no text to validate on")
        full = self.trainer.world_size * self.micro_batch
        return Windows(windows, numbers, multiple_of=full)

    def batches(self, windows: Windows) -> list[range]:
        """Places of the windows of each batch, of all ranks."""
        assert self.trainer is not None
        return windows.batches(self.micro_batch, self.seq_len, self.trainer.world_size)

    def loader(
        self, windows: Windows, collate: Callable[[list[Any]], Any] = collate
    ) -> DataLoader[Any]:
        """This rank's part of windows: of each batch every other one, in their order."""
        assert self.trainer is not None
        ranks, rank = self.trainer.world_size, self.trainer.global_rank
        own = [list(places[rank::ranks]) for places in self.batches(windows)]
        return DataLoader(windows, batch_sampler=own, collate_fn=collate)


class TrainingStream(StreamingDataLoader):
    """Micro-batches in epochs of whole optimizer steps, continued exactly after an interruption.

    What is left of an epoch after its last whole step is left out, so that every step has
    `accumulate` micro-batches. litdata alone, continued, would train on the part of the epoch that
    was done before once the next epoch begins.
    """

    def __init__(self, blocks: StreamingDataset, accumulate: int, **settings: Any) -> None:
        super().__init__(blocks, **settings)
        self.accumulate = accumulate

    def __len__(self) -> int:
        """Micro-batches an epoch."""
        return super().__len__() // self.accumulate * self.accumulate

    def __iter__(self) -> Iterator[Batch]:
        """Yields the rest of a continued epoch, or the next one."""
        if self._epoch_is_done():
            self.restore = False
        for batch in super().__iter__():
            self.restore = False
            yield batch
            if self._epoch_is_done():
                return

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        """Continues an interrupted epoch.

        On another machine data from S3 are cached in another place, which litdata would refuse;
        that they are the same data, the run has checked.
        """
        folder = self.dataset.input_dir
        place = {"input_dir_path": folder.path, "input_dir_url": folder.url}
        super().load_state_dict({**obj, "dataset": {**obj["dataset"], **place}})

    def _epoch_is_done(self) -> bool:
        assert self.batch_size
        return self._num_samples_yielded_streaming >= len(self) * self.batch_size


def split_blocks(blocks: list[Tokens], vocab_size: int, place: str) -> Batch:
    """Stacks blocks of T + 1 tokens to inputs and next tokens, (B, T) int64 each.

    Raises UserError, which names `place`, for ids beyond the vocabulary.
    """
    stacked = np.stack(blocks)
    check_ids(stacked, vocab_size, place)
    tokens = torch.from_numpy(stacked.astype(np.int64))
    return tokens[:, :-1], tokens[:, 1:]
