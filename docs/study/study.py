"""Prints the tables of the first declared study from the two CSV files beside this script.

python docs/study/study.py            # the tables, each under its name
python docs/study/study.py --write    # those of docs/study.md, each below <!-- its name -->, and
                                      # the figure

runs.csv has a row a scored run: the part of the study, the arm, peak learning rate and seed, bits
per byte of the four validation sets after the last step, the loops that the router of each layer
expects there, and the commit and time at which the run began. arms.csv has the widths from which
parameters and FLOPs are counted.
"""

import argparse
import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import hypot, sqrt
from pathlib import Path
from statistics import fmean, stdev, variance
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import f, norm, ttest_ind

from dualpath_cli.flops.count import parameters, training_flops_per_token
from dualpath_cli.report.blocks import LEVEL, Spread, holm
from dualpath_cli.report.figures import FAMILY_COLORS
from dualpath_cli.spec.config import ModelConfig

STUDY = Path(__file__).parent
SETS = ("novels", "peps", "rust_rfcs", "gsm8k")
"""A run's score is the mean of their bits per byte."""
OTHERS = ("wide", "loop_k4", "a50_k1")
"""The arms that a50_k4 is tested against."""
LINEAR = ("a50_k4", *OTHERS)
"""Arms of equal linear FLOPs, which have one variance at a width."""
TOTAL = ("a50_k4", "wide_total", "loop_k4_total")
"""Arms of equal total FLOPs, which have one as well."""
MATTERS = 0.014
"""The lead that declared.md calls relevant."""

Scores = Sequence[float]
Table = list[list[str]]
"""Rows of cells, the headings first."""


class Run(NamedTuple):
    """A row of runs.csv."""

    part: str
    arm: str
    rate: float
    seed: int
    sets: Scores
    loops: Scores
    """Of each layer; none without a router."""

    @property
    def score(self) -> float:
        return fmean(self.sets)


