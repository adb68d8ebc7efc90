"""The paper's claims about its configurations, set against the tables.

No verdict is stored: each is computed from the tables, stated.json and the accounting.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import mean

from dualpath_cli.flops import count, paper

from .finding import Finding, by_reading, grade
from .rows import Row, by_budget
from .stated import stated


def findings(rows: Sequence[Row]) -> list[Finding]:
    """The claims about configurations, each set against the rows."""
    return [
        _widths_follow(rows),
        _params_as_written(rows),
        _params_fall(rows),
        _params_of_controls(rows),
        _params_range(rows),
        _wide_is_wider(rows),
        _at_or_below(rows),
        _matched_within(rows),
        _residual(rows),
        _wide_spends_most(rows),
        _attention(rows),
        _model_total(rows),
        _deep_share_of_ffn(rows),
        _caption(rows),
        _hours_range(rows),
        _hours_follow_flops(rows),
    ]


def _widths_follow(rows: Sequence[Row]) -> Finding:
    exact = sum(
        (row.solved.d_ffn, row.solved.d_ffn_wide) == (row.printed.d_ffn, row.printed.d_ffn_wide)
        for row in rows
    )
    clamped = [row.name for row in rows if row.solved.clamped]
    return Finding(
        "The widths follow from the budgets by the stated procedure.",
        f"{exact} of {len(rows)} configurations are reproduced exactly, with PureWide, which the "
        "text rounds up, rounded up twice (first the effective, then the configured width) and "
        f"{', '.join(clamped)}, of which the text says nothing, raised to the smallest width.",
        grade(exact == len(rows)),
    )


def _params_as_written(rows: Sequence[Row]) -> Finding:
    def right(params: Sequence[int]) -> int:
        pairs = zip(rows, params, strict=True)
        return sum(round(p / 1e6) == row.printed.params_millions for row, p in pairs)

    written = right([row.params["as_written"] for row in rows])
    trained = right([row.params["as_trained"] for row in rows])
    untied = right([row.untied_params for row in rows])
    return Finding(
        "Embeddings are tied and effective widths are multiples of 64.",
        f"So counted, {written} of {len(rows)} Params are reproduced; untied, {untied}; untied and "
        f"in multiples of 256, {trained}. The tables come from the last kind of model.",
        grade(written == len(rows)),
    )


def _params_fall(rows: Sequence[Row]) -> Finding:
    params = {row.name: row.printed.params_millions for row in rows}
    grids = [
        *([f"{b} a{a}_k{k}" for k in (2, 3, 4)] for b in paper.BUDGETS for a in (25, 50, 75)),
        *([f"{b} a{a}_k{k}" for a in (25, 50, 75)] for b in paper.BUDGETS for k in (2, 3, 4)),
    ]
    steps = [(params[one], params[more]) for grid in grids for one, more in pairwise(grid)]
    fewer = sum(more < one for one, more in steps)
    return Finding(
        "At a fixed budget a larger K and a larger alpha reduce the parameter count.",
        f"In {fewer} of {len(steps)} steps of one of them.",
        grade(fewer == len(steps)),
    )


def _params_of_controls(rows: Sequence[Row]) -> Finding:
    extremes, larger = [], []
    for members in by_budget(rows).values():
        params = {row.printed.label: row.printed.params_millions for row in members}
        most, fewest = (f(params, key=params.__getitem__) for f in (max, min))
        extremes.append(most == "wide" and fewest.startswith("loop"))
        larger += [
            f"{members[0].printed.budget_name} {name} ({params[name]}M)"
            for name in params
            if name.startswith("loop") and params[name] > params["a75_k4"]
        ]
    return Finding(
        "Within a budget PureWide has the most parameters and PureLoop the fewest.",
        f"PureLoop with K = 4 does. {' and '.join(larger)} have more than a75_k4.",
        grade(all(extremes)),
    )


def _params_range(rows: Sequence[Row]) -> Finding:
    low, high = stated("params_millions_range")
    params = [row.printed.params_millions for row in rows]
    least, most = min(params), max(params)
    return Finding(
        f"Parameter counts span from roughly {low}M up to {high}M.",
        f"From {least}M to {most}M.",
        grade((round(least, -1), round(most, -2)) == (low, high)),
    )


def _wide_is_wider(rows: Sequence[Row]) -> Finding:
    duals = [row for row in rows if row.printed.block == "dual"]
    narrower = [r.name for r in duals if (r.printed.d_ffn_wide or 0) <= (r.printed.d_ffn or 0)]
    return Finding(
        "The wide path's FFN is wider than the deep path's.",
        f"Not in {', '.join(narrower)}." if narrower else "In every dual configuration.",
        grade(not narrower),
    )


def _at_or_below(rows: Sequence[Row]) -> Finding:
    others = [row for row in rows if row.printed.block != "wide"]

    def judge(reading: paper.Reading) -> tuple[str, bool]:
        above = sum(row.linear_ratio[reading] > 1 for row in others)
        return f"{above} of {len(others)} lie above", not above

    return by_reading("All but PureWide stay at or below F_M.", judge)


def _matched_within(rows: Sequence[Row]) -> Finding:
    within = stated("matched_within_percent")

    def judge(reading: paper.Reading) -> tuple[str, bool]:
        ratios = {
            budget: [row.linear_ratio[reading] for row in members]
            for budget, members in by_budget(rows).items()
        }
        spreads = {budget: 100 * (max(r) - min(r)) for budget, r in ratios.items()}
        spread = ", ".join(f"{percent:.1f} % at {budget}" for budget, percent in spreads.items())
        lowest, highest = min(map(min, ratios.values())), max(map(max, ratios.values()))
        text = f"{lowest:.3f} to {highest:.3f} (spread {spread})"
        return text, max(spreads.values()) <= within

    claim = f"Configurations of a budget agree on linear FLOPs to within {within} %."
    return by_reading(claim, judge, "Linear FLOPs over F_M, ")


def _residual(rows: Sequence[Row]) -> Finding:
    below = stated("residual_below_percent")

    def judge(reading: paper.Reading) -> tuple[str, bool]:
        percent, worst = max((100 * abs(row.linear_ratio[reading] - 1), row.name) for row in rows)
        return f"up to {percent:.1f} % ({worst})", percent < below

    return by_reading(f"The residual mismatch is below {below} % of F_M everywhere.", judge)


def _wide_spends_most(rows: Sequence[Row]) -> Finding:
    wide = {row.printed.budget_name: row for row in rows if row.printed.block == "wide"}
    duals = [row for row in rows if row.printed.block == "dual"]

    def judge(reading: paper.Reading) -> tuple[str, bool]:
        more = sum(
            row.linear_ratio[reading] >= wide[row.printed.budget_name].linear_ratio[reading]
            for row in duals
        )
        return f"{more} of {len(duals)} spend as much or more", not more

    claim = "PureWide spends strictly more linear FLOPs than every dual configuration."
    return by_reading(claim, judge)


def _attention(rows: Sequence[Row]) -> Finding:
    model = rows[0].printed.model_config("as_trained")
    cost = count.score_flops(model.d_model, model.max_seq_len) / 1e6
    passes = [row.passes for row in rows]
    totals = []
    for budget, members in by_budget(rows).items():
        spent = [row.total / row.printed.budget for row in members]
        totals.append(f"{min(spent):.2f} to {max(spent):.2f} of F_M at {budget}")
    return Finding(
        "Attention compute is identical across configurations.",
        f"A layer runs K + 1 (dual), K (loop) or 1 (wide) attention passes. At {model.max_seq_len} "
        f"tokens one costs {cost:.1f}M FLOPs per token, so {min(passes) * cost:.1f}M to "
        f"{max(passes) * cost:.1f}M come on top of F_M, and a layer as trained spends "
        f"{' and '.join(totals)} in all. `--match total` solves for equal sums, "
        "within 1 %, instead.",
        grade(len(set(passes)) == 1),
    )


def _model_total(rows: Sequence[Row]) -> Finding:
    said = stated("total_gflops_per_token")
    model = rows[0].printed.model_config("as_trained")
    forward = {
        budget: [row.training_flops["as_trained"] / 3e9 for row in members]
        for budget, members in by_budget(rows).items()
    }
    spans = [f"{min(f):.2f}G to {max(f):.2f}G" for f in forward.values()]
    return Finding(
        f"A model spends {' and '.join(f'{value}G' for value in said.values())} FLOPs per token.",
        f"That is {model.n_layers} F_M, linear FLOPs alone. With attention scores and the head, a "
        f"forward pass as trained takes {' and '.join(spans)}.",
        grade(all(max(f) <= said[b] for b, f in forward.items())),
    )


def _deep_share_of_ffn(rows: Sequence[Row]) -> Finding:
    """Shares of a dual block's SwiGLU FLOPs, without the projections that F_M counts (Eq. 13)."""

    def share(row: Row, reading: paper.Reading) -> float:
        model = row.printed.model_config(reading)
        deep = row.printed.loops * model.effective_width(model.d_ffn or 0)
        return 100 * deep / (deep + model.effective_width(model.d_ffn_wide or 0))

    texts = []
    for reading in paper.READINGS:
        spans = []
        for alpha in (25, 50, 75):
            shares = [share(row, reading) for row in rows if row.printed.alpha == alpha]
            spans.append(f"{min(shares):.0f} to {max(shares):.0f} % at alpha = {alpha} %")
        texts.append(f"{reading.replace('_', ' ')}: {', '.join(spans)}")
    return Finding(
        "Is alpha the share of FFN FLOPs on the deep path, as it is called, or of all of F_M?",
        "Of F_M, where every pass pays for its attention projections first. Of the SwiGLU's FLOPs "
        f"the deep path gets, {'; '.join(texts)}.",
        "note",
    )


