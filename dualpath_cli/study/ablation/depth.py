"""The passes of the suite `depth`: fewer steps, held states, exits and blind schedules.

The documents of a source are divided by a seed: read-outs are fitted on some, and all
rows are scored on the others.

- `FitPass` fits the read-outs of an intervention (`read_outs.py`);
- `ReadOutPass` scores the intervention with them, and with the model's own;
- `ExitPass` scores an exit, and counts the steps that tokens take;
- `BlindPass` scores a schedule with the same mean number of steps (`schedules.py`).

Shapes: B windows of a batch, T positions, N tokens, D model width.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.seeds import seed_from
from dualpath_cli.data.windows import Windows
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.decoding.early_exit import Schedule
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.report.bootstrap import LEAST_CLUSTERS, clusters_of
from dualpath_cli.run.weights import from_all_ranks
from dualpath_cli.study.ablation import read_outs, schedules
from dualpath_cli.study.ablation.options import AblationRow
from dualpath_cli.study.ablation.passes import AblationPass, RowPass, ScoredBatch
from dualpath_cli.study.bench import (
    FILLER,
    Arrays,
    Pass,
    array_digest,
    found_by_all_ranks,
)
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.parallel import whole_weight

SEED = 0
"""Seed of the division of documents."""
MOST_TOKENS = 2**13
"""Documents to fit read-outs on are drawn until they have this many tokens, or half of
the source's tokens if that is less."""
LEAST_UNITS = 2
"""The fewest documents, or windows, that a source needs to be divided."""


@dataclass(frozen=True)
class Division:
    """A source's windows to score, and others to fit read-outs on."""

    scored: Windows
    fitted: Windows
    unit: str  # `documents` or `windows`
    n_scored: int  # documents or windows
    n_fitted: int

    @property
    def facts(self) -> dict[str, Any]:
        """For a report."""
        return {
            "seed": SEED,
            "scored": {"unit": self.unit, "count": self.n_scored},
            "scored_tokens": self.scored.n_tokens,
            "fitted": {"unit": self.unit, "count": self.n_fitted},
            "fitted_tokens": self.fitted.n_tokens,
        }


def divide(source: str, windows: Windows, multiple_of: int) -> Division:
    """Divides windows by document, or by window where documents are too few or unknown.

    Windows that fill up batches are added up to a multiple.
    """
    clusters = clusters_of(windows)
    of_window = np.array(clusters.of_window)
    units = np.unique(of_window)
    if len(units) < LEAST_UNITS:
        raise UserError(
            f"--suite depth: '{source}' has {clusters}, and some must be "
            f"left to fit read-outs on; give {LEAST_UNITS} or more, or other suites"
        )

    order = np.random.default_rng(seed_from(SEED, source)).permutation(units)
    tokens = [int(windows.tokens[of_window == unit].sum()) for unit in order]
    ends = np.cumsum(tokens)

    wanted = min(windows.n_tokens / 2, MOST_TOKENS)
    count = int(np.searchsorted(ends, wanted)) + 1
    # What is scored keeps enough of them for an interval, where there are more.
    kept = LEAST_CLUSTERS if len(units) > LEAST_CLUSTERS else 1
    count = min(count, len(units) - kept)

    def part(chosen: npt.NDArray[np.integer]) -> Windows:
        places = np.flatnonzero(np.isin(of_window, chosen)).tolist()
        documents = windows.documents
        return Windows(
            [windows.windows[place] for place in places],
            None if documents is None else [documents[place] for place in places],
            multiple_of,
        )

    return Division(
        scored=part(order[count:]),
        fitted=part(order[:count]),
        unit=clusters.unit,
        n_scored=len(units) - count,
        n_fitted=count,
    )


@dataclass
class FitPass(RowPass):
    """Fits the read-outs of an intervention."""

    @property
    def title(self) -> str:
        return f"{self.source}: read-outs of {self.row.intervention.name}"

    @property
    def decisive(self) -> Mapping[str, Any]:
        return {**super().decisive, "fit": read_outs.FACTS}

    def begin(self, module: DualPathModule, files: ExitStack) -> None:
        super().begin(module, files)
        # by place: head inputs (T, D) and next tokens (T,) of a window
        self._text: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def step(
        self, tokens: torch.Tensor, targets: torch.Tensor, places: list[int]
    ) -> None:
        z_BTD = forward(
            self.model, tokens, intervention=self.row.intervention, head=False
        )
        for z_TD, targets_T, place in zip(z_BTD, targets, places, strict=True):
            if place != FILLER:
                scored_T = targets_T != IGNORE
                own = (z_TD[scored_T].float().cpu(), targets_T[scored_T].cpu())
                self._text[place] = own

    def end(self) -> Arrays:
        """The numbers of the read-outs, and of their fits."""
        of_places = found_by_all_ranks(self._text)
        in_order = [of_places[place] for place in sorted(of_places)]
        states, targets = zip(*in_order, strict=True)

        head_VD = whole_weight(self.model, "head.weight").float()
        device = head_VD.device
        text = read_outs.Text(
            torch.cat(states).to(device), torch.cat(targets).to(device)
        )
        with torch.autocast(device.type, enabled=False):
            return read_outs.fit_all(text, head_VD)