def read(name: str) -> list[dict[str, str]]:
    with (STUDY / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


RUNS = [
    Run(row["part"], row["arm"], float(row["rate"]), int(row["seed"]),
        [float(row[name]) for name in SETS],
        [float(value) for name, value in row.items() if name.startswith("loops") and value])
    for row in read("runs.csv")
]  # fmt: skip


def runs_of(part: str, arm: str) -> list[Run]:
    return [run for run in RUNS if (run.part, run.arm) == (part, arm)]


def scores(part: str, arm: str) -> list[float]:
    return [run.score for run in runs_of(part, arm)]


def cells(part: str) -> dict[str, dict[float, list[Run]]]:
    """The runs of a part by arm and rate."""
    found: dict[str, dict[float, list[Run]]] = {}
    for run in RUNS:
        if run.part == part:
            found.setdefault(run.arm, {}).setdefault(run.rate, []).append(run)
    return found


# Statistics


def within(groups: Iterable[Scores]) -> tuple[float, int]:
    """The variance within all groups, and its degrees of freedom."""
    groups = list(groups)
    df = sum(len(own) - 1 for own in groups)
    return sum((len(own) - 1) * variance(own) for own in groups) / df, df


def spread_of(means: Iterable[Scores], groups: Iterable[Scores]) -> Spread:
    """Of a sum of means, added or taken away, by the variance within `groups`."""
    pooled, df = within(groups)
    return Spread(sqrt(pooled * sum(1 / len(own) for own in means)), df)


def difference(part: str, one: str, other: str, arms: Sequence[str]) -> tuple[float, Spread]:
    """Of the means of two arms, by the variance within all of some arms."""
    pair = [scores(part, one), scores(part, other)]
    return fmean(pair[0]) - fmean(pair[1]), spread_of(pair, (scores(part, arm) for arm in arms))


def welch(part: str, one: str, other: str) -> Any:
    """SciPy's result of the test by the two arms alone."""
    return ttest_ind(scores(part, one), scores(part, other), equal_var=False)


def verdict(value: float, low: float, p_holm: float) -> str:
    """As declared.md has it; `low` is where the 95 % interval begins."""
    if p_holm < LEVEL and value > 0:
        return "worse"
    if p_holm < LEVEL:
        return "better" if low <= -MATTERS else "better by less than matters"
    return "no lead that matters" if low > -MATTERS else "undecided"


def choice_spread(means: np.ndarray, error: float) -> float:
    """The standard deviation of the true mean that is chosen, where the lowest measured one is.

    Each mean is measured with the standard error `error`, independently of the others.
    """
    seen = np.linspace(means.min() - 8 * error, means.max() + 8 * error, 4001)
    above = norm.sf(seen[:, None], means, error)
    rest = np.transpose([np.delete(above, n, 1).prod(1) for n in range(len(means))])
    p = (norm.pdf(seen[:, None], means, error) * rest).sum(0) * (seen[1] - seen[0])
    return sqrt(p @ means**2 - (p @ means) ** 2)


# Tables


def signed(value: float) -> str:
    """With its sign, and a minus that is as wide as a plus."""
    return f"{value:+.4f}".replace("-", "−")


def interval(value: float, spread: Spread) -> str:
    return f"{signed(value)} ({signed(value - spread.reach)} to {signed(value + spread.reach)})"


def tests() -> Table:
    """The declared tests of width 32; those of width 48, never made, count as p = 1 in Holm, 6."""
    found = [difference("table32", "a50_k4", other, LINEAR) for other in OTHERS]
    p = [spread.p(value) for value, spread in found]
    corrected = zip(p, holm(p), holm([*p, 1, 1, 1]), strict=False)
    return [
        ["", "difference, 95 % interval", "standard error", "p", "Holm", "Holm, 6", "detectable",
         "p, Welch", "verdict"],
        *([f"a50_k4 − {other}", interval(value, spread), f"{spread.error:.4f}",
           *(f"{one:.2g}" for one in of_p), f"{spread.detectable:.4f}",
           f"{welch('table32', 'a50_k4', other).pvalue:.2g}",
           verdict(value, value - spread.reach, of_p[1])]
          for other, (value, spread), of_p in zip(OTHERS, found, corrected, strict=True)),
    ]  # fmt: skip


def described() -> Table:
    """Differences without a test."""
    table = [["", "difference, 95 % interval", "interval, Welch"]]
    k1 = ("a50_k1", "a50_k1 (rounded products)")
    for width, one, other, arms in [
        *((48, "a50_k4", other, LINEAR) for other in OTHERS),
        *((width, "a50_k4", other, TOTAL) for width in (32, 48) for other in TOTAL[1:]),
        *((width, "a50_k1", other, LINEAR) for width in (32, 48) for other in OTHERS[:2]),
        (32, "a50_k1", "wide_total", (*LINEAR, "wide_total")),
        *((width, "loop_k4", "wide", LINEAR) for width in (32, 48)),
        (32, k1[1], k1[0], k1),
    ]:
        part = f"table{width}"
        ends = map(signed, welch(part, one, other).confidence_interval())
        table.append([f"{width}: {one} − {other}", interval(*difference(part, one, other, arms)),
                      " to ".join(ends)])  # fmt: skip
    both = [scores(part, arm) for part in ("table32", "table48") for arm in TOTAL]
    for other in TOTAL[1:]:
        means = [scores(part, arm) for part in ("table32", "table48") for arm in ("a50_k4", other)]
        dual_32, other_32, dual_48, other_48 = map(fmean, means)
        value = (dual_48 - other_48) - (dual_32 - other_32)
        change = interval(value, spread_of(means, both))
        table.append([f"48 less 32: a50_k4 − {other}", change, ""])
    return table


def arms() -> Table:
    """What the arms of both widths are, and what they reach."""
    table = [["width", "arm", "parameters", "FLOPs", "rate", "seeds", "loops, by seed",
              "bits per byte", "standard deviation", *SETS]]  # fmt: skip
    for row in read("arms.csv"):
        model, runs = model_of(row), runs_of(f"table{row['width']}", row["arm"])
        (rate,) = {run.rate for run in runs}
        own, loops = [run.score for run in runs], [fmean(run.loops) for run in runs if run.loops]
        table.append([
            row["width"], row["arm"], f"{parameters(model):,}", f"{flops(row):.1f}e12",
            f"{rate:g}", str(len(runs)),
            f"{fmean(loops):.2f} ({min(loops):.2f} to {max(loops):.2f})" if loops else "",
            f"{fmean(own):.4f} ± {stdev(own) / sqrt(len(own)):.4f}", f"{stdev(own):.4f}",
            *(f"{fmean(values):.4f}" for values in zip(*(run.sets for run in runs), strict=True)),
        ])  # fmt: skip
    return table


def model_of(row: Mapping[str, Any]) -> ModelConfig:
    width, heads = int(row["width"]), int(row["width"]) // 16
    return ModelConfig(
        vocab_size=4096, n_layers=4, d_model=width, n_heads=heads, n_kv_heads=heads,
        max_seq_len=256, ffn_multiple_of=2, block=row["block"], loops=int(row["loops"]),
        d_ffn=int(row["d_ffn"] or 0) or None, d_ffn_wide=int(row["d_ffn_wide"] or 0) or None,
    )  # fmt: skip


def flops(row: Mapping[str, str]) -> float:
    """Of a run in all, in 10^12, with attention scores and head."""
    return int(row["tokens"]) * training_flops_per_token(model_of(row)) / 1e12


def grid(part: str) -> Table:
    """Means over seeds, arms by peak rates; an arm's lowest is bold, its loops in brackets."""
    found = cells(part)
    rates = sorted({rate for own in found.values() for rate in own})
    table = [["bits per byte (loops)", *(f"{rate:g}" for rate in rates)]]
    for arm, own in found.items():
        means = {rate: fmean(run.score for run in own[rate]) for rate in sorted(own)}
        texts = {rate: f"{mean:.4f}" for rate, mean in means.items()}
        best = min(means, key=means.__getitem__)
        texts[best] = f"**{texts[best]}**"
        for rate, runs in own.items():
            if loops := [fmean(run.loops) for run in runs if run.loops]:
                texts[rate] += f" ({fmean(loops):.2f})"
        table.append([arm, *(texts.get(rate, "") for rate in rates)])
    return table


def by_choice() -> Table:
    """What choosing rates by two seeds adds to the errors of width 32, and p with it."""
    table = [["true means", "error of a run", *(f"a50_k4 − {other}: added, p" for other in OTHERS)]]
    found = cells("rates")
    every = [[run.score for run in runs] for own in found.values() for runs in own.values()]
    pairs = stdev(first - second for first, second in every) / sqrt(2)
    for truth in ("as measured", "parabola"):
        for kind, error in (("pooled", sqrt(within(every)[0])), ("by pairs", pairs)):
            added = {}
            for arm in LINEAR:
                own = [[run.score for run in runs] for _, runs in sorted(found[arm].items())]
                means, steps = np.array([*map(fmean, own)]), np.arange(len(own))
                if truth == "parabola":
                    means = np.polyval(np.polyfit(steps, means, 2), steps)
                added[arm] = choice_spread(means, error / sqrt(2))
            row = [truth, f"{error:.4f}, {kind}"]
            for other in OTHERS:
                value, spread = difference("table32", "a50_k4", other, LINEAR)
                more = hypot(added["a50_k4"], added[other])
                wider = Spread(hypot(spread.error, more), spread.df)
                row.append(f"{more:.4f}, {wider.p(value):.2g}")
            table.append(row)
    return table


def noise() -> Table:
    """How PureWide's seeds 2 to 9 differ; ratios have F's intervals, as if no seed were shared."""
    table = [["", "weights", "bits per byte", "standard deviation", "variance, 95 % interval",
              "seeds"]]  # fmt: skip
    first = scores("table32", "wide")[:8]  # seeds 2 to 9
    for cell, part in (("to zero, one text", "table32"), ("to a tenth, one text", "noise_tenth"),
                       ("to zero, chunks of 4M", "noise_chunks"),
                       ("to a tenth, chunks of 4M", "noise_both")):  # fmt: skip
        for weights, arm in (("last", "wide"), ("mean of 4", "wide (mean of 4)")):
            own = [run.score for run in runs_of(part, arm) if run.seed in range(2, 10)]
            ratio = variance(own) / variance(first)
            low, high = (ratio / end for end in f.ppf((0.975, 0.025), 7, 7))
            shown = "1" if own == first else f"{ratio:.2f} ({low:.2f} to {high:.2f})"
            table.append([cell, weights, f"{fmean(own):.4f}", f"{stdev(own):.4f}", shown,
                          f"{10 * ratio:.1f}"])  # fmt: skip
    return table


TABLES: Mapping[str, Callable[[], Table]] = {
    "tests": tests,
    "described": described,
    "arms": arms,
    "rates": lambda: grid("rates"),
    "by_choice": by_choice,
    "held": lambda: grid("held"),
    "transfer": lambda: grid("transfer"),
    "noise": noise,
}


def markdown(table: Table) -> str:
    head, *rows = table
    words = ("arm", "weights", "verdict", head[0])
    rule = ["---" if name in words else "---:" for name in head]
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, rule, *rows])


