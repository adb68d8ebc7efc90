"""The passes of an ablation: what each writes down of a batch, and of a source.

- `RowPass` is a source under the intervention of a row;
- `AblationPass` scores the source: losses, and the steps that tokens take.

The suite `depth` has passes of its own (`depth.py`).

Shapes: W windows of a source, B of a batch, T positions.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch

from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.decoding.early_exit import Schedule
from dualpath_cli.model import RoutingTrace
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.model.routing import LayerTrace
from dualpath_cli.run.weights import from_all_ranks
from dualpath_cli.study.ablation.options import AblationRow
from dualpath_cli.study.bench import (
    FILLER,
    Arrays,
    Pass,
    array_digest,
    found_by_all_ranks,
)
from dualpath_cli.study.controls import Masks, MatchQuality
from dualpath_cli.training.module import DualPathModule


@dataclass
class RowPass(Pass):
    """A source under the intervention of a row."""

    row: AblationRow

    @property
    def title(self) -> str:
        return f"{self.source}: {self.row.intervention.name}"

    @property
    def decisive(self) -> Mapping[str, Any]:
        """All fields, also those at None: a new field of `Intervention` renames every
        file, and kept passes are scored again."""
        return {"intervention": asdict(self.row.intervention)}


@dataclass(frozen=True)
class ScoredBatch:
    """A batch of a pass, and the trace that its forward pass fills."""

    tokens: torch.Tensor  # (B, T)
    targets: torch.Tensor  # (B, T)
    overridden: torch.Tensor  # tokens that the intervention changes, (B, T)
    places: list[int]  # of the windows in the source, or `FILLER`
    trace: RoutingTrace = field(default_factory=RoutingTrace)

    @property
    def scored(self) -> torch.Tensor:
        """True at tokens with a target, (B, T)."""
        return self.targets != IGNORE


@dataclass
class AblationPass(RowPass):
    """The scores of a source under an intervention, on all tokens or on some."""

    # True at overridden input tokens of each window; None: all
    masks: Masks | None = None
    match: MatchQuality | None = None  # of random tokens and their class

    @property
    def decisive(self) -> Mapping[str, Any]:
        masks = None if self.masks is None else array_digest(self.masks)
        return {**super().decisive, "masks": masks}

    def begin(self, module: DualPathModule, files: ExitStack) -> None:
        super().begin(module, files)
        # of each window, by its place: sums over its tokens by name
        self._sums: dict[int, dict[str, float]] = {}
        # of each batch: steps of a loop, repetitions of the core
        self._loops_run: list[tuple[float, float]] = []

    def step(
        self, tokens: torch.Tensor, targets: torch.Tensor, places: list[int]
    ) -> None:
        overridden_BT = targets != IGNORE
        if self.masks is not None:
            overridden_BT = _batch_mask(self.masks, tokens, places)

        batch = ScoredBatch(tokens, targets, overridden_BT, places)
        losses = self.losses(batch)
        trace = batch.trace
        of_tokens: dict[str, torch.Tensor | None] = {
            **losses,
            "loops": _loops_of_tokens(trace),
            "passes": _passes_of_tokens(trace, self._module.config.n_layers),
        }
        core = []
        if trace.core is not None:
            core.append(trace.core)
            of_tokens["core_loops"] = trace.core.expected_loops
        sums = {
            name: _window_sums(values_BT, batch.scored).tolist()
            for name, values_BT in of_tokens.items()
        }
        for row, place in enumerate(places):
            self._sums[place] = {name: of_B[row] for name, of_B in sums.items()}

        # A batch of padding, which only fills up a rank's share, halts at once.
        counts = bool(batch.scored.any())
        loops_run = _loops_run(trace.layers) if counts else math.nan
        core_loops_run = _loops_run(core) if counts else math.nan
        self._loops_run.append((loops_run, core_loops_run))

    def losses(self, batch: ScoredBatch) -> dict[str, torch.Tensor]:
        """The losses of a batch's tokens in nats by name, (B, T) each; fills the
        trace."""
        nll_BT = forward(
            self.model,
            batch.tokens,
            batch.targets,
            trace=batch.trace,
            intervention=self.row.intervention,
            token_mask=batch.overridden,
            schedule=self.schedule(batch),
        )
        return {"nats": nll_BT}

    def schedule(self, batch: ScoredBatch) -> Schedule | None:
        """The schedule of a blind exit; None for all other interventions."""
        return None

    def end(self) -> Arrays:
        """The scores of all ranks' windows, in their order; without loops their numbers
        are nan.

        Of each window, (W,): `nats`, the sum of its tokens' losses; `loops` and
        `passes`, the sums of expected loops and of sublayers passed, means over layers.
        `loops_run`, (), is the mean number of steps that a batch ran in a layer. With a
        core also `core_loops` and `core_loops_run`, of its repetitions.
        """
        # `FILLER` is among the places, and not read.
        sums = found_by_all_ranks(self._sums)
        in_order = [sums[place] for place in range(self.windows.n_filled)]
        arrays = {
            name: np.array([of_window[name] for of_window in in_order])
            for name in in_order[0]
        }

        runs = list(chain.from_iterable(from_all_ranks(self._loops_run)))
        # Without a type they would get that of the trainer's precision.
        runs_N2 = torch.tensor(runs, dtype=torch.float64)
        loops_run, core_loops_run = runs_N2.nanmean(0).tolist()
        arrays["loops_run"] = np.array(loops_run)
        if self._module.config.core is not None:
            arrays["core_loops_run"] = np.array(core_loops_run)
        return arrays


def _batch_mask(
    masks: Masks, tokens_BT: torch.Tensor, places: list[int]
) -> torch.Tensor:
    """The masks of a batch's windows, (B, T), False at padding."""
    mask_BT = torch.zeros(tokens_BT.shape, dtype=torch.bool)
    for row, place in enumerate(places):
        if place != FILLER:
            mask_BT[row, : len(masks[place])] = torch.from_numpy(masks[place])

    return mask_BT.to(tokens_BT.device)


