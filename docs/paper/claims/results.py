"""What the paper's two tables of full results can carry, and what they cannot.

Accuracies are shares of documents answered, so the documents behind them and their sampling error
can be worked out; bits per byte (BPB) can be aggregated in more than one way.
"""

from collections.abc import Iterable, Mapping
from math import copysign, hypot, inf, sqrt

from dualpath_cli.flops import paper

from .finding import CLEAR, Finding, grade
from .stated import bold, stated

Scores = Mapping[str, float]
"""Configuration label -> score."""

DOCUMENTS = 1024
"""Documents that the multiples of 1/1024 give away."""
QASPER_DOCUMENTS = 319
ROUNDING = 0.5e-4
"""The tables print four decimals."""


def findings() -> list[Finding]:
    """The claims about results, each computed from the full tables."""
    claims = (_beats_controls, _best_aggregate, _ranking)
    return [
        _documents(),
        *map(_math_peak, paper.BUDGETS),
        _averages(),
        _bold(),
        *(claim(budget) for budget in paper.BUDGETS for claim in claims),
        _seeds(),
    ]


def exact_results(budget: str) -> dict[str, dict[str, float]]:
    """The full results with averages as the means of their rows: two that print alike differ."""
    table = paper.results(budget)
    return table | {name: paper.mean_of(rows, table) for name, rows in paper.AVERAGES.items()}


def cost(budget: str, metric: str) -> Scores:
    """A metric of every configuration, lower is better: BPB, or accuracy with its sign turned.

    Averages are the means of their rows.
    """
    table, sign = paper.results(budget), -1 if metric.endswith("Acc.") else 1
    tasks = paper.AVERAGES.get(metric)
    row = table[metric] if tasks is None else paper.mean_of(tasks, table)
    return {label: sign * value for label, value in row.items()}


def standard_error(budget: str, metric: str, label: str) -> float:
    """Of an accuracy, over its documents, or over those of the tasks that it is the mean of."""
    tasks = paper.AVERAGES.get(metric, (metric,))
    shares = [paper.results(budget)[task][label] for task in tasks]
    return sqrt(sum(p * (1 - p) for p in shares) / documents(metric)) / len(tasks)


def lead(budget: str, metric: str, label: str, rival: str) -> float:
    """How far one is ahead of another, in standard errors of two independent samples.

    In bits per byte, of which the tables have no error, any lead is infinite, and so is any lag.
    """
    scores = cost(budget, metric)
    ahead = scores[rival] - scores[label]
    if not metric.endswith("Acc."):
        return copysign(inf, ahead) if ahead else 0.0
    return ahead / hypot(*(standard_error(budget, metric, each) for each in (label, rival)))


def leads(
    budget: str, metrics: Iterable[str], label: str, rivals: Iterable[str]
) -> dict[str, tuple[float, str]]:
    """By metric, how far a configuration leads the best of its rivals, and which that is."""
    found = {}
    for metric in metrics:
        rival = best({name: cost(budget, metric)[name] for name in rivals if name != label})
        found[metric] = lead(budget, metric, label, rival), rival
    return found


def in_the_noise(ahead: Mapping[str, tuple[float, str]]) -> str:
    """A sentence that names the leads in accuracy that decide nothing, where there are such."""
    near = [f"{m} ({errors:.1f} over {who})" for m, (errors, who) in ahead.items()
            if 0 <= errors < CLEAR]  # fmt: skip
    return f" Within {CLEAR} standard errors: {', '.join(near)}." if near else ""


def documents(metric: str) -> int:
    """How many documents an accuracy is a share of."""
    return QASPER_DOCUMENTS if metric.startswith("QASPER") else DOCUMENTS


def duals(scores: Scores) -> dict[str, float]:
    """The nine dual-path configurations among them."""
    return {label: value for label, value in scores.items() if label.startswith("a")}


def controls(scores: Scores) -> dict[str, float]:
    """PureWide and PureLoop among them."""
    return {label: value for label, value in scores.items() if not label.startswith("a")}


def at_k4(scores: Scores) -> dict[str, float]:
    """The three dual-path configurations of K = 4, to which the main results keep."""
    return {label: value for label, value in duals(scores).items() if label.endswith("k4")}


def best(scores: Scores) -> str:
    """Label of the lowest score."""
    return min(scores, key=scores.__getitem__)


def _documents() -> Finding:
    cells = [
        (value, documents(metric))
        for budget in paper.BUDGETS
        for metric, row in paper.results(budget).items()
        # a mean of tasks is no share of documents
        if metric.endswith("Acc.") and metric not in paper.AVERAGES
        for value in row.values()
    ]
    on_grid = sum(abs(round(value * n) / n - value) <= ROUNDING * 1.001 for value, n in cells)
    return Finding(
        "How many documents stand behind an accuracy (not stated)?",
        f"{on_grid} of {len(cells)} accuracies are whole multiples of 1/{DOCUMENTS} (QASPER: "
        f"1/{QASPER_DOCUMENTS}) to the four decimals printed, where chance would give about one "
        f"in ten. So evaluations were capped at {DOCUMENTS} documents; how those were chosen is "
        "not given.",
        "note",
    )