@dataclass
class ReadOutPass(AblationPass):
    """An intervention with the model's read-out, and with those that are fitted."""

    fit: FitPass = field(kw_only=True)

    @property
    def decisive(self) -> Mapping[str, Any]:
        fitted_on = array_digest(self.fit.windows.windows)
        return {**super().decisive, **self.fit.decisive, "fitted_on": fitted_on}

    def begin(self, module: DualPathModule, files: ExitStack) -> None:
        super().begin(module, files)
        arrays, *_ = from_all_ranks(self.fit.arrays)
        self._head = whole_weight(self.model, "head.weight")
        self._read_outs = read_outs.read_outs_of(arrays, self._head.device)

    def losses(self, batch: ScoredBatch) -> dict[str, torch.Tensor]:
        z_BTD = forward(
            self.model,
            batch.tokens,
            trace=batch.trace,
            intervention=self.row.intervention,
            token_mask=batch.overridden,
            head=False,
        )
        states = {"nats": z_BTD}
        for name, read_out in self._read_outs.items():
            with torch.autocast(z_BTD.device.type, enabled=False):
                states[f"nats_{name}"] = read_out(z_BTD.float()).to(z_BTD.dtype)
        return {
            name: self.model.loss(state_BTD, self._head, batch.targets)
            for name, state_BTD in states.items()
        }


@dataclass
class ExitPass(AblationPass):
    """An exit, by the steps that tokens take."""

    def begin(self, module: DualPathModule, files: ExitStack) -> None:
        super().begin(module, files)
        self._counts = schedules.StepCounts(module.config)

    def losses(self, batch: ScoredBatch) -> dict[str, torch.Tensor]:
        nats = super().losses(batch)
        self._counts.add(batch.trace, batch.scored)
        return nats

    def end(self) -> Arrays:
        """Also `steps` and `takers`, (1 + A, P): sums over the tokens in each bin of
        positions, of each application of a layer and of the core."""
        counts = self._counts
        steps_RAP = from_all_ranks(counts.steps_AP.numpy())
        takers_RAP = from_all_ranks(counts.takers_AP.numpy())
        return {
            **super().end(),
            "steps": np.sum(steps_RAP, axis=0),
            "takers": np.sum(takers_RAP, axis=0),
        }


@dataclass
class BlindPass(AblationPass):
    """A schedule with the mean number of steps of an exit."""

    exit_: ExitPass = field(kw_only=True)

    @property
    def decisive(self) -> Mapping[str, Any]:
        return {**super().decisive, "seed": schedules.SEED}

    def begin(self, module: DualPathModule, files: ExitStack) -> None:
        super().begin(module, files)
        counts, *_ = from_all_ranks(self.exit_.arrays)
        blind = self.row.intervention.blind
        assert blind is not None
        self._means = schedules.means_of(counts["steps"], counts["takers"], blind)

    def schedule(self, batch: ScoredBatch) -> Schedule:
        return schedules.schedule_of(
            self._module.config,
            self._means,
            self.source,
            batch.places,
            batch.tokens.shape[1],
            batch.tokens.device,
        )


def depth_passes(
    source: str, division: Division, rows: Sequence[AblationRow]
) -> list[Pass]:
    """The passes over a source, each behind the one whose numbers it takes."""
    scored = division.scored
    passes: list[Pass] = []
    exits: dict[float, ExitPass] = {}
    for row in rows:
        change = row.intervention
        if change.halting is None:
            fit = FitPass(source, division.fitted, row)
            passes += [fit, ReadOutPass(source, scored, row, fit=fit)]
        elif change.blind is None:
            exits[change.halting] = ExitPass(source, scored, row)
            passes.append(exits[change.halting])
        else:
            exit_ = exits[change.halting]
            passes.append(BlindPass(source, scored, row, exit_=exit_))

    return passes
