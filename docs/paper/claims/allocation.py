"""What the paper says that alpha and K do to the scores (Sections 4.2 and 5), score by score.

The text looks at K = 4 and at aggregates it chooses; the tables have every K and every benchmark.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise

from dualpath_cli.flops import paper

from .finding import Finding, grade
from .results import Scores, at_k4, best, controls, cost, duals, in_the_noise, lead, leads
from .stated import stated

SUBJECTS = {
    "language modelling and commonsense": (
        "C4", "WikiText-103", "Commonsense Acc.", "Commonsense BPB",
    ),
    "math": ("GSM8k Acc.", "Easy math avg BPB"),
}  # fmt: skip
"""The columns of the main table, by what they are of."""
MAIN_METRICS = tuple(chain(*SUBJECTS.values()))
READING_METRICS = ("LAMBADA Acc.", "LAMBADA BPB", "QASPER Acc.", "QASPER BPB")

ALPHAS = (25, 50, 75)
LOOPS = (2, 3, 4)


def findings() -> list[Finding]:
    """The claims about alpha and K, each computed from the full tables."""
    claims = (_best_on, _dominates, _reading)
    return [
        *(claim(budget) for budget in paper.BUDGETS for claim in claims),
        *(_strongest(budget, subject) for budget in paper.BUDGETS for subject in SUBJECTS),
        _optimum_shifts(),
        _segments_flat("F80M"),
        _more_loops("F160M"),
        _steepen(),
    ]


def _winner(budget: str, metric: str, scores: Scores, beaten: str) -> str:
    """Who is best, and by which printed scores: `C4 goes to a50_k4 (1.0362 against 1.0374)`."""
    first, row = best(scores), paper.results(budget)[metric]
    return f"{metric} goes to {first} ({row[first]:.4f} against {row[beaten]:.4f})"


def _best_on(budget: str) -> Finding:
    label, metrics = stated("best_dual")[budget], stated("best_on")[budget]
    costs = {metric: cost(budget, metric) for metric in metrics}
    shown = leads(budget, metrics, label, controls(costs["C4"]) | at_k4(costs["C4"]))
    ahead = [errors >= 0 for errors, _ in shown.values()]
    elsewhere = [
        _winner(budget, metric, duals(scores), label)
        for metric, scores in costs.items()
        if best(duals(scores)) != label
    ]
    overall = f" Over all K, {'; '.join(elsewhere)}." if elsewhere else " It is over all K, too."
    return Finding(
        f"{budget}: among K = 4 and the controls {label} is best on the columns "
        f"{', '.join(metrics)}".rstrip(".")
        + ".",
        f"It is best on {sum(ahead)} of {len(metrics)}.{in_the_noise(shown)}{overall}",
        grade(*ahead, lead=_least(shown)),
    )


def _least(leads: Mapping[str, tuple[float, str]]) -> float:
    return min(errors for errors, _ in leads.values())


def _dominates(budget: str) -> Finding:
    label, rivals = stated("best_dual")[budget], controls(cost(budget, "C4"))
    cases = {(m, who): lead(budget, m, label, who) for m in MAIN_METRICS for who in rivals}
    better = sum(errors > 0 for errors in cases.values())
    equal = [f"{m} ({who})" for (m, who), errors in cases.items() if errors == 0]
    worse = [f"{m} ({who})" for (m, who), errors in cases.items() if errors < 0]
    rest = [
        f", {word} on {', '.join(of)}" for word, of in (("equal", equal), ("worse", worse)) if of
    ]
    closest = leads(budget, MAIN_METRICS, label, rivals)
    return Finding(
        f"{budget}: {label} Pareto-dominates the controls on language modelling, commonsense and "
        "math.",
        f"On the {len(MAIN_METRICS)} columns of the main table, against {len(rivals)} controls, "
        f"it is better in {better} of {len(cases)} cases{''.join(rest)}.{in_the_noise(closest)}",
        grade(not worse, better > 0, lead=_least(closest)),
    )


def _reading(budget: str) -> Finding:
    label = stated("best_dual")[budget]
    texts, leads = [], 0
    for metric in READING_METRICS:
        scores = cost(budget, metric)
        rival = best(controls(scores))
        leads += scores[label] < scores[rival]
        last = scores[label] == max(scores.values())
        texts.append(
            f"{metric} {abs(scores[label]):.4f} against {abs(scores[rival]):.4f} ({rival})"
            + (f", the worst of all {len(scores)}" if last else "")
        )
    return Finding(
        f"{budget}: does {label} beat the controls on reading and question answering, too?",
        f"On {leads} of {len(READING_METRICS)}: {'; '.join(texts)}.",
        "note",
    )


def _strongest(budget: str, subject: str) -> Finding:
    alpha, metrics = stated("strongest_alpha")[subject], SUBJECTS[subject]
    label = f"a{alpha}_k4"
    pools = {metric: at_k4(cost(budget, metric)) for metric in metrics}
    shown = leads(budget, metrics, label, pools[metrics[0]])
    lost = [metric for metric, (errors, _) in shown.items() if errors < 0]
    winners = "; ".join(_winner(budget, metric, pools[metric], label) for metric in lost)
    last = [metric for metric in lost if pools[metric][label] == max(pools[metric].values())]
    worst = f" On {' and '.join(last)} it is the worst of the three." if last else ""
    return Finding(
        f"{budget}: alpha = {alpha} % is strongest on {subject}, among K = 4.",
        f"On {len(metrics) - len(lost)} of {len(metrics)} columns{': ' if lost else ''}{winners}."
        f"{worst}{in_the_noise(shown)}",
        grade(*(errors >= 0 for errors, _ in shown.values()), lead=_least(shown)),
    )


def _alpha(label: str) -> int:
    return int(label[1:3])


def _optimum_shifts() -> Finding:
    budgets = list(paper.BUDGETS)
    scopes = {
        "K = 4, to which the text keeps": [at_k4(paper.aggregate_bpb(b)) for b in budgets],
        "all nine": [duals(paper.aggregate_bpb(b)) for b in budgets],
        "all nine by the mean of 17 benchmarks": [duals(paper.mean_bpb(b)) for b in budgets],
    }
    texts, shifted = [], []
    for scope, (low, high) in scopes.items():
        before, after = best(low), best(high)
        change = _alpha(after) - _alpha(before)
        where = "toward capacity" if change < 0 else "toward compute" if change else "no shift"
        texts.append(
            f"among {scope}, from {before} ({low[before]:.4f}) to {after} ({high[after]:.4f}), "
            f"{where}"
        )
        shifted.append(change < 0)
    return Finding(
        f"From {budgets[0]} to {budgets[1]} the optimum shifts toward capacity.",
        f"{'; '.join(texts)[0].upper()}{'; '.join(texts)[1:]}.",
        grade(shifted[0]),
    )


def _along_loops(scores: Scores, alpha: int) -> list[float]:
    """The scores of one alpha from K = 2 to 4: a segment of the parameter-quality figure."""
    return [scores[f"a{alpha}_k{k}"] for k in LOOPS]


def _segment(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in values)


def _segments_flat(budget: str) -> Finding:
    """Flat is what loses less than half of the largest gain."""
    segments = {alpha: _along_loops(paper.mean_bpb(budget), alpha) for alpha in ALPHAS}
    changes = {alpha: values[-1] - values[0] for alpha, values in segments.items()}
    gain, loss = -min(changes.values()), max(changes.values())
    texts = [f"{_segment(values)} at alpha = {alpha} %" for alpha, values in segments.items()]
    worst = max(changes, key=changes.__getitem__)
    text = (
        f" From K = 2 to 4 alpha = {worst} % loses {loss:.4f}, where the best gains {gain:.4f}; "
        "up to half of that would be flat."
        if loss > 0
        else ""
    )
    return Finding(
        f"{budget}: along K some segments of the parameter-quality figure improve, the others are "
        "flat.",
        f"Mean BPB of 17 benchmarks for K = {', '.join(map(str, LOOPS))}: "
        f"{'; '.join(texts)}.{text}",
        grade(gain > 0 and loss < gain / 2),
    )


def _more_loops(budget: str) -> Finding:
    """Judged by the figure's aggregate, step by step."""

    def steps(scores: Scores) -> dict[str, bool]:
        return {
            f"alpha = {alpha} % from K = {k} to {k + 1} ({one:.4f} to {more:.4f})": more < one
            for alpha in ALPHAS
            for k, (one, more) in zip(LOOPS, pairwise(_along_loops(scores, alpha)), strict=False)
        }

    def told(helps: Mapping[str, bool]) -> str:
        against = " and ".join(step for step, helped in helps.items() if not helped)
        return f"{sum(helps.values())} of {len(helps)} steps of K help, not {against or 'none'}"

    scores = paper.mean_bpb(budget)
    ends = [_along_loops(scores, alpha) for alpha in ALPHAS]
    better = sum(values[-1] < values[0] for values in ends)
    return Finding(
        f"{budget}: more loops generally help, across all alpha (parameter-quality figure).",
        f"On the mean of 17 benchmarks {told(steps(scores))}; from K = 2 to 4 {better} of "
        f"{len(ALPHAS)} alphas gain. On the aggregate of four "
        f"{told(steps(paper.aggregate_bpb(budget)))}.",
        grade(*steps(scores).values(), generally=True),
    )


def _steepen() -> Finding:
    slopes: dict[int, list[float]] = {}
    for budget in paper.BUDGETS:
        params = {row.label: row.params_millions for row in paper.configurations(budget)}
        for alpha in ALPHAS:
            quality = _along_loops(paper.mean_bpb(budget), alpha)
            size = _along_loops(params, alpha)
            slope = 100 * (quality[-1] - quality[0]) / (size[0] - size[-1])
            slopes.setdefault(alpha, []).append(slope)
    low, high = paper.BUDGETS
    texts = [f"{a:+.4f} to {b:+.4f} at alpha = {alpha} %" for alpha, (a, b) in slopes.items()]
    return Finding(
        f"The segments of the parameter-quality figure steepen from {low} to {high}.",
        "Mean BPB of 17 benchmarks for each 100M parameters that K = 4 saves over K = 2: "
        f"{'; '.join(texts)}. Below 0 the line falls toward fewer parameters.",
        grade(all(b < a for a, b in slopes.values())),
    )
