"""Passes, the parts of every study, and the facts that decide their numbers.

A *pass* is one source under one change of the model. A finished pass is a file of arrays, named by
a hash of the facts that decide its numbers: checkpoint, texts, precision and so on. So a study
continues where it stopped.

Shapes: B windows of a batch, T positions.
"""

import hashlib
import json
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch import Trainer

from dualpath_cli.base.system import open_regular, replacing
from dualpath_cli.data.documents import Source, source_files
from dualpath_cli.data.manifest import MANIFEST, Manifest
from dualpath_cli.data.storage import exists, local_copy
from dualpath_cli.data.windows import Windows
from dualpath_cli.kernels.device import device_name
from dualpath_cli.report.bootstrap import clusters_of
from dualpath_cli.run.checkpoint_files import hash_file
from dualpath_cli.run.exported_folder import hash_of_weights
from dualpath_cli.training.launch import StudyLaunch
from dualpath_cli.training.module import DualPathModule


def study_facts(launch: StudyLaunch, trainer: Trainer) -> dict[str, Any]:
    """Facts of a report: the checkpoint with one hash of its weights, model, machine, data."""
    settings, run = launch.settings, launch.run
    sha256 = hash_of_weights(run.checkpoint)
    return {
        "checkpoint": {"path": str(run.checkpoint), "step": run.step, "sha256": sha256},
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
    """The facts that decide numbers to the last bit; paths of files are not among these."""
    names = ("model", "seed", "precision", "device", "torch", "devices", "micro_batch")
    return {name: facts[name] for name in names} | {
        "checkpoint": facts["checkpoint"]["sha256"],
        "strategy": type(trainer.strategy).__name__,
        "matmul": torch.get_float32_matmul_precision(),
    }


def source_facts(name: str, location: str, windows: Windows, tokenizer: str) -> dict[str, Any]:
    """Facts about a source; `tokenizer` is the fingerprint of its tokenizer.

    `sha256` is the hash of the source's file or concatenated files, or a data folder's fingerprint.
    """
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
        digest.update(f"{len(array)}/".encode())
        digest.update(np.ascontiguousarray(array, np.int64).tobytes())
    return digest.hexdigest()


Arrays = dict[str, npt.NDArray[Any]]  # results of a pass by name

_SEAL = "seal"  # the name, in a pass's file, of `Pass._seal`
FILLER = -1  # the place of a window that only fills up a batch


@dataclass
class Pass(ABC):
    """One source under one change of the model; each study has its own class of passes."""

    source: str
    windows: Windows
    path: Path = field(init=False)  # of the file of its arrays; `locate` sets it
    arrays: Arrays = field(default_factory=dict, init=False)  # on rank 0; empty until finished

    last_is_input: ClassVar[bool] = False  # whether the last token of each window is an input, too

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
        """Facts, for JSON, that decide this pass's numbers, besides windows and shared facts."""

    @abstractmethod
    def begin(self, module: DualPathModule, files: ExitStack) -> None:
        """Starts the pass, on all ranks, before the first batch.

        A file entered into `files` is complete when the pass ends, and deleted if it fails.
        """

    @abstractmethod
    def step(self, tokens: torch.Tensor, targets: torch.Tensor, places: list[int]) -> None:
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
        read = {
            "windows": array_digest(self.windows.windows),
            "clusters": clusters_of(self.windows).of_window,
        }
        text = json.dumps({**facts, **read, **self.decisive}, sort_keys=True)
        self._key = hashlib.sha256(text.encode()).hexdigest()
        self.path = folder / f"{self.source}-{self._key[:16]}.npz"

    def find(self) -> bool:
        """Reads the arrays of a finished pass; False if there are none, or if the seal differs."""
        try:
            arrays = read_arrays(self.path)
            found = arrays.pop(_SEAL, np.array("")).item() == self._seal(arrays)
        except (OSError, EOFError, TypeError, ValueError, RuntimeError, zipfile.BadZipFile,
                zlib.error):  # fmt: skip
            return False
        self.arrays = arrays if found else {}
        return found

    def keep(self, arrays: Arrays) -> None:
        """Writes the arrays, whole or not at all: their file marks the pass as finished."""
        with replacing(self.path) as partial, partial.open("wb") as file:
            sealed = arrays | {_SEAL: np.array(self._seal(arrays))}
            np.savez_compressed(file, **sealed)  # type: ignore[arg-type]
        self.arrays = arrays

    def _seal(self, arrays: Arrays) -> str:
        """A hash of the deciding facts and of the numbers: a renamed file fails the check."""
        digest = hashlib.sha256(self._key.encode())
        for name, array in sorted(arrays.items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        if self.table is not None:
            digest.update(hash_file(self.path.with_suffix(self.table)).encode())
        return digest.hexdigest()


def read_arrays(path: Path) -> Arrays:
    with open_regular(path) as file, np.load(file) as arrays:
        return dict(arrays)
