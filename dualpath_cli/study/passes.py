"""Passes, of which every study consists, and how those that are finished are kept.

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from dualpath_cli.files import replacing
from dualpath_cli.statistics.bootstrap import clusters_of
from dualpath_cli.study.facts import array_digest
from dualpath_cli.training.data.windows import Windows
from dualpath_cli.training.module import DualPathModule

Arrays = dict[str, npt.NDArray[Any]]
"""The results of a pass, by name."""

FILLER = -1
"""The place of a window that only fills up a batch."""


@dataclass
class Pass(ABC):
    """One source with one thing done to the model; a study says what its passes do."""

    source: str
    windows: Windows
    path: Path = field(init=False)
    """Of the file of its arrays; `locate` sets it."""
    arrays: Arrays = field(default_factory=dict, init=False)
    """Its results, on the first rank; empty until it is finished."""
    untrained: bool = field(default=False, kw_only=True)
    """Whether the model has the weights that the run began with, not those of the checkpoint."""

    last_is_input: ClassVar[bool] = False
    """Whether the last token of each window is an input, too."""

    @property
    def table(self) -> str | None:
        """Suffix of a further file that a finished pass has, beside its arrays."""
        return None

    @property
    @abstractmethod
    def title(self) -> str:
        """Its name on the screen."""

    @property
    @abstractmethod
    def decisive(self) -> Mapping[str, Any]:
        """Facts that decide its numbers, for JSON, besides the windows and those of all passes."""

    @abstractmethod
    def begin(self, module: DualPathModule, files: ExitStack) -> None:
        """Starts on all ranks, before the first batch.

        A file that is entered into `files` is whole when the pass ends, and gone if it does not.
        """

    @abstractmethod
    def step(self, tokens: torch.Tensor, targets: torch.Tensor, places: list[int]) -> None:
        """Runs the model on one batch of this rank, (B, T) each.

        `places` are those of the windows in `windows`, or `FILLER`.
        """

    @abstractmethod
    def end(self) -> Arrays:
        """Returns what the pass gave, that of all ranks; all ranks call it after the last batch."""

    def locate(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Names its file by what decides its numbers.

        `facts` are those that all passes share: checkpoint, precision and so on.
        """
        # The windows are what is scored, wherever it came from.
        read = {
            "windows": array_digest(self.windows.windows),
            "clusters": clusters_of(self.windows).of_window,
            "untrained": self.untrained,
        }
        text = json.dumps({**facts, **read, **self.decisive}, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        self.path = folder / f"{self.source}-{digest[:16]}.npz"

    def find(self) -> bool:
        """Reads its arrays where an earlier call finished it and all of its files are whole."""
        if self.table is not None and not self.path.with_suffix(self.table).is_file():
            return False
        try:
            self.arrays = read_arrays(self.path)
        except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error):
            return False
        return True

    def keep(self, arrays: Arrays) -> None:
        """Writes its arrays, whole or not at all: they say that it is finished."""
        with replacing(self.path) as partial, partial.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        self.arrays = arrays


def read_arrays(path: Path) -> Arrays:
    with np.load(path) as arrays:
        return dict(arrays)
