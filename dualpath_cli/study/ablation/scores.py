"""The passes of an ablation, and their numbers: losses, differences, the excess of a
class.

Each pass is compared with the learned router's pass, window by window.

Shapes: W windows of a source, B of a batch, T positions, C columns, P passes, R 1 +
resamples.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dualpath_cli.data.windows import Windows
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.model import RoutingTrace
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.report import bootstrap
from dualpath_cli.report.bootstrap import Floats, clusters_of, resampled_sums
from dualpath_cli.run.weights import from_all_ranks
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.study.ablation.options import Row
from dualpath_cli.study.bench import FILLER, Arrays, Pass, array_digest
from dualpath_cli.study.controls import Masks, Match
from dualpath_cli.training.module import DualPathModule


@dataclass
class Scoring(Pass):
    """A source under one intervention, on all tokens or on some."""

    row: Row
    # True at overridden input tokens of each window; None: all
    masks: Masks | None = None
    match: Match | None = None  # how closely random tokens match their class

    @property
    def title(self) -> str:
        return f"{self.source}: {self.row.intervention.name}"

    @property
    def decisive(self) -> Mapping[str, Any]:
        return {
            "intervention": asdict(self.row.intervention),
            "masks": None if self.masks is None else array_digest(self.masks),
        }

    def begin(self, module: DualPathModule, files: ExitStack) -> None:
        self._module = module
        # places of windows, (B, 3)
        self._scores: list[tuple[list[int], torch.Tensor]] = []
        self._loops_run: list[float] = []

    def step(
        self, tokens: torch.Tensor, targets: torch.Tensor, places: list[int]
    ) -> None:
        assert self._module.model is not None
        scored = targets != IGNORE
        trace = RoutingTrace()
        nll = forward(
            self._module.model,
            tokens,
            targets,
            trace=trace,
            intervention=self.row.intervention,
            token_mask=scored
            if self.masks is None
            else self._mask(self.masks, tokens, places),
        )
        loops = _sums([layer.expected_loops for layer in trace.layers], scored)
        passes = _sums([layer.passes for layer in trace.layers], scored)
        columns = [nll.double().sum(1), loops, passes]
        self._scores.append((places, torch.stack(columns, dim=1)))
        runs = [
            layer.loops_run for layer in trace.layers if layer.loops_run is not None
        ]
        # A batch of padding, which only fills up a rank's share, halts at once.
        counts = bool(runs) and bool(scored.any())
        self._loops_run.append(float(np.mean(runs)) if counts else float("nan"))

    def end(self) -> Arrays:
        """The scores of all ranks' windows, in their order; without loops their numbers
        are nan.

        Of each window, (W,): `nats`, the sum of its tokens' losses; `loops` and
        `passes`, the sums of expected loops and of sublayers passed, means over layers.
        `loops_run`, (), is the mean number of steps that a batch ran in a layer.
        """
        own = {
            place: row
            for places, rows_B3 in self._scores
            for place, row in zip(places, rows_B3.tolist(), strict=True)
        }
        ranks = from_all_ranks((own, self._loops_run))
        found = {place: row for rows, _ in ranks for place, row in rows.items()}
        nats, loops, passes = np.array(
            [found[n] for n in range(self.windows.n_filled)]
        ).T
        runs = torch.tensor([run for _, runs in ranks for run in runs])
        loops_run = np.array(float(runs.nanmean()))
        return {"nats": nats, "loops": loops, "passes": passes, "loops_run": loops_run}

    def _mask(
        self, masks: Masks, tokens: torch.Tensor, places: list[int]
    ) -> torch.Tensor:
        """The masks of a batch's windows, (B, T), False at padding."""
        mask_BT = torch.zeros(tokens.shape, dtype=torch.bool)
        for row, place in enumerate(places):
            if place != FILLER:
                mask_BT[row, : len(masks[place])] = torch.from_numpy(masks[place])
        return mask_BT.to(tokens.device)


def _sums(
    of_layers: Sequence[torch.Tensor | None], scored: torch.Tensor
) -> torch.Tensor:
    """Sums over each window's tokens of a mean over layers, (B,); nan if no layer has a
    number."""
    known = [layer.double() for layer in of_layers if layer is not None]
    if not known:
        return torch.full(
            (len(scored),), float("nan"), device=scored.device, dtype=torch.float64
        )
    return (torch.stack(known).mean(0) * scored).sum(1)


@dataclass(frozen=True)
class Result:
    """One intervention on one source; losses in nats per token. Without loops these are
    nan."""

    suite: str
    intervention: Intervention
    source: str
    loss: float
    difference: float  # loss minus the learned router's loss on the same windows
    low: float  # of the difference's 95 % interval; nan with too few clusters of text
    high: float
    # mean over tokens and layers of the step number under the step weights
    expected_loops: float
    # mean over tokens and layers of the sublayers passed; K + 1 in a dual layer
    passes: float
    loops_run: float  # mean number of steps run by a batch in a layer


