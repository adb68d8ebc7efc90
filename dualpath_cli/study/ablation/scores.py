"""The numbers of an ablation: losses, differences, excesses.

Each pass is compared with the learned router's pass, window by window.

Shapes: W windows of a source, C columns, R 1 + resamples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dualpath_cli.data.windows import Windows
from dualpath_cli.report import bootstrap
from dualpath_cli.report.bootstrap import Floats, clusters_of, resampled_sums
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.study.ablation.passes import AblationPass
from dualpath_cli.study.controls import MatchQuality
from dualpath_cli.study.parts_of_speech import ForcedClass

AS_TRAINED = "trained"
"""The read-out of the model."""
ONLY_DEPTH = ("read_out", "repaired", "over_exit")
"""How the names of the fields of the suite `depth` begin."""


@dataclass(frozen=True)
class Result:
    """One intervention on one source; losses in nats per token. `expected_loops` and
    `loops_run` are nan without deep paths.

    The fields from `read_out` on are of the suite `depth`, at their defaults in others.
    """

    suite: str
    intervention: Intervention
    source: str
    loss: float
    difference: float  # loss minus the learned router's loss on the same windows
    low: float  # of the difference's 95 % interval; nan with too few clusters of text
    high: float
    # mean over tokens and layers of the step number under the step weights
    expected_loops: float
    # mean over tokens and layers of the sublayers passed; K + 1 in a dual layer, R
    # times as many in the core
    passes: float
    loops_run: float  # mean number of steps run by a batch in a layer
    # mean over tokens of the core's repetition under its weights; nan without a core
    expected_core_loops: float = math.nan
    core_loops_run: float = math.nan  # mean number of repetitions run by a batch
    # the fitted read-out, with which the learned router is scored, too; or AS_TRAINED
    read_out: str = AS_TRAINED
    # share of the difference as trained that the read-out takes away
    repaired: float = math.nan
    repaired_low: float = math.nan
    repaired_high: float = math.nan
    # loss of a blind schedule minus that of the exit of equal depth
    over_exit: float = math.nan
    over_exit_low: float = math.nan
    over_exit_high: float = math.nan

    @property
    def name(self) -> str:
        """The intervention's name, and behind it that of a fitted read-out."""
        name = self.intervention.name
        return name if self.read_out == AS_TRAINED else f"{name} {self.read_out}"


Excess = dict[str, Any]
"""The excess cost of overriding a class of tokens over equally many random ones: a row
of token_classes.csv.

- `tokens`, `share`: of the class, and its part of the source's tokens
- `difference`, `random_difference`: loss with the class overridden minus the learned
  router's, in nats per token of the source, and the mean of this over seeds for random
  tokens
- `excess`, `low`, `high`: the difference of the two, small for a rare class; ends of
  its 95 % interval for fixed random draws
- `per_forced`, ...: the excess per token of the class, which can be compared between
  sources
- `match_*`: how closely the random tokens match the class, see `MatchQuality`
"""


class Estimate(NamedTuple):
    """A number, and the ends of its 95 % interval; nan with too few clusters."""

    value: float
    low: float
    high: float


UNKNOWN = Estimate(math.nan, math.nan, math.nan)


def compare(passes: Sequence[AblationPass]) -> list[Result]:
    """A result for each pass over a source: its loss, and the difference to the first
    one's."""
    learned = passes[0]
    pairs = [(pass_, learned, "nats") for pass_ in passes]
    costs = estimates(*differences(pairs))
    return [result_of(pass_, cost) for pass_, cost in zip(passes, costs, strict=True)]


def result_of(
    pass_: AblationPass, cost: Estimate, nats: str = "nats", **of_depth: Any
) -> Result:
    """A result with the means of a pass, the loss of those called `nats`, and the cost
    beside the learned router; `of_depth` are the fields of the suite `depth`."""
    n_tokens = pass_.windows.n_tokens

    def per_token(name: str) -> float:
        sums_W = pass_.arrays.get(name)
        return math.nan if sums_W is None else float(sums_W.sum() / n_tokens)

    return Result(
        suite=pass_.row.suite,
        intervention=pass_.row.intervention,
        source=pass_.source,
        loss=per_token(nats),
        difference=cost.value,
        low=cost.low,
        high=cost.high,
        expected_loops=per_token("loops"),
        passes=per_token("passes"),
        loops_run=float(pass_.arrays["loops_run"]),
        expected_core_loops=per_token("core_loops"),
        core_loops_run=float(pass_.arrays.get("core_loops_run", math.nan)),
        **of_depth,
    )


