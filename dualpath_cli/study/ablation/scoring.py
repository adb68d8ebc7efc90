"""A pass of `ablate` over a source: losses of its windows under an intervention.

Shapes: W windows of a source, B of a batch, T positions.
"""

import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.model import RoutingTrace
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.statistics.bootstrap import Floats
from dualpath_cli.study.ablation.suites import Row
from dualpath_cli.study.controls import Masks, Match
from dualpath_cli.study.facts import array_digest
from dualpath_cli.study.passes import FILLER, Arrays, Pass
from dualpath_cli.training.module import DualPathModule


@dataclass(frozen=True)
class Scores:
    """The results of one pass; W windows, the longest first."""

    nats: Floats
    """Sum of the losses of each window's tokens, (W,)."""
    loops: Floats
    """Sum of the expected loops of its tokens, of each the mean over layers, (W,); nan without."""
    passes: Floats
    """Sum of the sublayers that they passed, of each token the mean over layers, (W,)."""
    loops_run: npt.NDArray[np.float64]
    """Mean steps that a batch really ran in a layer, (); nan without loops."""


@dataclass
class Scoring(Pass):
    """One source under one intervention."""

    row: Row
    masks: Masks | None = None
    """For each window, which of its input tokens the intervention is about; None: all."""
    match: Match | None = None
    """Of tokens drawn at random, how closely they match their class."""

    @property
    def title(self) -> str:
        return f"{self.source}: {self.row.intervention.name}"

    @property
    def decisive(self) -> Mapping[str, Any]:
        return {
            "intervention": dataclasses.asdict(self.row.intervention),
            "masks": None if self.masks is None else array_digest(self.masks),
        }

    def begin(self, module: DualPathModule, files: ExitStack) -> None:
        self._module = module
        self._columns: list[torch.Tensor] = []
        self._loops_run: list[float] = []

    def step(self, tokens: torch.Tensor, targets: torch.Tensor, places: list[int]) -> None:
        assert self._module.model is not None
        scored = targets != IGNORE
        trace = RoutingTrace()
        nll = forward(
            self._module.model, tokens, targets, trace=trace, intervention=self.row.intervention,
            token_mask=scored if self.masks is None else self._mask(self.masks, tokens, places),
        )  # fmt: skip
        self._columns.append(
            torch.stack([nll.double().sum(1), _loops(trace, scored), _passes(trace, scored)], dim=1)
        )
        runs = [layer.loops_run for layer in trace.layers if layer.loops_run is not None]
        # A batch of padding alone, which fills up a rank's share, halts at once.
        counts = bool(runs) and bool(scored.any())
        self._loops_run.append(float(np.mean(runs)) if counts else float("nan"))

    def end(self) -> Arrays:
        """Returns `Scores` of all ranks, in the order of the windows."""
        scores_WC = torch.cat(self._columns)
        runs = torch.tensor(self._loops_run, device=scores_WC.device)
        gathered, all_runs = self._module.all_gather((scores_WC, runs))
        # Ranks take turns with the windows; the last ones may only fill up a batch.
        in_order = gathered.reshape(-1, *scores_WC.shape).transpose(0, 1).reshape(-1, 3)
        columns = in_order[: self.windows.n_filled].cpu().numpy()
        nats, loops, passes = columns.T
        scores = Scores(nats, loops, passes, np.array(float(all_runs.nanmean())))
        return dataclasses.asdict(scores)

    def _mask(self, masks: Masks, tokens: torch.Tensor, places: list[int]) -> torch.Tensor:
        """The masks of a batch's windows, (B, T), False at padding."""
        mask_BT = torch.zeros(tokens.shape, dtype=torch.bool)
        for row, place in enumerate(places):
            if place != FILLER:
                mask_BT[row, : len(masks[place])] = torch.from_numpy(masks[place])
        return mask_BT.to(tokens.device)


def _loops(trace: RoutingTrace, scored: torch.Tensor) -> torch.Tensor:
    """Expected loops of each window's tokens, summed, (B,): of each the mean over layers."""
    layers = [layer.expected_loops for layer in trace.layers]
    loops = [layer.double() for layer in layers if layer is not None]
    if not loops:
        return torch.full((len(scored),), float("nan"), device=scored.device, dtype=torch.float64)
    return (torch.stack(loops).mean(0) * scored).sum(1)


def _passes(trace: RoutingTrace, scored: torch.Tensor) -> torch.Tensor:
    """Sublayers that each window's tokens passed, summed, (B,): of each the mean over layers."""
    passes = torch.stack([layer.passes for layer in trace.layers]).double()
    return (passes.mean(0) * scored).sum(1)
