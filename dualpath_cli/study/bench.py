"""The bench of all studies: runs passes on any number of devices, and keeps them.

A *pass* is one source under one change of the model. A finished pass is a file of
arrays, named by a hash of the facts that decide its numbers: checkpoint, texts,
precision and so on. So a study continues where it stopped.

A study consists of its passes, their work on a batch (`Pass`), and its report. All
passes go through one `Trainer.validate`, whose strategy places the model and divides
the windows.

Shapes: B windows of a batch, T positions.
"""

import hashlib
import json
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader

from dualpath_cli.base.files import hash_file, open_regular, replacing
from dualpath_cli.base.version import device_name
from dualpath_cli.data.documents import Source, source_files
from dualpath_cli.data.manifest import MANIFEST, Manifest
from dualpath_cli.data.storage import exists, local_copy
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.windows import Window, Windows, collate
from dualpath_cli.model import DualPathLM
from dualpath_cli.recipe.settings import ValidationSet
from dualpath_cli.report.bootstrap import clusters_of
from dualpath_cli.report.console import Progress, counted
from dualpath_cli.run.exported_folder import hash_of_weights
from dualpath_cli.run.weights import from_all_ranks
from dualpath_cli.training.data_module import TokenBatch
from dualpath_cli.training.launch import RunLaunch
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.session import Session


def study_facts(launch: RunLaunch, trainer: Trainer) -> dict[str, Any]:
    """Facts of a report: checkpoint, with one hash of its weights, model, machine,
    data."""
    settings = launch.settings
    run = launch.run
    checkpoint = {
        "path": str(run.checkpoint),
        "step": run.step,
        "sha256": hash_of_weights(run.checkpoint),
    }
    return {
        "checkpoint": checkpoint,
        "model": asdict(settings.model),
        "seed": settings.seed_everything,
        "precision": str(trainer.precision),
        "device": device_name(trainer.strategy.root_device),
        "torch": torch.__version__,
        "devices": trainer.world_size,
        "micro_batch": settings.run.micro_batch,
        "max_tokens": settings.data.val_tokens,
        "val_seed": settings.data.val_seed,
    }


def decisive_facts(facts: dict[str, Any], trainer: Trainer) -> dict[str, Any]:
    """The facts that decide numbers to the last bit, so without paths of files."""
    names = ("model", "seed", "precision", "device", "torch", "devices", "micro_batch")
    return {name: facts[name] for name in names} | {
        "checkpoint": facts["checkpoint"]["sha256"],
        "strategy": type(trainer.strategy).__name__,
        "matmul": torch.get_float32_matmul_precision(),
    }


def source_facts(
    name: str, validation_set: ValidationSet, windows: Windows, tokenizer: str
) -> dict[str, Any]:
    """Facts about a source; `tokenizer` is the fingerprint of its tokenizer.

    `sha256` is the hash of the source's file or concatenated files, or a data folder's
    fingerprint.
    """
    location = validation_set.path
    if exists(f"{location}/{MANIFEST}"):
        digest = Manifest.read(location).fingerprint
    else:
        content = hashlib.sha256()
        for path in source_files(Source(name, local_copy(location))):
            with path.open("rb") as file:
                hashlib.file_digest(file, lambda: content)
        digest = content.hexdigest()

    return {
        "name": name,
        "path": location,
        "field": validation_set.field,
        "sha256": digest,
        "tokenizer": tokenizer,
        "sequences": windows.n_filled,
        "tokens": windows.n_tokens,
        "clusters": clusters_of(windows).facts,
    }


def array_digest(arrays: Iterable[npt.NDArray[Any]]) -> str:
    """Hash of arrays of whole numbers, and of their lengths."""
    digest = hashlib.sha256()
    for array in arrays:
        # Without lengths, [1] and [2] would have the hash of [1, 2].
        digest.update(f"{len(array)}/".encode())
        digest.update(np.ascontiguousarray(array, np.int64).tobytes())
    return digest.hexdigest()


Arrays = dict[str, npt.NDArray[Any]]  # results of a pass by name