def written(page: str) -> str:
    """A page with its tables made anew."""
    table = re.compile(r"<!-- (\w+) -->\n\n(?:\|.*\n)*\n?")
    return table.sub(lambda at: f"<!-- {at[1]} -->\n\n{markdown(TABLES[at[1]]())}\n", page)


def figure() -> Figure:
    """Scores over all FLOPs of training: a mark a seed, a bar a mean, a line between budgets."""
    drawn = Figure(figsize=(9.6, 3.8), layout="constrained")
    aside = {"loop_k4_total": 0.988, "wide_total": 1.012}  # their FLOPs are those of a50_k4
    named = {"wide": "PureWide", "loop_k4": "PureLoop, K = 4", "a50_k1": "dual, K = 1",
             "a50_k4": "dual, K = 4"}  # fmt: skip
    for width, ax in zip(("32", "48"), drawn.subplots(1, 2), strict=True):
        spent = {row["arm"]: flops(row) for row in read("arms.csv") if row["width"] == width}
        for arm, label in named.items():
            color = FAMILY_COLORS[label.split(",")[0].removeprefix("Pure").lower()]
            mark = "x" if arm == "a50_k1" else "o"
            own = {name: scores(f"table{width}", name) for name in (arm, f"{arm}_total")}
            at = {name: spent[name] * aside.get(name, 1) for name in own if own[name]}
            ax.plot([*at.values()], [fmean(own[name]) for name in at], marker="_", markersize=16,
                    color=color)  # fmt: skip
            for name, x in at.items():
                ax.plot([x] * len(own[name]), own[name], mark, color=color, markersize=3.5,
                        label=label if name == arm else None)  # fmt: skip
        ax.set_title(f"width {width}, {'tested' if width == '32' else 'described'}", fontsize=9)
        ax.set_xlabel("FLOPs of training in all, $10^{12}$")
        ax.spines[["top", "right"]].set_visible(False)
    drawn.axes[0].set_ylabel("bits per byte, mean of four sets")
    drawn.axes[0].legend(fontsize=8)
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints the tables of the study.")
    parser.add_argument("--write", action="store_true", help="Into the page, and draw its figure.")
    if parser.parse_args().write:
        page = STUDY.parent / "study.md"
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
        figure().savefig(STUDY / "compute.png", dpi=120)
    else:
        print("\n".join(f"{name}\n\n{markdown(table())}" for name, table in TABLES.items()))


if __name__ == "__main__":
    main()
