"""The passes of an ablation, and their numbers: losses, differences, excesses.

Each pass is compared with the learned router's pass, window by window.

Shapes: W windows of a source, B of a batch, T positions, C columns, P passes, R 1 +
resamples.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dualpath_cli.data.windows import Windows
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.model import DualPathLM, RoutingTrace
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.model.routing import LayerTrace
from dualpath_cli.report import bootstrap
from dualpath_cli.report.bootstrap import Floats, clusters_of, resampled_sums
from dualpath_cli.run.weights import from_all_ranks
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.study.ablation.options import AblationRow
from dualpath_cli.study.bench import FILLER, Arrays, Pass, array_digest
from dualpath_cli.study.controls import Masks, MatchQuality
from dualpath_cli.study.parts_of_speech import ForcedClass
from dualpath_cli.training.module import DualPathModule


@dataclass
class AblationPass(Pass):
    """A source under one intervention, on all tokens or on some."""

    row: AblationRow
    # True at overridden input tokens of each window; None: all
    masks: Masks | None = None
    match: MatchQuality | None = None  # of random tokens and their class

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
        # of each batch: places of its windows, and their sums by name, (B,) each
        self._scores: list[tuple[list[int], dict[str, torch.Tensor]]] = []
        # of each batch: steps of a loop, repetitions of the core
        self._loops_run: list[tuple[float, float]] = []

    def step(
        self, tokens: torch.Tensor, targets: torch.Tensor, places: list[int]
    ) -> None:
        scored_BT = targets != IGNORE
        overridden_BT = scored_BT
        if self.masks is not None:
            overridden_BT = _batch_mask(self.masks, tokens, places)

        trace = RoutingTrace()
        of_tokens: dict[str, torch.Tensor | None] = {
            **self.losses(tokens, targets, trace, overridden_BT, places),
            "loops": _loops_of_tokens(trace),
            "passes": _passes_of_tokens(trace, self._module.config.n_layers),
        }
        if self._module.config.core is not None:
            of_tokens["core_loops"] = _repetitions_of_tokens(trace)
        sums = {
            name: _window_sums(values_BT, scored_BT)
            for name, values_BT in of_tokens.items()
        }
        self._scores.append((places, sums))

        # A batch of padding, which only fills up a rank's share, halts at once.
        counts = bool(scored_BT.any())
        core = [] if trace.core is None else [trace.core]
        loops_run = _loops_run(trace.layers) if counts else math.nan
        core_loops_run = _loops_run(core) if counts else math.nan
        self._loops_run.append((loops_run, core_loops_run))

    def losses(
        self,
        tokens: torch.Tensor,
        targets: torch.Tensor,
        trace: RoutingTrace,
        token_mask: torch.Tensor,
        places: list[int],
    ) -> dict[str, torch.Tensor]:
        """The losses of a batch's tokens in nats by name, (B, T) each; fills the
        trace."""
        nll_BT = forward(
            self.model,
            tokens,
            targets,
            trace=trace,
            intervention=self.row.intervention,
            token_mask=token_mask,
        )
        return {"nats": nll_BT.double()}

    @property
    def model(self) -> DualPathLM:
        """The model that is scored."""
        assert self._module.model is not None
        return self._module.model

    def end(self) -> Arrays:
        """The scores of all ranks' windows, in their order; without loops their numbers
        are nan.

        Of each window, (W,): `nats`, the sum of its tokens' losses; `loops` and
        `passes`, the sums of expected loops and of sublayers passed, means over layers.
        `loops_run`, (), is the mean number of steps that a batch ran in a layer. With a
        core also `core_loops` and `core_loops_run`, of its repetitions.
        """
        # `FILLER` is among the places, and not read below.
        names = list(self._scores[0][1])
        own_scores: dict[int, list[float]] = {}
        for places, sums in self._scores:
            sums_BN = torch.stack([sums[name] for name in names], dim=1)
            own_scores |= zip(places, sums_BN.tolist(), strict=True)

        scores: dict[int, list[float]] = {}
        for rank_scores in from_all_ranks(own_scores):
            scores |= rank_scores
        runs = list(chain.from_iterable(from_all_ranks(self._loops_run)))
        loops_run, core_loops_run = (
            float(torch.tensor(of_batches).nanmean())
            for of_batches in zip(*runs, strict=True)
        )

        in_order = [scores[place] for place in range(self.windows.n_filled)]
        arrays = dict(zip(names, np.array(in_order).T, strict=True))
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

    return (values_BT * scored_BT).sum(1)


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


def _repetitions_of_tokens(trace: RoutingTrace) -> torch.Tensor | None:
    """Each token's expected repetitions of the core, (B, T); None without a core."""
    if trace.core is None or trace.core.expected_loops is None:
        return None
    return trace.core.expected_loops.double()


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


AS_TRAINED = "trained"
"""The read-out of the model."""
ONLY_DEPTH = ("read_out", "repaired", "over_exit")
"""How the names of the fields of the suite `depth` begin."""


@dataclass(frozen=True)
class Result:
    """One intervention on one source; losses in nats per token. Without loops these are
    nan.

    The last fields are of the suite `depth`, and nan in others.
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


def compare(passes: Sequence[AblationPass]) -> list[Result]:
    """A result for each pass over a source: its loss, and the difference to the first
    one's."""
    source = passes[0].source
    windows = passes[0].windows

    nats_WP = np.stack([pass_.arrays["nats"] for pass_ in passes], axis=1)
    differences_WP = nats_WP - nats_WP[:, :1]
    tokens_W1 = windows.tokens[:, None]
    means_RP, clusters = means_per_token(source, differences_WP, tokens_W1, windows)
    low_P, high_P = bootstrap.interval(means_RP, clusters)
    return [
        result_of(
            pass_,
            difference=float(means_RP[0, p]),
            low=float(low_P[p]),
            high=float(high_P[p]),
        )
        for p, pass_ in enumerate(passes)
    ]


def result_of(pass_: AblationPass, nats: str = "nats", **differences: Any) -> Result:
    """A result with the means of a pass, the loss of those called `nats`."""
    n_tokens = pass_.windows.n_tokens

    def per_token(name: str) -> float:
        sums_W = pass_.arrays.get(name)
        return math.nan if sums_W is None else float(sums_W.sum() / n_tokens)

    return Result(
        suite=pass_.row.suite,
        intervention=pass_.row.intervention,
        source=pass_.source,
        loss=per_token(nats),
        expected_loops=per_token("loops"),
        passes=per_token("passes"),
        loops_run=float(pass_.arrays["loops_run"]),
        expected_core_loops=per_token("core_loops"),
        core_loops_run=float(pass_.arrays.get("core_loops_run", math.nan)),
        **differences,
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
    class_tokens_W = np.array([mask.sum() for mask in overridden.masks or []])
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
    lows, highs = bootstrap.interval(means_R2, clusters)
    excess, per_forced = means_R2[0].tolist()
    low, per_forced_low = lows.tolist()
    high, per_forced_high = highs.tolist()

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
        "excess": excess,
        "low": low,
        "high": high,
        "per_forced": per_forced,
        "per_forced_low": per_forced_low,
        "per_forced_high": per_forced_high,
        **{f"match_{name}": value for name, value in vars(match).items()},
    }


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
