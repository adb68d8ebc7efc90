"""What the paper says that alpha and K do to the scores (Sections 4.2 and 5), score by score.

The text looks at K = 4 and at aggregates it chooses; the tables have every K and every benchmark.
"""

from collections.abc import Sequence
from itertools import pairwise

from dualpath_cli.flops import paper
from dualpath_cli.flops.audit.finding import Finding, holds
from dualpath_cli.flops.audit.results import Scores, aggregate_bpb, best, duals, mean_bpb

LANGUAGE_AND_COMMONSENSE = ("C4", "WikiText-103", "Commonsense Acc.", "Commonsense BPB")
MAIN_METRICS = (*LANGUAGE_AND_COMMONSENSE, "GSM8k Acc.", "Easy math avg BPB")
"""The six columns of the main table."""
READING_METRICS = ("LAMBADA Acc.", "LAMBADA BPB", "QASPER Acc.", "QASPER BPB")

ALPHAS = (25, 50, 75)
LOOPS = (2, 3, 4)


def findings() -> list[Finding]:
    """The claims about alpha and K, each computed from the full tables."""
    claims = (_best_on, _dominates, _reading, _capacity_heavy, _compute_heavy)
    return [
        *(claim(budget) for budget in paper.BUDGETS for claim in claims),
        _optimum_shifts(),
        _segments_flat("F80M"),
        _more_loops("F160M"),
        _steepen(),
    ]


def cost(budget: str, metric: str) -> Scores:
    """A metric of every configuration, lower is better: BPB, or accuracy with its sign turned."""
    row = paper.results(budget)[metric]
    return {label: -value if metric.endswith("Acc.") else value for label, value in row.items()}


def _controls(scores: Scores) -> dict[str, float]:
    return {label: value for label, value in scores.items() if label not in duals(scores)}


def _at_k4(scores: Scores) -> dict[str, float]:
    return {label: value for label, value in duals(scores).items() if label.endswith("k4")}


def _winner(metric: str, scores: Scores, beaten: str) -> str:
    """Who is best, and by which scores: `C4 goes to a50_k4 (1.0362 against 1.0374)`."""
    first = best(scores)
    return f"{metric} goes to {first} ({abs(scores[first]):.4f} against {abs(scores[beaten]):.4f})"


def _best_on(budget: str) -> Finding:
    label, metrics = paper.stated("best_dual")[budget], paper.stated("best_on")[budget]
    costs = {metric: cost(budget, metric) for metric in metrics}
    pools = {metric: _controls(scores) | _at_k4(scores) for metric, scores in costs.items()}
    others = [metric for metric, pool in pools.items() if best(pool) != label]
    elsewhere = [
        _winner(metric, duals(scores), label)
        for metric, scores in costs.items()
        if best(duals(scores)) != label
    ]
    overall = f" Over all K, {'; '.join(elsewhere)}." if elsewhere else " It is over all K, too."
    return Finding(
        f"{budget}: among K = 4 and the controls {label} is best on the columns "
        f"{', '.join(metrics)}".rstrip(".")
        + ".",
        f"It is best on {len(metrics) - len(others)} of {len(metrics)}.{overall}",
        holds(not others),
    )


def _dominates(budget: str) -> Finding:
    label = paper.stated("best_dual")[budget]
    better, equal, worse = 0, [], []
    for metric in MAIN_METRICS:
        scores = cost(budget, metric)
        for name, value in _controls(scores).items():
            better += scores[label] < value
            if scores[label] == value:
                equal.append(f"{metric} ({name})")
            if scores[label] > value:
                worse.append(f"{metric} ({name})")
    rest = [f"{word} on {', '.join(of)}" for word, of in (("equal", equal), ("worse", worse)) if of]
    return Finding(
        f"{budget}: {label} Pareto-dominates the controls on language modelling, commonsense and "
        "math.",
        f"On the {len(MAIN_METRICS)} columns of the main table, against "
        f"{len(_controls(scores))} controls, it is better in {better} of "
        f"{len(MAIN_METRICS) * len(_controls(scores))} cases{''.join(f', {r}' for r in rest)}.",
        holds(not worse and better > 0),
    )


def _reading(budget: str) -> Finding:
    label = paper.stated("best_dual")[budget]
    texts, leads = [], 0
    for metric in READING_METRICS:
        scores = cost(budget, metric)
        rival = best(_controls(scores))
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


def _strongest(budget: str, alpha: int, metrics: Sequence[str]) -> tuple[int, list[str]]:
    """On how many metrics an alpha is best among K = 4, and who is on the others."""
    label = f"a{alpha}_k4"
    pools = {metric: _at_k4(cost(budget, metric)) for metric in metrics}
    lost = [_winner(m, pool, label) for m, pool in pools.items() if best(pool) != label]
    return len(metrics) - len(lost), lost


