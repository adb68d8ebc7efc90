"""DualPathDataModule: the training stream, and named validation sets."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import DataLoader

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.processes import STOPPING
from dualpath_cli.data.blocks import Blocks, OrderedBlocks
from dualpath_cli.data.documents import Source, read_documents
from dualpath_cli.data.manifest import is_data_folder
from dualpath_cli.data.order import StepSequences
from dualpath_cli.data.storage import local_copy
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.windows import (
    Window,
    Windows,
    check_ids,
    collate,
    document_windows,
    folder_windows,
)
from dualpath_cli.recipe.settings import DataSettings
from dualpath_cli.run.weights import from_all_ranks

TokenBatch = tuple[
    torch.Tensor, torch.Tensor
]  # input tokens and target tokens, each (B, T)


class DualPathDataModule(LightningDataModule):
    """Streams blocks of `seq_len` + 1 tokens, and serves validation windows."""

    trainer: Trainer

    def __init__(
        self,
        settings: DataSettings,
        tokenizer: Tokenizer,
        *,
        seq_len: int,
        micro_batch: int,
        step_sequences: int,
        seed: int,
        data_since: int,
        checkpoint: Path | None,
    ) -> None:
        """`step_sequences` are those of an optimizer step on all ranks, `micro_batch`
        those of one forward pass; `data_since` is the first step that trained on these
        data. A run continues from `checkpoint`."""
        super().__init__()
        self.settings = settings
        self.tokenizer = tokenizer
        self.seq_len = seq_len
        self.micro_batch = micro_batch
        self.step_sequences = step_sequences
        self.seed = seed
        self.data_since = data_since
        self.checkpoint = checkpoint

    def setup(self, stage: str) -> None:
        """Checks that all ranks start alike: one may not see another's files yet."""
        plan = {
            # Not the trainer's, which it takes after this hook.
            "the checkpoint": self.checkpoint and self.checkpoint.name,
            "the first step on its data": self.data_since,
            "run.compile": self.trainer.lightning_module.compile_blocks,
        }
        first, *others = from_all_ranks(plan)

        for rank, other in enumerate(others, start=1):
            for name in plan:
                if other[name] != first[name]:
                    raise UserError(
                        f"ranks differ: {name} is {first[name]} on rank 0 and "
                        f"{other[name]} on rank {rank}; make the machines alike, give "
                        "--run.compile, or, if files were just written, try again"
                    )

    def train_dataloader(self) -> DataLoader[Window]:
        """This rank's share of each step, from the current step to the last."""
        verify = self.settings.verify != "never"
        blocks = Blocks(self.settings.path, self.seq_len + 1, verify=verify)
        own = StepSequences(
            start=self.trainer.global_step,
            stop=self.trainer.max_steps,
            origin=self.data_since,
            sequences=self.step_sequences,
            ranks=self.trainer.world_size,
            rank=self.trainer.global_rank,
        )
        make_batch = partial(
            stack_blocks,
            vocab_size=self.tokenizer.vocab_size,
            place=f"data.path '{self.settings.path}'",
        )

        # Python 3.14 would start loaders by a server: each imports everything again,
        # and a signal to all processes of the run ends the server.
        forks = bool(self.settings.workers) and sys.platform == "linux"
        return DataLoader(
            OrderedBlocks(blocks, self.seed),
            batch_sampler=own,
            num_workers=self.settings.workers,
            multiprocessing_context="fork" if forks else None,
            worker_init_fn=leave_signals_to_the_run if forks else None,
            collate_fn=make_batch,
            pin_memory=torch.cuda.is_available(),
        )

    def val_dataloader(self) -> list[DataLoader[Window]]:
        """One loader a validation set, in the order of `settings.val`."""
        return [self.loader(self.windows(name)) for name in self.settings.val]

    def windows(self, name: str) -> Windows:
        """The windows of a validation set, divided among the ranks."""
        settings = self.settings
        source = settings.validation_sets[name]
        path = source.path
        place = f"data.val.{name} '{path}'"
        limit = settings.val_tokens
        seed = settings.val_seed

        numbers: list[int] | None = None
        if is_data_folder(path):
            verify = settings.verify != "never"
            windows = folder_windows(path, self.seq_len, limit, seed, verify)
            for window in windows:
                check_ids(window, self.tokenizer.vocab_size, place)
        else:
            documents = read_documents(Source(name, local_copy(path), source.field))
            windows, numbers = document_windows(
                documents, self.tokenizer, self.seq_len, limit, seed
            )

        if not windows:
            raise UserError(f"{place} holds no text to validate on")
        full = self.trainer.world_size * self.micro_batch
        return Windows(windows, numbers, multiple_of=full)

    def batches(self, windows: Windows) -> list[range]:
        """Indices of the windows in each batch, over all ranks."""
        return windows.batches(self.micro_batch, self.seq_len, self.trainer.world_size)

    def loader(
        self, windows: Windows, collate: Callable[[list[Any]], Any] = collate
    ) -> DataLoader[Any]:
        """This rank's windows: every `ranks`-th window of each batch, in order."""
        ranks = self.trainer.world_size
        rank = self.trainer.global_rank
        own = [list(places[rank::ranks]) for places in self.batches(windows)]
        return DataLoader(windows, batch_sampler=own, collate_fn=collate)


def leave_signals_to_the_run(worker: int) -> None:
    """Keeps a loader process alive when a signal goes to all processes of the run.

    The run finishes its step and saves. A SIGTERM of the run itself, which PyTorch may
    send at the end, still ends the loader.
    """
    for signum in STOPPING:
        if signum != signal.SIGTERM:
            signal.signal(signum, signal.SIG_IGN)

    # A handler does not see the sender, so SIGTERM is blocked and a thread waits for
    # it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    threading.Thread(target=_end_by, args=(os.getppid(),), daemon=True).start()


def _end_by(run: int) -> None:
    """Ends this process on a SIGTERM of the process `run`."""
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != run:
        pass
    os._exit(0)


def stack_blocks(blocks: list[Window], vocab_size: int, place: str) -> TokenBatch:
    """Stacks blocks of T + 1 tokens to inputs and next tokens, (B, T) int64 each."""
    stacked = np.stack(blocks)
    check_ids(stacked, vocab_size, place)
    tokens = torch.from_numpy(stacked.astype(np.int64))
    return tokens[:, :-1], tokens[:, 1:]
