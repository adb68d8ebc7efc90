"""The bench of all studies: runs their passes on any number of devices, and keeps finished passes.

A study consists of its passes, their work on a batch (`passes.Pass`), and its report. This file has
the common part: all passes go through one `Trainer.validate`, whose strategy places the model and
divides the windows; passes that an earlier call finished are read from their files.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch.utils.data import DataLoader

from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.windows import Tokens, Windows, collate
from dualpath_cli.report.console import Progress, counted
from dualpath_cli.study.passes import FILLER, Pass, decisive_facts, source_facts, study_facts
from dualpath_cli.training.data_module import Batch
from dualpath_cli.training.launch import StudyLaunch
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.session import Session

PassT = TypeVar("PassT", bound=Pass)


class Study(ABC, Generic[PassT]):
    """A study: its passes over a source, and its use of their results."""

    semantics: int
    """A version, raised when new code gives other numbers for the same model and texts."""
    folder: Path
    """The folder of finished passes."""

    @abstractmethod
    def passes(self, source: str, windows: Windows, tokenizer: Tokenizer) -> Sequence[PassT]:
        """Returns the passes over a source."""

    @abstractmethod
    def finish(self, source: str, passes: Sequence[PassT]) -> None:
        """Takes the finished passes over a source, on the first rank."""


class StudyModule(DualPathModule):
    """Runs passes as Lightning's validation: one dataloader for each pass, in order."""

    def prepare(
        self, study: Study[Any], session: Session[StudyLaunch], progress: Progress, files: ExitStack
    ) -> None:
        """Sets the study to run; `files` closes the files of an interrupted pass."""
        self.facts: dict[str, Any] = {}
        """Facts that all passes share, for the report."""
        self.sources: dict[str, dict[str, Any]] = {}
        """Facts about each source, for the report."""
        self._study, self._session, self._progress, self._files = study, session, progress, files
        self._passes: dict[str, Sequence[Pass]] = {}
        self._missing: list[Pass] = []
        self._batches: list[range] = []  # of the current pass

    def val_dataloader(self) -> list[DataLoader[Tokens]]:
        """A loader for each pass that no earlier call finished.

        Made here, as the number of ranks is not known earlier.
        """
        launch, datamodule = self._session.launch, self._session.datamodule
        datamodule.trainer = self.trainer
        self.facts = study_facts(launch, self.trainer)
        decisive = decisive_facts(self.facts, self.trainer)
        decisive["semantics"] = self._study.semantics
        tokenizer = datamodule.tokenizer
        for name, location in launch.settings.data.val.items():
            windows = datamodule.windows(name)
            self.sources[name] = source_facts(name, location, windows, tokenizer.fingerprint)
            self._passes[name] = self._study.passes(name, windows, tokenizer)
            for pass_ in self._passes[name]:
                pass_.locate(self._study.folder, decisive)
                # All ranks run the passes that the first rank lacks: nodes have different files.
                missing = self.trainer.is_global_zero and not pass_.find()
                if self.trainer.strategy.broadcast(missing):
                    self._missing.append(pass_)
        loaders = [
            datamodule.loader(pass_.windows, partial(collate, last_is_input=pass_.last_is_input))
            for pass_ in self._missing
        ]
        self._progress.begin(sum(map(len, loaders)))
        for name in self._passes:
            self._finish(name)
        return loaders

    @property
    def kept(self) -> str:
        """The number of finished passes on the first rank, in words."""
        passes = [pass_ for source in self._passes.values() for pass_ in source]
        finished = sum(bool(pass_.arrays) for pass_ in passes)
        return f"{finished} of {len(passes)} passes are kept"

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Runs a batch; the last one of a pass ends it."""
        pass_ = self._missing[dataloader_idx]
        tokens, targets = batch
        if batch_idx == 0:
            pass_.begin(self, self._files)
            self._batches = self._session.datamodule.batches(pass_.windows)
        places = self._batches[batch_idx][self.trainer.global_rank :: self.trainer.world_size]
        pass_.step(tokens, targets, [n if n < pass_.windows.n_filled else FILLER for n in places])
        self._progress.advance(title=pass_.title)
        if batch_idx + 1 == len(self._batches):
            arrays = pass_.end()
            self._files.close()
            if self.trainer.is_global_zero:
                pass_.keep(arrays)
                self._finish(pass_.source)

    def on_validation_epoch_end(self) -> None:
        """Publishes no metric."""

    def _finish(self, source: str) -> None:
        passes = self._passes[source]
        if all(pass_.arrays for pass_ in passes):
            self._study.finish(source, passes)


def run(study: Study[Any], session: Session[StudyLaunch]) -> StudyModule:
    """Runs all unfinished passes of a study; returns the module, which has the facts.

    Raises:
        KeyboardInterrupt: after Ctrl-C or SIGTERM, with the number of passes kept.
    """
    module = session.module
    assert isinstance(module, StudyModule)
    with Progress(session.console, "", counted("batches")) as progress, ExitStack() as files:
        module.prepare(study, session, progress, files)
        try:
            session.trainer.validate(module, verbose=False)
        except SystemExit as end:
            # Lightning calls sys.exit(1) after Ctrl-C.
            if not isinstance(end.__context__, KeyboardInterrupt):
                raise
            kept = f"{module.kept}; the same command continues"
            raise type(end.__context__)(kept) from end
    return module