def excesses(passes: Sequence[AblationPass]) -> list[Excess]:
    """The excess of each class that passes over a source force, the learned router's
    pass first."""
    learned = passes[0]
    found = []
    for pass_ in passes:
        forced = pass_.row.token_class
        if forced is None or pass_.match is not None:
            continue
        controls = [
            other
            for other in passes
            if other.row.token_class == forced and other.match is not None
        ]
        found.append(_excess(forced, learned, pass_, controls))

    return found


def _excess(
    forced: ForcedClass,
    learned: AblationPass,
    overridden: AblationPass,
    controls: Sequence[AblationPass],
) -> Excess:
    """The excess cost of overriding a class over the mean of random tokens over seeds.

    Intervals cover the text, not the random draw of tokens. For a class without tokens
    the excess is nan.
    """
    windows = learned.windows
    assert overridden.masks is not None
    class_tokens_W = np.array([mask.sum() for mask in overridden.masks])
    class_tokens = int(class_tokens_W.sum())

    learned_W = learned.arrays["nats"]
    class_W = overridden.arrays["nats"]
    random_W = np.mean([pass_.arrays["nats"] for pass_ in controls], axis=0)
    if not class_tokens:
        # Without a token forced, all losses are equal: the excess would seem to be 0.
        random_W = np.full_like(learned_W, np.nan)

    # The same nats over two numbers of tokens: all, and those of the class.
    excess_W2 = np.repeat((class_W - random_W)[:, None], 2, axis=1)
    tokens_W2 = np.column_stack([windows.tokens, class_tokens_W])
    means_R2, clusters = means_per_token(learned.source, excess_W2, tokens_W2, windows)
    in_all, per_forced = estimates(means_R2, clusters)

    matches = [pass_.match for pass_ in controls if pass_.match is not None]
    match = MatchQuality.mean(matches)
    return {
        "token_class": forced.name,
        "upos": ",".join(forced.upos),
        "path": forced.path,
        "source": learned.source,
        "tokens": class_tokens,
        "share": class_tokens / windows.n_tokens,
        "difference": float((class_W - learned_W).sum() / windows.n_tokens),
        "random_difference": float((random_W - learned_W).sum() / windows.n_tokens),
        "excess": in_all.value,
        "low": in_all.low,
        "high": in_all.high,
        "per_forced": per_forced.value,
        "per_forced_low": per_forced.low,
        "per_forced_high": per_forced.high,
        **{f"match_{name}": value for name, value in vars(match).items()},
    }


def differences(
    pairs: Sequence[tuple[AblationPass, AblationPass, str]],
) -> tuple[Floats, int]:
    """Differences in nats per token between passes of the same windows, plain and
    resampled, (R, C), and the number of clusters."""
    first, _, _ = pairs[0]
    windows = first.windows
    columns = [one.arrays[nats] - other.arrays[nats] for one, other, nats in pairs]
    differences_WC = np.stack(columns, axis=1)
    tokens_W1 = windows.tokens[:, None]
    return means_per_token(first.source, differences_WC, tokens_W1, windows)


def means_per_token(
    source: str, nats_WC: Floats, tokens_WC: npt.NDArray[np.integer], windows: Windows
) -> tuple[Floats, int]:
    """Nats per token over all windows, plain (first) and resampled, (R, C), and the
    number of clusters.

    `tokens_WC` may have one column for all.
    """
    clusters = clusters_of(windows)
    nats_RC = resampled_sums(source, clusters.of_window, nats_WC)
    tokens_RC = resampled_sums(source, clusters.of_window, tokens_WC.astype(float))

    # A resample may have no token of a class.
    with np.errstate(invalid="ignore", divide="ignore"):
        return nats_RC / tokens_RC, clusters.count


def estimates(values_RC: Floats, clusters: int) -> list[Estimate]:
    """The number of each column, plain (first row), with its interval."""
    low_C, high_C = bootstrap.interval(values_RC, clusters)
    columns = zip(values_RC[0].tolist(), low_C.tolist(), high_C.tolist(), strict=True)
    return [Estimate(*column) for column in columns]
