"""The numbers of an ablation: passes set against that of the learned router, window by window.

Shapes: W windows, P passes, R 1 + resamples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dualpath_cli.intervention import Intervention
from dualpath_cli.study.ablation.scoring import Scores
from dualpath_cli.study.ablation.suites import Row
from dualpath_cli.study.bootstrap import Floats, interval, resampled_sums
from dualpath_cli.study.classes import TOKEN_CLASSES, TokenClass
from dualpath_cli.training.windows import Windows


@dataclass(frozen=True)
class Result:
    """One intervention on one source; losses are nats per token."""

    suite: str
    intervention: Intervention
    source: str
    loss: float
    """Mean next-token cross-entropy."""
    difference: float
    """Loss less that of the learned router on the same windows."""
    low: float
    """Lower end of the difference's 95 % interval; nan where the source is a single window."""
    high: float
    """Upper end of the difference's 95 % interval."""
    expected_loops: float
    """Mean over tokens and layers of the step number under the step weights; nan without loops."""
    loops_run: float
    """Mean steps that a batch really ran in a layer; nan without loops."""


@dataclass(frozen=True)
class Excess:
    """What overriding a class of tokens costs beyond overriding as many random others."""

    token_class: TokenClass
    source: str
    tokens: int
    """Tokens of the class."""
    share: float
    """Of all tokens of the source."""
    difference: float
    """Loss with the class overridden less that of the learned router, over all tokens."""
    random_difference: float
    """The same for random others, the mean over seeds."""
    excess: float
    """The difference of the two."""
    low: float
    high: float
    """Ends of the excess's 95 % interval over windows, given the random draws."""

    @property
    def name(self) -> str:
        """The class and the path that it is forced to."""
        return f"{self.token_class.name} {self.token_class.path}"

    @property
    def as_paper(self) -> bool:
        """Whether the class is one of the authors'."""
        return self.token_class in TOKEN_CLASSES


def compare(
    source: str, rows: Sequence[Row], scores: Sequence[Scores], windows: Windows
) -> list[Result]:
    """Returns a result per row: its loss, and the difference to the first one's."""
    nats_WP = np.stack([scored.nats for scored in scores], axis=1)
    difference_P, low_P, high_P = mean_per_token(source, nats_WP - nats_WP[:, :1], windows)
    return [
        Result(
            suite=row.suite,
            intervention=row.intervention,
            source=source,
            loss=float(nats_WP[:, p].sum() / windows.n_tokens),
            difference=float(difference_P[p]),
            low=float(low_P[p]),
            high=float(high_P[p]),
            expected_loops=float(scores[p].loops.sum() / windows.n_tokens),
            loops_run=float(scores[p].loops_run),
        )
        for p, row in enumerate(rows)
    ]


def excess(
    source: str,
    token_class: TokenClass,
    chosen: int,
    learned_W: Floats,
    class_W: Floats,
    random_W: Sequence[Floats],
    windows: Windows,
) -> Excess:
    """Returns what overriding a class costs beyond the mean over seeds of random others.

    `chosen` is the number of the class's tokens; the others are nats of each window, of the random
    ones for each seed. The interval is over windows: what another random draw would change is not
    in it. A class without tokens has no excess: nan.
    """
    nothing_W = np.full(windows.n_filled, np.nan)
    mean_random_W = np.mean(random_W, axis=0) if chosen else nothing_W
    excess_W = class_W - mean_random_W
    (mean,), (low,), (high,) = mean_per_token(source, excess_W[:, None], windows)
    return Excess(
        token_class=token_class,
        source=source,
        tokens=chosen,
        share=chosen / windows.n_tokens,
        difference=float((class_W - learned_W).sum() / windows.n_tokens),
        random_difference=float((mean_random_W - learned_W).sum() / windows.n_tokens),
        excess=float(mean),
        low=float(low),
        high=float(high),
    )


def mean_per_token(source: str, nats_WP: Floats, windows: Windows) -> tuple[Floats, Floats, Floats]:
    """Returns the mean of each column per token, and the ends of its 95 % interval, (P,) each.

    One window alone says nothing about others: both ends are nan.
    """
    columns = np.column_stack([nats_WP, windows.tokens])
    sums_RP = resampled_sums(source, windows.numbers, columns)
    with np.errstate(invalid="ignore"):  # a resample may have no window
        means_RP = sums_RP[:, :-1] / sums_RP[:, -1:]
    low_P, high_P = interval(means_RP)
    if windows.n_filled < 2:
        low_P[:] = high_P[:] = np.nan
    return means_RP[0], low_P, high_P
