"""The numbers of the suite `depth`: what read-outs repair, and what exits add to blind
schedules.

With L_r the loss after r steps, L_K that of the learned router, and a star for a
read-out fitted to each of them, on the same documents,

    repaired = 1 - (L*_r - L*_K) / (L_r - L_K)

is the share of the loss of fewer steps that the read-out alone takes away. The learned
router has a fitted read-out, too, or the share would count what the read-out learns of
the texts.

Shapes: C columns, R 1 + resamples.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dualpath_cli.base.output import amount
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.study.ablation import read_outs
from dualpath_cli.study.ablation.depth import BlindPass, Division, FitPass, ReadOutPass
from dualpath_cli.study.ablation.passes import AblationPass
from dualpath_cli.study.ablation.scores import (
    AS_TRAINED,
    UNKNOWN,
    Result,
    differences,
    estimates,
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

    cost, *beside_exit = estimates(*differences(pairs))
    over_exit = beside_exit[0] if beside_exit else UNKNOWN
    return result_of(
        pass_,
        cost,
        over_exit=over_exit.value,
        over_exit_low=over_exit.low,
        over_exit_high=over_exit.high,
    )


def _with_read_outs(pass_: ReadOutPass, learned: ReadOutPass) -> list[Result]:
    """A row for each read-out."""
    pairs = [(pass_, learned, nats) for nats in NATS.values()]
    means_RC, clusters = differences(pairs)
    costs = estimates(means_RC, clusters)

    # The model's own read-out is the first column.
    with np.errstate(divide="ignore", invalid="ignore"):
        repaired_RC = 1 - means_RC / means_RC[:, :1]
    shares = estimates(repaired_RC, clusters)
    is_costly = costs[0].low > LEAST_LOSS

    results = []
    for name, cost, share in zip(NATS, costs, shares, strict=True):
        repaired = share if is_costly and name != AS_TRAINED else UNKNOWN
        row = result_of(
            pass_,
            cost,
            NATS[name],
            read_out=name,
            repaired=repaired.value,
            repaired_low=repaired.low,
            repaired_high=repaired.high,
        )
        results.append(row)
    return results


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
