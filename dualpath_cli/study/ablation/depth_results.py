"""The numbers of the suite `depth`: what read-outs repair, and what exits add to blind
schedules.

With L_r the loss after r steps, L_K that of the learned router, and a star for a
read-out fitted to each of them, on the same documents,

    repaired = 1 - (L*_r - L*_K) / (L_r - L_K)

is the share of the loss of fewer steps that the read-out alone takes away. The learned
router has a fitted read-out, too, or the share would count what the read-out learns of
the texts.

Shapes: W windows of a source, C columns, R 1 + resamples.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dualpath_cli.base.output import amount
from dualpath_cli.report import bootstrap
from dualpath_cli.report.bootstrap import Floats
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.study.ablation import read_outs
from dualpath_cli.study.ablation.depth import BlindPass, Division, FitPass, ReadOutPass
from dualpath_cli.study.ablation.passes import AblationPass
from dualpath_cli.study.ablation.scores import (
    AS_TRAINED,
    Result,
    means_per_token,
    result_of,
)
from dualpath_cli.study.bench import Pass

LEAST_LOSS = 1e-4
"""The share `repaired` is given only if the 95 % interval of the cost of fewer steps
lies above this, in nats per token."""
NATS = {AS_TRAINED: "nats"} | {name: f"nats_{name}" for name in read_outs.READ_OUTS}
"""The name of the losses of a pass, by read-out."""


def depth_results(passes: Sequence[Pass]) -> list[Result]:
    """The rows of a source: each read-out of each intervention, exits and schedules.

    The difference of a fitted read-out is to the learned router with its own one.
    """
    (learned,) = [
        pass_
        for pass_ in passes
        if isinstance(pass_, ReadOutPass) and pass_.row.intervention == Intervention()
    ]
    results = []
    for pass_ in passes:
        if isinstance(pass_, ReadOutPass):
            results += _with_read_outs(pass_, learned)
        elif isinstance(pass_, AblationPass):
            results.append(_exit_or_schedule(pass_, learned))

    return results


def _exit_or_schedule(pass_: AblationPass, learned: AblationPass) -> Result:
    """A row beside the learned router; of a schedule also beside its exit."""
    pairs = [(pass_, learned, "nats")]
    if isinstance(pass_, BlindPass):
        pairs.append((pass_, pass_.exit_, "nats"))

    (difference, low, high), *over_exit = _numbers(*_differences(pairs))
    fields = {"difference": difference, "low": low, "high": high}
    for over, over_low, over_high in over_exit:  # one of a schedule, else none
        fields["over_exit"] = over
        fields["over_exit_low"] = over_low
        fields["over_exit_high"] = over_high
    return result_of(pass_, "nats", **fields)


def _with_read_outs(pass_: ReadOutPass, learned: ReadOutPass) -> list[Result]:
    """A row for each read-out."""
    pairs = [(pass_, learned, nats) for nats in NATS.values()]
    means_RC, clusters = _differences(pairs)
    trained_R1 = means_RC[:, :1]
    with np.errstate(divide="ignore", invalid="ignore"):
        repaired_RC = 1 - means_RC / trained_R1

    differences = _numbers(means_RC, clusters)
    _, trained_low, _ = differences[0]
    shares = _numbers(repaired_RC, clusters)

    results = []
    for name, difference, share in zip(NATS, differences, shares, strict=True):
        fields = dict(zip(("difference", "low", "high"), difference, strict=True))
        if name != AS_TRAINED and trained_low > LEAST_LOSS:
            of_share = ("repaired", "repaired_low", "repaired_high")
            fields |= zip(of_share, share, strict=True)
        results.append(result_of(pass_, NATS[name], read_out=name, **fields))
    return results


def _differences(
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


def _numbers(values_RC: Floats, clusters: int) -> list[tuple[float, float, float]]:
    """The value of each column, and the ends of its interval."""
    low_C, high_C = bootstrap.interval(values_RC, clusters)
    columns = zip(values_RC[0].tolist(), low_C.tolist(), high_C.tolist(), strict=True)
    return list(columns)


def fit_facts(division: Division, passes: Sequence[Pass]) -> dict[str, Any]:
    """How documents were divided, and how each fit ended, for a report."""
    fits = {
        pass_.row.intervention.name: read_outs.facts_of(pass_.arrays)
        for pass_ in passes
        if isinstance(pass_, FitPass)
    }
    return {**division.facts, "fits": fits}


def fit_caption(facts: dict[str, Any]) -> str:
    """How the read-outs of a source were fitted, for a caption."""
    steps = []
    unfinished = []
    for name, of_read_outs in facts["fits"].items():
        for read_out, fit in of_read_outs.items():
            steps.append(fit["steps"])
            if not fit["converged"]:
                unfinished.append(f"{name} {read_out}")

    fitted = amount(**facts["fitted"])
    text = (
        f"read-outs: fitted on {facts['fitted_tokens']:,} tokens of {fitted} that are "
        f"not scored (seed {facts['seed']}), in at most {max(steps)} steps of L-BFGS "
        "from the identity"
    )
    if unfinished:
        most = read_outs.MOST_STEPS
        text += f"; still falling after {most} steps: {', '.join(unfinished)}"
    return text
