"""Scoring: windows of text under interventions, on any number of devices, kept as they finish.

A *pass* is one source under one intervention. All passes go through one `Trainer.validate`, whose
strategy places the model and deals out the windows. A finished pass is a file, found again by what
decides its numbers, so that a study is continued where it stopped.

Shapes: W windows, B batch, T positions.
"""

import dataclasses
import hashlib
import json
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dualpath_cli.atomic import sync
from dualpath_cli.model import Intervention, RoutingTrace
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.training.module import Batch, DualPathModule
from dualpath_cli.training.windows import Windows

Floats = npt.NDArray[np.float64]
Masks = Sequence[npt.NDArray[np.bool_]]

SEMANTICS = 1
"""Raised when the same model, texts and interventions would give other numbers than before."""


@dataclass(frozen=True)
class Scores:
    """What one pass gave; W is the number of the source's windows, longest first."""

    nats: Floats
    """Sum of the losses of each window's tokens, (W,)."""
    loops: Floats
    """Sum of the expected loops of its tokens, of each the mean over layers, (W,); nan without."""
    loops_run: float
    """Mean steps that a batch really ran in a layer; nan without loops."""


@dataclass(frozen=True)
class Pass:
    """One source under one intervention."""

    source: str
    windows: Windows
    intervention: Intervention
    masks: Masks | None = None
    """For each window, which of its input tokens the intervention is about; None: all."""


class Scorer(DualPathModule):
    """Scores passes as Lightning validates: one dataloader a pass, in their order.

    Set `passes` and `on_scored` before `Trainer.validate`; ranks see every other window.
    """

    passes: Sequence[Pass]
    on_scored: Callable[[int, Scores], object]
    """Called on the first rank with the number of a pass and what it gave."""
    on_batch: Callable[[Pass], object]
    """Called after each batch, with its pass."""

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Scores a batch; the last one of a pass ends it."""
        assert self.model is not None
        this = self.passes[dataloader_idx]
        if batch_idx == 0:
            self._columns: list[torch.Tensor] = []
            self._loops_run: list[float] = []
        tokens, targets = batch
        scored = targets != IGNORE
        mask = scored if this.masks is None else self._mask(this.masks, tokens, batch_idx)
        trace = RoutingTrace()
        nll = self.model(
            tokens, targets, trace=trace, intervention=this.intervention, token_mask=mask
        )
        self._columns.append(torch.stack([nll.double().sum(1), _loops(trace, scored)], dim=1))
        runs = [layer.loops_run for layer in trace.layers if layer.loops_run is not None]
        # A batch of padding alone, which fills up a rank's share, halts at once.
        counts = bool(runs) and bool(scored.any())
        self._loops_run.append(float(np.mean(runs)) if counts else float("nan"))
        self.on_batch(this)
        if (batch_idx + 1) * len(tokens) * self.trainer.world_size == len(this.windows):
            scores = self._gathered(this.windows)
            if self.trainer.is_global_zero:
                self.on_scored(dataloader_idx, scores)

    def on_validation_epoch_end(self) -> None:
        """Has nothing to publish."""

    def _mask(self, masks: Masks, tokens: torch.Tensor, batch_idx: int) -> torch.Tensor:
        """The masks of a batch's windows, (B, T), False at padding."""
        ranks, rank = self.trainer.world_size, self.trainer.global_rank
        mask_BT = torch.zeros(tokens.shape, dtype=torch.bool)
        for row in range(len(tokens)):
            window = (batch_idx * len(tokens) + row) * ranks + rank
            if window < len(masks):
                mask_BT[row, : len(masks[window])] = torch.from_numpy(masks[window])
        return mask_BT.to(tokens.device)

    def _gathered(self, windows: Windows) -> Scores:
        """What all ranks have, in the order of the windows, without those that fill up a batch."""
        own = torch.cat(self._columns)
        runs = torch.tensor(self._loops_run, device=own.device)
        every, every_run = self.all_gather((own, runs))
        ranked = every.reshape(-1, *own.shape).transpose(0, 1)  # (own windows, ranks, 2)
        columns = ranked.reshape(-1, 2)[: windows.n_filled].cpu().numpy()
        return Scores(columns[:, 0].copy(), columns[:, 1].copy(), float(every_run.nanmean()))


def _loops(trace: RoutingTrace, scored: torch.Tensor) -> torch.Tensor:
    """Expected loops of each window's tokens, summed, (B,): of each the mean over layers."""
    found = [layer.expected_loops for layer in trace.layers]
    per_layer = [loops.double() for loops in found if loops is not None]
    if not per_layer:
        return torch.full((len(scored),), float("nan"), device=scored.device, dtype=torch.float64)
    return (torch.stack(per_layer).mean(0) * scored).sum(1)


class ScoreStore:
    """Finished passes in a folder, found by what decides their numbers."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        """`facts` are those that all passes share: checkpoint, precision and so on."""
        self._folder = folder
        self._facts = facts

    def find(self, this: Pass) -> Scores | None:
        """Returns a pass's scores where they are there, and whole."""
        try:
            with np.load(self._path(this)) as arrays:
                found = Scores(arrays["nats"], arrays["loops"], float(arrays["run"]))
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
            return None
        return found if len(found.nats) == this.windows.n_filled else None

    def keep(self, this: Pass, scores: Scores) -> None:
        """Writes a pass's scores, whole or not at all."""
        path = self._path(this)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        with open(partial, "wb") as file:
            np.savez(file, nats=scores.nats, loops=scores.loops, run=scores.loops_run)
        sync(partial)
        partial.replace(path)

    def _path(self, this: Pass) -> Path:
        facts = {
            "semantics": SEMANTICS,
            **self._facts,
            # What is scored, wherever it came from.
            "windows": array_digest(this.windows.windows),
            "intervention": dataclasses.asdict(this.intervention),
            "masks": None if this.masks is None else array_digest(this.masks),
        }
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return self._folder / f"{this.source}-{digest[:16]}.npz"


def array_digest(arrays: Iterable[npt.NDArray[Any]]) -> str:
    """Hash of whole numbers, and of where one array ends."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{len(array)}/".encode())
        digest.update(np.ascontiguousarray(array, np.int64).tobytes())
    return digest.hexdigest()