def _capacity_heavy(budget: str) -> Finding:
    alpha = paper.stated("strongest_alpha")["language modelling and commonsense"]
    won, lost = _strongest(budget, alpha, LANGUAGE_AND_COMMONSENSE)
    last = [
        metric
        for metric in LANGUAGE_AND_COMMONSENSE
        if max(pool := _at_k4(cost(budget, metric)), key=pool.__getitem__) == f"a{alpha}_k4"
    ]
    worst = f" On {' and '.join(last)} it is the worst of the three." if last else ""
    return Finding(
        f"{budget}: alpha = {alpha} % is strongest on language modelling and commonsense, among "
        "K = 4.",
        f"On {won} of {len(LANGUAGE_AND_COMMONSENSE)} columns"
        f"{': ' if lost else ''}{'; '.join(lost)}.{worst}",
        holds(not lost),
    )


def _compute_heavy(budget: str) -> Finding:
    alpha = paper.stated("strongest_alpha")["math"]
    _, lost = _strongest(budget, alpha, ["Easy math avg BPB"])
    won, _ = _strongest(budget, alpha, [f"{task} BPB" for task in paper.MATH])
    return Finding(
        f"{budget}: alpha = {alpha} % is strongest on math, among K = 4 (easy math BPB).",
        f"{lost[0] if lost else 'It has the best average'}; of the {len(paper.MATH)} tasks it wins "
        f"{won}. The text rests the claim on GSM8K accuracy, but calls BPB the finer signal.",
        holds(not lost),
    )


def _alpha(label: str) -> int:
    return int(label[1:3])


def _optimum_shifts() -> Finding:
    budgets = list(paper.BUDGETS)
    scopes = {
        "K = 4, to which the text keeps": [_at_k4(aggregate_bpb(b)) for b in budgets],
        "all nine": [duals(aggregate_bpb(b)) for b in budgets],
        "all nine by the mean of 17 benchmarks": [duals(mean_bpb(b)) for b in budgets],
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
        holds(all(shifted[:2])),
    )


def _along_loops(scores: Scores, alpha: int) -> list[float]:
    """The scores of one alpha from K = 2 to 4: a segment of the parameter-quality figure."""
    return [scores[f"a{alpha}_k{k}"] for k in LOOPS]


def _segment(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in values)


def _segments_flat(budget: str) -> Finding:
    """Flat is what loses less than half of the largest gain."""
    segments = {alpha: _along_loops(mean_bpb(budget), alpha) for alpha in ALPHAS}
    changes = {alpha: values[-1] - values[0] for alpha, values in segments.items()}
    gain, loss = -min(changes.values()), max(changes.values())
    texts = [f"{_segment(values)} at alpha = {alpha} %" for alpha, values in segments.items()]
    worst = max(changes, key=changes.__getitem__)
    text = (
        f" From K = 2 to 4 alpha = {worst} % loses {loss:.4f}, where the best gains {gain:.4f}."
        if loss > 0
        else ""
    )
    return Finding(
        f"{budget}: along K some segments of the parameter-quality figure improve, the others are "
        "flat.",
        f"Mean BPB of 17 benchmarks for K = {', '.join(map(str, LOOPS))}: "
        f"{'; '.join(texts)}.{text}",
        holds(gain > 0 and loss < gain / 2),
    )


def _more_loops(budget: str) -> Finding:
    """Judged by the figure's aggregate and step by step: one step against all alpha is enough."""

    def worse(scores: Scores) -> list[str]:
        return [
            f"alpha = {alpha} % from K = {k} to {k + 1} ({one:.4f} to {more:.4f})"
            for alpha in ALPHAS
            for k, (one, more) in zip(LOOPS, pairwise(_along_loops(scores, alpha)), strict=False)
            if more >= one
        ]

    scores = mean_bpb(budget)
    ends = [_along_loops(scores, alpha) for alpha in ALPHAS]
    better = sum(values[-1] < values[0] for values in ends)
    steps = len(ALPHAS) * (len(LOOPS) - 1)
    against, against_aggregate = worse(scores), worse(aggregate_bpb(budget))
    return Finding(
        f"{budget}: more loops generally help, across all alpha (parameter-quality figure).",
        f"On the mean of 17 benchmarks {steps - len(against)} of {steps} steps of K help, not "
        f"{' and '.join(against) or 'none'}; from K = 2 to 4 {better} of {len(ALPHAS)} alphas gain."
        f" On the aggregate of four {steps - len(against_aggregate)} of {steps} help, not "
        f"{' and '.join(against_aggregate) or 'none'}.",
        holds(not against),
    )


def _steepen() -> Finding:
    slopes: dict[int, list[float]] = {}
    for budget in paper.BUDGETS:
        params = {row.label: row.params_millions for row in paper.configurations(budget)}
        for alpha in ALPHAS:
            quality = _along_loops(mean_bpb(budget), alpha)
            size = _along_loops(params, alpha)
            slope = 100 * (quality[-1] - quality[0]) / (size[0] - size[-1])
            slopes.setdefault(alpha, []).append(slope)
    low, high = paper.BUDGETS
    texts = [f"{a:+.4f} to {b:+.4f} at alpha = {alpha} %" for alpha, (a, b) in slopes.items()]
    return Finding(
        f"The segments of the parameter-quality figure steepen from {low} to {high}.",
        "Mean BPB of 17 benchmarks for each 100M parameters that K = 4 saves over K = 2: "
        f"{'; '.join(texts)}. Below 0 the line falls toward fewer parameters.",
        holds(all(b < a for a, b in slopes.values())),
    )
