"""The numbers of an ablation: passes set against that of the learned router, window by window.

Shapes: W windows, C columns, P passes, R 1 + resamples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dualpath_cli.intervention import Intervention
from dualpath_cli.statistics.bootstrap import Floats, clusters_of, interval, resampled_sums
from dualpath_cli.study.ablation.scoring import Scores
from dualpath_cli.study.ablation.suites import Row
from dualpath_cli.study.classes import ARITHMETIC, FUNCTION, ForcedClass
from dualpath_cli.study.controls import Match
from dualpath_cli.training.data.windows import Windows

Numbers = npt.NDArray[np.integer]
AUTHORS = (ARITHMETIC.to("wide"), FUNCTION.to("deep"))
"""The classes of the authors' revision, each forced to the path that it is said not to lean to."""


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
    """Lower end of the difference's 95 % interval; nan where there are too few clusters of text."""
    high: float
    """Upper end of the difference's 95 % interval."""
    expected_loops: float
    """Mean over tokens and layers of the step number under the step weights; nan without loops."""
    passes: float
    """Mean over tokens and layers of the sublayers that a token passed; of a dual layer K + 1."""
    loops_run: float
    """Mean steps that a batch really ran in a layer; nan without loops."""


@dataclass(frozen=True)
class Excess:
    """The cost of overriding a class of tokens beyond that of as many random others.

    Spread over all tokens of the source it is what the source's loss shows, and is small where the
    class is rare; over the tokens that are forced it can be compared between sources.
    """

    token_class: ForcedClass
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
    """The difference of the two, over all tokens."""
    low: float
    high: float
    """Ends of the excess's 95 % interval, given the random draws."""
    per_forced: float
    """The excess over the tokens of the class: nats for each token that is forced."""
    per_forced_low: float
    per_forced_high: float
    match: Match
    """How closely the random tokens match the class."""

    @property
    def name(self) -> str:
        return f"{self.token_class.name} {self.token_class.path}"

    @property
    def as_paper(self) -> bool:
        """Whether the authors forced this class to this path."""
        return self.token_class in AUTHORS


def compare(
    source: str, rows: Sequence[Row], scores: Sequence[Scores], windows: Windows
) -> list[Result]:
    """Returns a result per row: its loss, and the difference to the first one's."""
    nats_WP = np.stack([scored.nats for scored in scores], axis=1)
    difference_P, low_P, high_P = ratios(
        source, nats_WP - nats_WP[:, :1], windows.tokens[:, None], windows
    )
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
            passes=float(scores[p].passes.sum() / windows.n_tokens),
            loops_run=float(scores[p].loops_run),
        )
        for p, row in enumerate(rows)
    ]


def excess(
    source: str,
    token_class: ForcedClass,
    chosen_W: Numbers,
    learned_W: Floats,
    class_W: Floats,
    random_W: Sequence[Floats],
    windows: Windows,
    match: Match,
) -> Excess:
    """Returns what overriding a class costs beyond the mean over seeds of random others.

    `chosen_W` is the number of the class's tokens in each window; the others are nats of each
    window, of the random ones for each seed. The intervals are over the text: what another random
    draw would change is not in them. A class without tokens has no excess: nan.
    """
    chosen = int(chosen_W.sum())
    mean_random_W = np.mean(random_W, axis=0) if chosen else np.full(windows.n_filled, np.nan)
    tokens_W2 = np.column_stack([windows.tokens, chosen_W])
    excess_W2 = np.repeat((class_W - mean_random_W)[:, None], 2, axis=1)
    mean, low, high = ratios(source, excess_W2, tokens_W2, windows)
    return Excess(
        token_class=token_class,
        source=source,
        tokens=chosen,
        share=chosen / windows.n_tokens,
        difference=float((class_W - learned_W).sum() / windows.n_tokens),
        random_difference=float((mean_random_W - learned_W).sum() / windows.n_tokens),
        excess=float(mean[0]),
        low=float(low[0]),
        high=float(high[0]),
        per_forced=float(mean[1]),
        per_forced_low=float(low[1]),
        per_forced_high=float(high[1]),
        match=match,
    )


def ratios(
    source: str, nats_WC: Floats, tokens_WC: Numbers, windows: Windows
) -> tuple[Floats, Floats, Floats]:
    """Returns the nats of all windows over the tokens of all, column by column, (C,).

    Beside them the ends of their 95 % intervals, (C,) each. `tokens_WC` may be one column for all.
    """
    clusters = clusters_of(windows)
    nats_RC = resampled_sums(source, clusters.of_window, nats_WC)
    tokens_RC = resampled_sums(source, clusters.of_window, tokens_WC.astype(float))
    with np.errstate(invalid="ignore", divide="ignore"):  # a resample may have no such token
        means_RC = nats_RC / tokens_RC
    return means_RC[0], *interval(means_RC, clusters.count)