def _caption(rows: Sequence[Row]) -> Finding:
    caption, ablated = stated("gate_density_caption"), stated("ablated_model")
    named = [r for r in rows if all(getattr(r.printed, k) == v for k, v in caption.items())]
    budgets = [row.printed.budget_name for row in named]
    same = budgets == [ablated["budget"]]
    return Finding(
        "Which model do the analyses of the gates look at (they name alpha and K alone)?",
        f"The widths in the caption of the gate densities by layer, {caption['d_ffn']} and "
        f"{caption['d_ffn_wide']}, are those of {' and '.join(row.name for row in named)}; the "
        f"ablations name {ablated['budget']}{'' if same else ', so not one and the same'}.",
        "note",
    )


def _hours_range(rows: Sequence[Row]) -> Finding:
    hours = [row.printed.hours_on_64_gpus for row in rows]
    low, high = stated("hours_range")
    average = stated("hours_mean")
    return Finding(
        f"Training took {low} to {high} hours, {average} on average.",
        f"The Time columns run from {min(hours)} to {max(hours)} with a mean of {mean(hours):.2f}.",
        grade((min(hours), max(hours), round(mean(hours), 1)) == (low, high, average)),
    )


def _hours_follow_flops(rows: Sequence[Row]) -> Finding:
    slow, fast = (f(rows, key=lambda row: row.implied_tflops) for f in (min, max))
    time = {row.name: row.printed.hours_on_64_gpus for row in rows}
    labels = [row.printed.label for row in by_budget(rows)["F80M"]]
    quicker = [label for label in labels if time[f"F160M {label}"] < time[f"F80M {label}"]]
    return Finding(
        "Do the hours compare the architectures' speed?",
        f"No: they imply {slow.implied_tflops:.0f} ({slow.name}) to {fast.implied_tflops:.0f} "
        f"({fast.name}) TFLOP/s a GPU, and {', '.join(quicker)} took less time at F160M than at "
        "F80M.",
        "note",
    )
