"""Passes, of which every study consists, and the store of those that are finished.

A *pass* is one source with one thing done to the model. A finished pass is a file of arrays, found
again by what decides its numbers, so that a study is continued where it stopped.

Shapes: B windows of a batch, T positions.
"""

import hashlib
import json
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from dualpath_cli.atomic import replacing
from dualpath_cli.study.facts import array_digest
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.windows import Windows

Arrays = dict[str, npt.NDArray[Any]]
"""What a pass gives, by name."""

FILLER = -1
"""The place of a window that only fills up a batch."""


@dataclass
class Pass(ABC):
    """One source with one thing done to the model; a study says what its passes do."""

    source: str
    windows: Windows

    last_is_input: ClassVar[bool] = False
    """Whether the last token of each window is an input, too."""
    table: ClassVar[str | None] = None
    """Suffix of a further file that a finished pass has, beside its arrays."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What is going on, for the screen."""

    @property
    @abstractmethod
    def decisive(self) -> Mapping[str, Any]:
        """What decides its numbers, as JSON has it, beside the windows and what passes share."""

    @abstractmethod
    def begin(self, module: DualPathModule, path: Path, files: ExitStack) -> None:
        """Starts on all ranks, before the first batch.

        `path` is what the arrays will be written to. A file that is entered into `files` is whole
        when the pass ends, and gone if it does not.
        """

    @abstractmethod
    def step(self, tokens: torch.Tensor, targets: torch.Tensor, places: list[int]) -> None:
        """Runs the model on one batch of this rank, (B, T) each.

        `places` are those of the windows in `windows`, or `FILLER`.
        """

    @abstractmethod
    def end(self) -> Arrays:
        """Returns what the pass gave, that of all ranks; all ranks call it after the last batch."""


class PassStore:
    """Finished passes in a folder, found by what decides their numbers."""

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """`facts` are those that all passes share: checkpoint, precision and so on."""
        self._folder = folder
        self._facts = facts

    def path(self, one: Pass) -> Path:
        """Where a pass's arrays are, or will be."""
        # The windows are what is scored, wherever it came from.
        windows = {"windows": array_digest(one.windows.windows), "numbers": one.windows.numbers}
        facts = {**self._facts, **windows, **one.decisive}
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return self._folder / f"{one.source}-{digest[:16]}.npz"

    def find(self, one: Pass) -> Arrays | None:
        """Returns a pass's arrays where all of its files are there, and whole."""
        path = self.path(one)
        if one.table is not None and not path.with_suffix(one.table).is_file():
            return None
        try:
            return read_arrays(path)
        except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error):
            return None

    def keep(self, one: Pass, arrays: Arrays) -> None:
        """Writes a pass's arrays, whole or not at all: they say that it is finished."""
        with replacing(self.path(one)) as partial, partial.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_arrays(path: Path) -> Arrays:
    """Reads the arrays of a finished pass."""
    with np.load(path) as arrays:
        return dict(arrays)