def _math_peak(budget: str) -> Finding:
    metric, peak = "GSM8k Acc.", stated("gsm8k_peak")[budget]
    solved = {name: round(DOCUMENTS * -value) for name, value in cost(budget, metric).items()}
    ahead, rival = leads(budget, [metric], peak, at_k4(solved))[metric]
    against = ", ".join(
        f"{label} solves {solved[label]} ({lead(budget, metric, peak, label):.1f} standard errors "
        "fewer)"
        for label in (rival, "wide")
    )
    most = max(solved.values())
    leaders = [label for label, n in solved.items() if n == most]
    beyond = "" if leaders == [peak] else f" Over all K, {' and '.join(leaders)} solve {most}."
    return Finding(
        f"{budget}: math peaks at {peak} among K = 4 (GSM8K accuracy).",
        f"{peak} solves {solved[peak]} of {DOCUMENTS}, with a standard error of "
        f"{100 * standard_error(budget, metric, peak):.1f} points; {against}, taken as "
        f"independent samples.{' The order is inside the noise.' * (ahead < CLEAR)}{beyond}",
        grade(ahead >= 0, lead=ahead),
    )


def _averages() -> Finding:
    tables = [(paper.results(budget), exact_results(budget)) for budget in paper.BUDGETS]
    worst = max(
        abs(exact[average][label] - value)
        for printed, exact in tables
        for average in paper.AVERAGES
        for label, value in printed[average].items()
    )
    return Finding(
        "The printed averages are the means of their tasks.",
        f"Recomputed from the per-task rows they differ by at most {worst:.5f}.",
        grade(worst <= 2 * ROUNDING),
    )


def _bold() -> Finding:
    by_rows, as_printed, texts = [], 0, []
    for budget in paper.BUDGETS:
        tables = paper.results(budget), exact_results(budget)
        for metric, marked in bold(budget).items():
            printed, exact = (table[metric] for table in tables)
            firsts = [_firsts(metric, row) for row in (printed, exact)]
            as_printed += marked == firsts[0]
            by_rows.append(marked == firsts[1])
            if marked != firsts[0]:
                values = [f"{label} {printed[label]:.4f}, by its rows {exact[label]:.5f}"
                          for label in sorted(marked | firsts[0])]  # fmt: skip
                alone = " and ".join(sorted(marked))
                texts.append(f" {budget} {metric} has {alone} alone in bold: {'; '.join(values)}.")
    return Finding(
        "The best value of each row of the full results is bold.",
        f"As printed in {as_printed} of {len(by_rows)} rows, by their rows in {sum(by_rows)}."
        + "".join(texts),
        grade(*by_rows),
    )


def _firsts(metric: str, row: Scores) -> set[str]:
    """All labels with the best value: the highest accuracy, or the fewest bits per byte."""
    value = (max if metric.endswith("Acc.") else min)(row.values())
    return {label for label in row if row[label] == value}


def _beats_controls(budget: str) -> Finding:
    scores, label = paper.aggregate_bpb(budget), stated("best_dual")[budget]
    rivals = controls(scores)
    rival = best(rivals)
    loop = best({name: value for name, value in rivals.items() if name != "wide"})
    ours = {label: scores[label], "wide": scores["wide"], "best_loop": scores[loop]}
    printed = stated("aggregate_bpb")[budget]
    same = all(abs(ours[name] - value) <= 2 * ROUNDING for name, value in printed.items())
    params = {c.label: c.params_millions for c in paper.configurations(budget)}
    share = params[label] / params["wide"]
    return Finding(
        f"{budget}: {label} beats both controls on aggregate BPB with fewer parameters than "
        "PureWide.",
        f"{scores[label]:.4f} against {scores[rival]:.4f} ({rival}) and "
        f"{scores[loop]:.4f} ({loop}), with {share:.2f} of PureWide's parameters. The three "
        f"aggregates in the text are {'' if same else 'not '}reproduced.",
        grade(scores[label] < scores[rival] and share < 1 and same),
    )


def _best_aggregate(budget: str) -> Finding:
    scores, said = paper.aggregate_bpb(budget), stated("best_dual")[budget]
    nine, wide = duals(scores), scores["wide"]
    order = sorted(nine, key=nine.__getitem__)
    overall = (
        "It is the best of all nine too."
        if order[0] == said
        else f"Over all nine it is number {order.index(said) + 1}; the best is {order[0]} "
        f"({nine[order[0]]:.4f} against {nine[said]:.4f})."
    )
    beat = sum(value < wide for value in nine.values())
    return Finding(
        f"{budget}: {said} has the best aggregate BPB among K = 4.",
        f"{overall} {beat} of {len(nine)} beat PureWide ({wide:.4f}).",
        grade(best(at_k4(scores)) == said),
    )


def _ranking(budget: str) -> Finding:
    four, all_17 = paper.aggregate_bpb(budget), paper.mean_bpb(budget)
    orders = [sorted(duals(scores), key=scores.__getitem__) for scores in (four, all_17)]
    beat = [sum(v < s["wide"] for v in duals(s).values()) for s in (four, all_17)]
    moved = sum(a != b for a, b in zip(*orders, strict=True))
    n = len(orders[0])
    return Finding(
        f"{budget}: does the ranking of dual configurations depend on the aggregate?",
        f"{'Yes' if moved else 'No'}: on the mean of all 17 benchmarks {beat[1]} of {n} beat "
        f"PureWide ({all_17['wide']:.4f}), the best is {orders[1][0]} "
        f"({all_17[orders[1][0]]:.4f}), and {moved} of {n} places are filled otherwise.",
        "note",
    )


def _seeds() -> Finding:
    spans = []
    for budget in paper.BUDGETS:
        nine = duals(paper.aggregate_bpb(budget)).values()
        spans.append(f"{max(nine) - min(nine):.4f} at {budget}")
    return Finding(
        "How far apart are two runs that differ only in their seed?",
        "The tables cannot say: each row is one run. The nine dual configurations lie within "
        f"{' and '.join(spans)} of aggregate BPB.",
        "note",
    )
