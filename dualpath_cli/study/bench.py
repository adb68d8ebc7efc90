"""The bench of all studies: runs their passes on any number of devices, and keeps what finishes.

A study is its passes, what a pass does with a batch (`passes.Pass`), and its report. Here is what
all have in common: all passes go through one `Trainer.validate`, whose strategy places the model
and deals out the windows; those that an earlier call finished are read from their files.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from lightning.pytorch import Trainer
from rich.console import Console
from torch.utils.data import DataLoader, Dataset

from dualpath_cli.command.launch import Launch
from dualpath_cli.progress import Progress, counted
from dualpath_cli.study.facts import decisive_facts, source_facts, study_facts
from dualpath_cli.study.passes import FILLER, Arrays, Pass, PassStore
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training.data import DualPathDataModule
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.windows import Tokens, Windows, collate

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Tokens and targets, (B, T) each, and the places of the windows in their source, (B,)."""

PassT = TypeVar("PassT", bound=Pass)


class Study(ABC, Generic[PassT]):
    """What makes a study: its passes over a source, and what it does with what they gave."""

    semantics: int
    """Raised when the same model and texts would give other numbers than before."""
    folder: Path
    """Where finished passes are kept."""

    @abstractmethod
    def passes(self, source: str, windows: Windows, tokenizer: Tokenizer) -> Sequence[PassT]:
        """Returns the passes over a source."""

    @abstractmethod
    def finish(self, source: str, passes: Sequence[PassT], results: Sequence[Arrays]) -> None:
        """Takes what the passes over a source gave, on the first rank, once all are finished."""


class StudyModule(DualPathModule):
    """Runs passes as Lightning validates: one dataloader a pass, in their order."""

    def prepare(
        self,
        study: Study[Any],
        launch: Launch,
        datamodule: DualPathDataModule,
        progress: Progress,
        files: ExitStack,
    ) -> None:
        """Says what to run; `files` closes the files of a pass that is interrupted."""
        self.facts: dict[str, Any] = {}
        """What all passes share, for the report."""
        self.sources: dict[str, dict[str, Any]] = {}
        """What each source is, for the report."""
        self.finished: list[str] = []
        """Sources all of whose passes are finished, on the first rank."""
        self._study, self._launch, self._datamodule = study, launch, datamodule
        self._progress, self._files = progress, files
        self._passes: dict[str, Sequence[Pass]] = {}
        self._results: dict[str, dict[int, Arrays]] = {}
        self._missing: list[tuple[int, Pass]] = []

    def val_dataloader(self) -> list[DataLoader[Batch]]:
        """A loader for each pass that no earlier call finished.

        Here and not before, for the number of ranks is known only by now.
        """
        self._datamodule.trainer = self.trainer
        self.facts = study_facts(self._launch, self.trainer)
        decisive = decisive_facts(self.facts, self.trainer)
        decisive["semantics"] = self._study.semantics
        self._store = PassStore(self._study.folder, decisive)
        first, tokenizer = self.trainer.is_global_zero, self._datamodule.tokenizer
        for name, location in self._launch.settings.data.val.items():
            windows = self._datamodule.windows(name)
            self.sources[name] = source_facts(name, location, windows, tokenizer.fingerprint)
            self._passes[name] = self._study.passes(name, windows, tokenizer)
            self._results[name] = {}
            for number, one in enumerate(self._passes[name]):
                # All ranks run what the first one misses: on other nodes are other files.
                arrays = self._store.find(one) if first else None
                if self.trainer.strategy.broadcast(arrays is None):
                    self._missing.append((number, one))
                elif arrays is not None:
                    self._results[name][number] = arrays
        loaders = [
            self._datamodule.loader(
                Numbered(one.windows), partial(collate_numbered, last_is_input=one.last_is_input)
            )
            for _, one in self._missing
        ]
        self._progress.begin(sum(map(len, loaders)))
        for name in self._passes:
            self._finish(name)
        return loaders

    def validation_step(  # type: ignore[override]
        self, batch: Batch, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Runs a batch; the last one of a pass ends it."""
        number, one = self._missing[dataloader_idx]
        tokens, targets, places = batch
        if batch_idx == 0:
            one.begin(self, self._store.path(one), self._files)
        one.step(tokens, targets, places.tolist())
        self._progress.advance(title=one.title)
        if (batch_idx + 1) * len(tokens) * self.trainer.world_size < len(one.windows):
            return
        arrays = one.end()
        self._files.close()
        if self.trainer.is_global_zero:
            self._store.keep(one, arrays)
            self._results[one.source][number] = arrays
            self._finish(one.source)

    def on_validation_epoch_end(self) -> None:
        """Has nothing to publish."""

    def path(self, one: Pass) -> Path:
        """Where the arrays of a finished pass are."""
        return self._store.path(one)

    def _finish(self, source: str) -> None:
        passes, results = self._passes[source], self._results[source]
        if self.trainer.is_global_zero and len(results) == len(passes):
            self._study.finish(source, passes, [results[number] for number in range(len(passes))])
            self.finished.append(source)


class Numbered(Dataset[tuple[int, Tokens]]):
    """Windows with their places, for a loader."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, place: int) -> tuple[int, Tokens]:
        return (place if place < self._windows.n_filled else FILLER), self._windows[place]


def collate_numbered(batch: list[tuple[int, Tokens]], last_is_input: bool) -> Batch:
    """Stacks windows as `collate` does, with their places."""
    tokens, targets = collate([window for _, window in batch], last_is_input)
    return tokens, targets, torch.tensor([place for place, _ in batch])


def run(
    study: Study[Any],
    launch: Launch,
    trainer: Trainer,
    module: StudyModule,
    datamodule: DualPathDataModule,
    console: Console,
) -> None:
    """Runs all passes of a study that are not finished; afterwards `module` has the facts.

    Raises:
        UserError: if a source holds no text, and what the study raises.
        KeyboardInterrupt: after Ctrl-C, with what is kept.
    """
    with Progress(console, "", counted("batches")) as progress, ExitStack() as files:
        module.prepare(study, launch, datamodule, progress, files)
        try:
            trainer.validate(module, verbose=False)
        except SystemExit as end:
            # Lightning leaves by sys.exit(1) after Ctrl-C.
            if not trainer.interrupted:
                raise
            kept = f"{', '.join(module.finished)} finished; " if module.finished else ""
            raise KeyboardInterrupt(f"{kept}the same command continues") from end