Excess = dict[str, Any]
"""The excess cost of overriding a class of tokens over equally many random ones: a row
of token_classes.csv.

- `tokens`, `share`: of the class, and its part of the source's tokens
- `difference`, `random_difference`: loss with the class overridden minus the learned
  router's, in nats per token of the source, and the mean of this over seeds for random
  tokens
- `excess`, `low`, `high`: the difference of the two, small for a rare class; ends of
  its 95 % interval, given the random draws
- `per_forced`, ...: the excess per token of the class, which can be compared between
  sources
- `match_*`: how closely the random tokens match the class, see `Match`
"""


def compare(passes: Sequence[Scoring]) -> list[Result]:
    """A result for each pass over a source: its loss, and the difference to the first
    one's."""
    source, windows = passes[0].source, passes[0].windows
    nats_WP = np.stack([pass_.arrays["nats"] for pass_ in passes], axis=1)
    differences_WP, tokens_W1 = nats_WP - nats_WP[:, :1], windows.tokens[:, None]
    mean_P, low_P, high_P = _ratios(source, differences_WP, tokens_W1, windows)

    def per_token(pass_: Scoring, name: str) -> float:
        return float(pass_.arrays[name].sum() / windows.n_tokens)

    return [
        Result(
            pass_.row.suite,
            pass_.row.intervention,
            source,
            per_token(pass_, "nats"),
            float(mean_P[p]),
            float(low_P[p]),
            float(high_P[p]),
            per_token(pass_, "loops"),
            per_token(pass_, "passes"),
            float(pass_.arrays["loops_run"]),
        )
        for p, pass_ in enumerate(passes)
    ]


def excesses(passes: Sequence[Scoring]) -> list[Excess]:
    """The excess of each class that passes over a source force, the learned router's
    pass first."""
    return [
        _excess(
            passes[0],
            pass_,
            [
                other
                for other in passes
                if other.row.token_class == pass_.row.token_class
                and other.match is not None
            ],
        )
        for pass_ in passes
        if pass_.row.token_class is not None and pass_.match is None
    ]


def _excess(learned: Scoring, chosen: Scoring, random: Sequence[Scoring]) -> Excess:
    """The excess cost of overriding a class over the mean of random tokens over seeds.

    Intervals cover the text, not the random draw of tokens. For a class without tokens
    the excess is nan.
    """
    forced, source, windows = chosen.row.token_class, learned.source, learned.windows
    assert forced is not None
    learned_W, class_W = learned.arrays["nats"], chosen.arrays["nats"]
    chosen_W = np.array([mask.sum() for mask in chosen.masks or []])
    tokens, count = int(chosen_W.sum()), windows.n_tokens
    random_W = np.mean([pass_.arrays["nats"] for pass_ in random], axis=0)
    if not tokens:
        random_W = np.full_like(learned_W, np.nan)
    excess_W2 = np.repeat((class_W - random_W)[:, None], 2, axis=1)
    per = _ratios(
        source, excess_W2, np.column_stack([windows.tokens, chosen_W]), windows
    )
    (mean, per_forced), (low, per_low), (high, per_high) = (
        ends.tolist() for ends in per
    )
    match = Match.mean([pass_.match for pass_ in random if pass_.match is not None])
    return {
        "token_class": forced.name,
        "upos": ",".join(forced.upos),
        "path": forced.path,
        "source": source,
        "tokens": tokens,
        "share": tokens / count,
        "difference": float((class_W - learned_W).sum() / count),
        "random_difference": float((random_W - learned_W).sum() / count),
        "excess": mean,
        "low": low,
        "high": high,
        "per_forced": per_forced,
        "per_forced_low": per_low,
        "per_forced_high": per_high,
        **{f"match_{name}": value for name, value in vars(match).items()},
    }


def _ratios(
    source: str, nats_WC: Floats, tokens_WC: npt.NDArray[np.integer], windows: Windows
) -> tuple[Floats, Floats, Floats]:
    """Nats per token over all windows, and the ends of 95 % intervals, (C,) each.

    `tokens_WC` may have one column for all.
    """
    clusters = clusters_of(windows)
    nats_RC = resampled_sums(source, clusters.of_window, nats_WC)
    tokens_RC = resampled_sums(source, clusters.of_window, tokens_WC.astype(float))
    with np.errstate(invalid="ignore", divide="ignore"):  # a resample may have no token
        means_RC = nats_RC / tokens_RC
    return means_RC[0], *bootstrap.interval(means_RC, clusters.count)