_SEAL = "seal"  # the name, in a pass's file, of `Pass._seal`
_DAMAGED = (
    OSError,
    EOFError,
    TypeError,
    ValueError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading a missing or damaged file of arrays raises."""
FoundT = TypeVar("FoundT")
FILLER = -1  # the place of a window that only fills up a batch


@dataclass
class Pass(ABC):
    """One source under one change of the model; each study has its own class of
    passes."""

    source: str
    windows: Windows
    path: Path = field(init=False)  # of the file of its arrays; `locate` sets it
    # on rank 0; empty until finished
    arrays: Arrays = field(default_factory=dict, init=False)

    # whether the last token of each window is an input, too
    last_is_input: ClassVar[bool] = False

    @property
    def table(self) -> str | None:
        """Suffix of a second file of a finished pass, beside the file of arrays."""
        return None

    @property
    @abstractmethod
    def title(self) -> str:
        """The pass's name on the screen."""

    @property
    @abstractmethod
    def decisive(self) -> Mapping[str, Any]:
        """Facts, for JSON, that decide this pass's numbers, besides windows and shared
        facts."""

    @property
    def model(self) -> DualPathLM:
        """The model that the pass runs; there is one once the pass has begun."""
        return self._module.model

    def begin(self, module: DualPathModule, files: ExitStack) -> None:
        """Starts the pass, on all ranks, before the first batch.

        A file entered into `files` is complete when the pass ends, and deleted if it
        fails.
        """
        self._module = module

    @abstractmethod
    def step(
        self, tokens: torch.Tensor, targets: torch.Tensor, places: list[int]
    ) -> None:
        """Runs the model on one batch of this rank, (B, T) each.

        `places` are the indices of the batch's windows in `windows`, or `FILLER`.
        """

    @abstractmethod
    def end(self) -> Arrays:
        """Returns the results of all ranks; all ranks call it after the last batch."""

    def locate(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Sets the path of the pass's file, by the facts that decide its numbers.

        `facts` are the facts that all passes share: checkpoint, precision and so on.
        """
        # The windows' tokens decide the numbers, wherever the text came from.
        text_facts = {
            "windows": array_digest(self.windows.windows),
            "clusters": clusters_of(self.windows).of_window,
        }
        text = json.dumps({**facts, **text_facts, **self.decisive}, sort_keys=True)
        self._key = hashlib.sha256(text.encode()).hexdigest()
        self.path = folder / f"{self.source}-{self._key[:16]}.npz"

    def read_finished(self) -> bool:
        """Reads the arrays of a finished pass; False if there are none, or if the seal
        differs."""
        try:
            arrays = read_arrays(self.path)
            seal = arrays.pop(_SEAL, np.array("")).item()
            is_finished = seal == self._seal(arrays)
        except _DAMAGED:
            return False

        self.arrays = arrays if is_finished else {}
        return is_finished

    def write_finished(self, arrays: Arrays) -> None:
        """Writes the arrays, whole or not at all: their file marks the pass as
        finished."""
        sealed = arrays | {_SEAL: np.array(self._seal(arrays))}
        write_arrays(self.path, sealed)
        self.arrays = arrays

    def _seal(self, arrays: Arrays) -> str:
        """A hash of the deciding facts and of the numbers: a renamed file fails the
        check."""
        digest = hashlib.sha256(self._key.encode())
        for name, array in sorted(arrays.items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())

        if self.table is not None:
            digest.update(hash_file(self.path.with_suffix(self.table)).encode())
        return digest.hexdigest()


def found_by_all_ranks(own: Mapping[int, FoundT]) -> dict[int, FoundT]:
    """What all ranks found, by the places of windows in their source."""
    found: dict[int, FoundT] = {}
    for of_rank in from_all_ranks(own):
        found |= of_rank
    return found


def write_arrays(path: Path, arrays: Arrays) -> None:
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_arrays(path: Path) -> Arrays:
    with open_regular(path) as file, np.load(file) as arrays:
        return dict(arrays)


PassT = TypeVar("PassT", bound=Pass)


class Study(ABC, Generic[PassT]):
    """A study: its passes over a source, and its use of their results."""

    semantics: int
    """A version, raised when new code gives other numbers for the same model and
    texts."""
    folder: Path
    """The folder of finished passes."""

    @abstractmethod
    def passes(
        self, source: str, windows: Windows, tokenizer: Tokenizer
    ) -> Sequence[PassT]:
        """Returns the passes over a source."""

    @abstractmethod
    def finish(self, source: str, passes: Sequence[PassT]) -> None:
        """Takes the finished passes over a source, on the first rank."""


class StudyModule(DualPathModule):
    """Runs passes as Lightning's validation: one dataloader for each pass, in order."""

    def prepare(
        self,
        study: Study[Any],
        session: Session[RunLaunch],
        progress: Progress,
        files: ExitStack,
    ) -> None:
        """Sets the study to run; `files` closes the files of an interrupted pass."""
        self.facts: dict[str, Any] = {}
        """Facts that all passes share, for the report."""
        self.sources: dict[str, dict[str, Any]] = {}
        """Facts about each source, for the report."""

        self._study = study
        self._session = session
        self._progress = progress
        self._files = files
        self._passes: dict[str, Sequence[Pass]] = {}  # by source
        self._missing: list[Pass] = []
        self._batches: list[range] = []  # of the current pass

    def val_dataloader(self) -> list[DataLoader[Window]]:
        """A loader for each pass that no earlier call finished.

        Made here, as the number of ranks is not known earlier.
        """
        launch = self._session.launch
        self._session.datamodule.trainer = self.trainer
        self.facts = study_facts(launch, self.trainer)
        decisive = decisive_facts(self.facts, self.trainer)
        decisive["semantics"] = self._study.semantics

        for name, validation_set in launch.settings.data.validation_sets.items():
            self._add_source(name, validation_set, decisive)

        loaders = [self._loader(pass_) for pass_ in self._missing]
        self._progress.begin(sum(map(len, loaders)))

        # Reports of sources without a missing pass do not wait for others.
        for name in self._passes:
            self._finish_if_complete(name)
        return loaders

    def _add_source(
        self, name: str, validation_set: ValidationSet, decisive: Mapping[str, Any]
    ) -> None:
        """Cuts a source into windows, and finds the passes that are missing."""
        datamodule = self._session.datamodule
        tokenizer = datamodule.tokenizer
        windows = datamodule.windows(name)
        fingerprint = tokenizer.fingerprint
        self.sources[name] = source_facts(name, validation_set, windows, fingerprint)

        self._passes[name] = self._study.passes(name, windows, tokenizer)
        for pass_ in self._passes[name]:
            pass_.locate(self._study.folder, decisive)
            # All ranks run the passes that the first rank lacks: nodes have
            # different files.
            is_missing = self.trainer.is_global_zero and not pass_.read_finished()
            if self.trainer.strategy.broadcast(is_missing):
                self._missing.append(pass_)

    def _loader(self, pass_: Pass) -> DataLoader[Window]:
        """The batches of a pass."""
        collate_pass = partial(collate, last_is_input=pass_.last_is_input)
        return self._session.datamodule.loader(pass_.windows, collate_pass)

    @property
    def kept(self) -> str:
        """The number of finished passes on the first rank, as text."""
        passes = list(chain.from_iterable(self._passes.values()))
        finished = sum(bool(pass_.arrays) for pass_ in passes)
        return f"{finished} of {len(passes)} passes are kept"

    def validation_step(
        self, batch: TokenBatch, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Runs a batch; the last one of a pass ends it."""
        pass_ = self._missing[dataloader_idx]
        tokens, targets = batch
        # Lightning has no hook between two dataloaders of one validation.
        if batch_idx == 0:
            pass_.begin(self, self._files)
            self._batches = self._session.datamodule.batches(pass_.windows)

        # Ranks take turns with the windows of a batch.
        rank = self.trainer.global_rank
        ranks = self.trainer.world_size
        all_places = self._batches[batch_idx]
        own_places = all_places[rank::ranks]

        n_filled = pass_.windows.n_filled
        places = [place if place < n_filled else FILLER for place in own_places]
        pass_.step(tokens, targets, places)
        self._progress.advance(title=pass_.title)

        is_last_batch = batch_idx + 1 == len(self._batches)
        if is_last_batch:
            arrays = pass_.end()
            self._files.close()
            if self.trainer.is_global_zero:
                pass_.write_finished(arrays)
                self._finish_if_complete(pass_.source)

    def on_validation_epoch_end(self) -> None:
        """Publishes no metric."""

    def _finish_if_complete(self, source: str) -> None:
        passes = self._passes[source]
        if all(pass_.arrays for pass_ in passes):
            self._study.finish(source, passes)


def run_passes(study: Study[Any], session: Session[RunLaunch]) -> StudyModule:
    """Runs all unfinished passes of a study; returns the module, which has the facts.

    Raises:
        KeyboardInterrupt: after Ctrl-C or SIGTERM, with the number of passes kept.
    """
    module = session.module
    assert isinstance(module, StudyModule)

    progress_bar = Progress(session.console, "", counted("batches"))
    with progress_bar as progress, ExitStack() as files:
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
