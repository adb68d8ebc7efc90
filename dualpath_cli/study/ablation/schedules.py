"""Schedules of steps that are blind to the text, as deep on average as an exit.

An exit chooses the steps of each token by its state. Beside it, with the same mean
number of steps in every application of a layer, and in a routed core:

    all         every token has the same mean
    position    the mean depends on a token's position: 0, 1, 2 to 3, 4 to 7, ...

Positions come in such bins because the mean at one late position is over few tokens,
and would know the text. A mean d_t is seldom whole. With their sum C_t, token t takes

    n_t = floor(C_t + u) - floor(C_{t-1} + u),

which is d_t rounded down or up, d_t on average over the offset u, and in sum over a
window within one step of all d_t. u, from 0 to 1, is drawn by a seed for each window
and application.

Shapes: A applications, and the core behind them; P bins of positions; B windows, T
positions.
"""

from collections.abc import Sequence

import numpy as np
import torch

from dualpath_cli.base.seeds import seed_from
from dualpath_cli.data.windows import padded
from dualpath_cli.decoding.early_exit import Schedule
from dualpath_cli.model import RoutingTrace
from dualpath_cli.report.bootstrap import Floats
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Blind
from dualpath_cli.study.ablation.passes import takes

SEED = 0


def bins_of(length: int) -> torch.Tensor:
    """The bin of each position, int64 (T,): 0, 1, 2 to 3, 4 to 7, ..."""
    binary_digits = torch.frexp(torch.arange(length).double()).exponent
    return binary_digits.long()


class StepCounts:
    """Sums of the steps that tokens took under an exit, by application and bin."""

    def __init__(self, config: ModelConfig) -> None:
        self._applications = config.applications()
        positions = padded(config.max_seq_len)  # of the longest batch
        bins = 1 + int(bins_of(positions).max())
        shape = (1 + len(self._applications), bins)
        self.steps_AP = torch.zeros(shape, dtype=torch.float64)
        self.takers_AP = torch.zeros(shape, dtype=torch.float64)

    def add(self, trace: RoutingTrace, scored_BT: torch.Tensor) -> None:
        """Adds the tokens of a batch that are scored; of a repetition of the core only
        those that take it."""
        for layer in trace.layers:
            if layer.steps_taken is None:
                continue

            takes_BT = scored_BT & takes(trace, layer)
            place = self._applications.index((layer.layer, layer.repetition))
            self._add(place, layer.steps_taken, takes_BT)
        if trace.core is not None and trace.core.steps_taken is not None:
            self._add(-1, trace.core.steps_taken, scored_BT)

    def _add(self, place: int, steps_BT: torch.Tensor, takes_BT: torch.Tensor) -> None:
        bins_T = bins_of(steps_BT.shape[1])
        steps_T = (steps_BT * takes_BT).sum(0).double().cpu()
        takers_T = takes_BT.sum(0).double().cpu()
        self.steps_AP[place].index_add_(0, bins_T, steps_T)
        self.takers_AP[place].index_add_(0, bins_T, takers_T)


def means_of(steps_AP: Floats, takers_AP: Floats, blind: Blind) -> Floats:
    """The mean steps of a schedule, (A, P); 1 in applications without a loop."""
    takers_A1 = takers_AP.sum(1, keepdims=True)
    overall_A1 = steps_AP.sum(1, keepdims=True) / np.maximum(takers_A1, 1)
    overall_A1 = np.where(takers_A1 > 0, overall_A1, 1.0)
    if blind == "all":
        return np.broadcast_to(overall_A1, steps_AP.shape)

    return np.where(takers_AP > 0, steps_AP / np.maximum(takers_AP, 1), overall_A1)


def planned_steps(means_AT: Floats, offsets_BA: Floats) -> Floats:
    """n of tokens, (A, B, T), by the means at their positions, (A, T), and offsets."""
    sums_A1T = means_AT.cumsum(1)[:, None]
    ends_ABT = np.floor(sums_A1T + offsets_BA.T[..., None])
    # C_0 + u is below 1
    steps_ABT: Floats = np.diff(ends_ABT, axis=2, prepend=0.0)
    return steps_ABT


def schedule_of(
    config: ModelConfig,
    means_AP: Floats,
    source: str,
    windows: Sequence[int],
    length: int,
    device: torch.device,
) -> Schedule:
    """The schedule of a batch, by the numbers of its windows in the source."""
    count = len(means_AP)
    draws = [np.random.default_rng(seed_from(SEED, source, n)) for n in windows]
    offsets_BA = np.stack([draw.random(count) for draw in draws])
    means_AT = means_AP[:, bins_of(length).numpy()]
    planned_ABT = planned_steps(means_AT, offsets_BA)

    # Sums of fractions are rounded: a whole mean must stay whole.
    most = np.ceil(means_AT)[:, None]
    steps = torch.from_numpy(planned_ABT.clip(1, most)).long().to(device)
    *layers, core = steps
    by_application = dict(zip(config.applications(), layers, strict=True))
    return Schedule(by_application, core if config.routes_core else None)