def _window_sums(
    values_BT: torch.Tensor | None, scored_BT: torch.Tensor
) -> torch.Tensor:
    """Sums over each window's tokens, (B,); nan without numbers."""
    if values_BT is None:
        shape = (len(scored_BT),)
        return torch.full(shape, math.nan, device=scored_BT.device, dtype=torch.float64)

    return (values_BT.double() * scored_BT).sum(1)


def _loops_of_tokens(trace: RoutingTrace) -> torch.Tensor | None:
    """Each token's expected steps of a loop, (B, T), a mean over the deep paths that it
    took; None without deep paths."""
    loops = []
    taken = []
    for layer in trace.layers:
        if layer.expected_loops is not None:
            taken_BT = takes(trace, layer)
            loops.append(layer.expected_loops.double() * taken_BT)
            taken.append(taken_BT)

    if not loops:
        return None
    return torch.stack(loops).sum(0) / torch.stack(taken).sum(0)


def _passes_of_tokens(trace: RoutingTrace, n_layers: int) -> torch.Tensor:
    """The sublayers that each token passed, (B, T), a mean over layers: in the core
    those of all repetitions."""
    passes = [layer.passes.double() * takes(trace, layer) for layer in trace.layers]
    return torch.stack(passes).sum(0) / n_layers


def takes(trace: RoutingTrace, layer: LayerTrace) -> torch.Tensor:
    """Whether each token took an application of a layer, (B, T): not after it stopped
    in an earlier repetition of the core."""
    if layer.repetition == 0:
        return torch.ones_like(layer.passes, dtype=torch.bool)

    assert trace.core is not None
    assert trace.core.steps_taken is not None
    return trace.core.steps_taken > layer.repetition


def _loops_run(loops: Sequence[LayerTrace]) -> float:
    """The mean number of steps that were run; nan without a loop."""
    runs = [loop.loops_run for loop in loops if loop.loops_run is not None]
    return float(np.mean(runs)) if runs else math.nan
