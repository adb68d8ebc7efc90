"""The paper's claims about inference-time ablations, set against its table of them.

Losses are nats a token on three sources, of one model that was trained with K = 4 (appendix
ablations, Table ablations).
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import mean

from dualpath_cli.flops import paper

from .finding import Finding, grade
from .stated import stated

ROUNDING = 1e-3
"""The table prints three decimals, so that a difference may be off by one of the last."""

FIRST, LAST = 1, 10
"""The loops that the table forces."""


def findings() -> list[Finding]:
    """The claims about forced loops and gates, each computed from the table."""
    return [_fewer_loops(), _returns(), _extra_loops(), _gates()]


def losses(intervention: str) -> dict[str, float]:
    """Loss by source under an intervention, as the table names it: `K=1`, `gates=1,0`."""
    tables = paper.tables()
    row = tables["inference_ablations"][intervention]
    return dict(zip(tables["ablation_sources"], row, strict=True))


def _steps(first: int, last: int) -> dict[str, list[float]]:
    """By source, what each loop more adds to the loss, from `first` loops on."""
    by_loops = [losses(f"K={k}") for k in range(first, last + 1)]
    return {
        source: [more[source] - one[source] for one, more in pairwise(by_loops)]
        for source in by_loops[0]
    }


def _trained() -> int:
    loops: int = stated("ablated_model")["loops"]
    return loops


def _listed(steps: Mapping[str, Sequence[float]]) -> str:
    return "; ".join(
        f"{source} {', '.join(f'{step:+.3f}' for step in values)}"
        for source, values in steps.items()
    )


def _fewer_loops() -> Finding:
    steps = _steps(FIRST, _trained())
    fewer = {source: [-step for step in reversed(values)] for source, values in steps.items()}
    return Finding(
        "Forcing fewer loops than trained degrades the loss monotonically.",
        f"Each loop less, from K = {_trained()} to {FIRST}, adds: {_listed(fewer)}.",
        grade(all(step > 0 for values in fewer.values() for step in values)),
    )


def _returns() -> Finding:
    """Diminishing returns: a loop more still lowers the loss, by less than the one before."""
    before, past = _steps(FIRST, _trained()), _steps(_trained(), LAST)
    shrinking = all(one < more < 0 for values in before.values() for one, more in pairwise(values))
    n = sum(map(len, past.values()))
    returns = sum(step < 0 for values in past.values() for step in values)
    up_to = "Up to it they do" if shrinking else "Not even up to it do they"
    return Finding(
        f"Returns of further loops diminish past the trained K = {_trained()}.",
        f"{up_to}: a loop more changes the loss by {_listed(before)}. Past it {returns} of {n} "
        "steps return anything; the others raise the loss.",
        grade(all(o < m < 0 for values in past.values() for o, m in pairwise(values))),
    )


def _extra_loops() -> Finding:
    past = _steps(_trained(), LAST)
    n = sum(map(len, past.values()))
    up = sum(step > 0 for values in past.values() for step in values)
    peaks = {source: values.index(max(values)) for source, values in past.items()}
    eases = all(
        values[peaks[source]] > values[-1] + ROUNDING
        and all(more <= one + ROUNDING / 2 for one, more in pairwise(values[peaks[source] :]))
        for source, values in past.items()
    )
    largest = ", ".join(f"K = {_trained() + 1 + at} for {source}" for source, at in peaks.items())
    tail = (
        f"What diminishes is the harm of a loop more: after the largest (to {largest}) none is "
        "larger than the one before."
        if eases
        else "The harm of a loop more does not diminish either."
    )
    return Finding(
        "Extra loops degrade the loss monotonically rather than plateauing.",
        f"{up} of {n} steps from K = {_trained()} to {LAST} raise the loss: {_listed(past)}. "
        f"{tail}",
        grade(up == n and all(values[-1] > ROUNDING for values in past.values())),
    )


def _gates() -> Finding:
    said = stated("gate_ablations_nats")
    learned = losses("learned")

    def excess(*interventions: str) -> list[float]:
        return [losses(i)[source] - learned[source] for i in interventions for source in learned]

    one_path, even = excess("gates=1,0", "gates=0,1"), excess("gates=0.5,0.5")
    shuffled = excess("shuffled")
    others = ("gates=1,0", "gates=0,1", "gates=0.5,0.5", "shuffled")
    opened, worst = losses("gates=1,1"), [losses(i) for i in others]
    is_worst = all(opened[source] > loss[source] for loss in worst for source in opened)
    ranges = [
        [round(f(values), digits) for f in (min, max)]
        for values, digits in ((one_path, 1), (shuffled, 2))
    ]
    ranges_said = [said["one_path"], said["shuffled"]]
    return Finding(
        f"Losing a path costs {said['one_path'][0]} to {said['one_path'][1]} nats, gates of 0.5 "
        f"about {said['even']}, shuffled gates {said['shuffled'][0]} to {said['shuffled'][1]}; "
        "opening both gates is worst.",
        f"{min(one_path):.2f} to {max(one_path):.2f}; {min(even):.2f} to {max(even):.2f}; "
        f"{min(shuffled):.2f} to {max(shuffled):.2f}; {min(excess('gates=1,1')):.2f} to "
        f"{max(excess('gates=1,1')):.2f}, {'' if is_worst else 'not '}the worst on each source.",
        grade(ranges == ranges_said and round(mean(even), 1) == said["even"] and is_worst),
    )
