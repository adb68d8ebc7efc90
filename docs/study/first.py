"""Writes the tables of first.md from first.csv beside this script.

first.csv has a row a scored run: the part of the study, the arm, peak learning rate and
seed, bits per byte of the four validation sets after the last step, the loops that the
router of each layer expects there, and the commit and time at which the run began.
"""

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, variance
from typing import Any, NamedTuple

from scipy.stats import ttest_ind

from dualpath_cli.report.blocks import LEVEL, Spread, holm
from dualpath_cli.report.table import Column, Table, markdown

STUDY = Path(__file__).parent
SETS = ("novels", "peps", "rust_rfcs", "gsm8k")
"""A run's score is the mean of their bits per byte."""
OTHERS = ("wide", "loop_k4", "a50_k1")
"""The arms that a50_k4 is tested against."""
LINEAR = ("a50_k4", *OTHERS)
"""Arms of equal linear FLOPs, which have one variance at a width."""
MATTERS = 0.014
"""The smallest lead that matters, as preregistered in declared.md."""

Scores = Sequence[float]


class Run(NamedTuple):
    """A row of first.csv."""

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
    Run(
        row["part"],
        row["arm"],
        float(row["rate"]),
        int(row["seed"]),
        [float(row[name]) for name in SETS],
        [
            float(value)
            for name, value in row.items()
            if name.startswith("loops") and value
        ],
    )
    for row in read("first.csv")
]


def scores(part: str, arm: str) -> list[float]:
    return [run.score for run in RUNS if (run.part, run.arm) == (part, arm)]


# Statistics


def within(groups: Iterable[Scores]) -> tuple[float, int]:
    """The variance within all groups, and its degrees of freedom."""
    groups = list(groups)
    df = sum(len(own) - 1 for own in groups)
    return sum((len(own) - 1) * variance(own) for own in groups) / df, df


def difference(part: str, one: str, other: str) -> tuple[float, Spread]:
    """Of the means of two arms of equal linear FLOPs, by the variance within all such
    arms."""
    pooled, df = within(scores(part, arm) for arm in LINEAR)
    pair = [scores(part, one), scores(part, other)]
    error = sqrt(pooled * sum(1 / len(own) for own in pair))
    return fmean(pair[0]) - fmean(pair[1]), Spread(error, df)


def welch(part: str, one: str, other: str) -> Any:
    """SciPy's result of the test on these two arms only."""
    return ttest_ind(scores(part, one), scores(part, other), equal_var=False)


def verdict(value: float, low: float, p_holm: float) -> str:
    """The verdict of declared.md; `low` is the lower end of the 95 % interval."""
    if p_holm < LEVEL and value > 0:
        return "worse"
    if p_holm < LEVEL:
        return "better" if low <= -MATTERS else "better by less than matters"
    return "no lead that matters" if low > -MATTERS else "undecided"


# Tables


def signed(value: float) -> str:
    """With its sign, and a minus that is as wide as a plus."""
    return f"{value:+.4f}".replace("-", "−")


def interval(value: float, spread: Spread) -> str:
    return (
        f"{signed(value)} ({signed(value - spread.reach)} to "
        f"{signed(value + spread.reach)})"
    )


def tests() -> Table:
    """The preregistered tests of width 32; in *Holm, 6* those of width 48, which were
    never run, count as p = 1."""
    found = [difference("table32", "a50_k4", other) for other in OTHERS]
    p = [spread.p(value) for value, spread in found]
    corrected = zip(p, holm(p), holm([*p, 1, 1, 1]), strict=False)
    headings = (
        "difference, 95 % interval",
        "standard error",
        "p",
        "Holm",
        "Holm, 6",
        "detectable",
        "p, Welch",
    )
    rows = [
        (
            f"a50_k4 − {other}",
            interval(value, spread),
            f"{spread.error:.4f}",
            *(f"{one:.2g}" for one in of_p),
            f"{spread.detectable:.4f}",
            f"{welch('table32', 'a50_k4', other).pvalue:.2g}",
            verdict(value, value - spread.reach, of_p[1]),
        )
        for other, (value, spread), of_p in zip(OTHERS, found, corrected, strict=True)
    ]
    return Table(
        [Column(""), *(Column(name, "") for name in headings), Column("verdict")], rows
    )


def of_rates() -> Table:
    """Means over seeds, arms by peak rates; an arm's lowest is bold, its loops in
    brackets."""
    found: dict[str, dict[float, list[Run]]] = {}
    for run in RUNS:
        if run.part == "rates":
            found.setdefault(run.arm, {}).setdefault(run.rate, []).append(run)
    rates = sorted({rate for own in found.values() for rate in own})
    rows = []
    for arm, own in found.items():
        means = {rate: fmean(run.score for run in own[rate]) for rate in sorted(own)}
        texts = {rate: f"{mean:.4f}" for rate, mean in means.items()}
        best = min(means, key=means.__getitem__)
        texts[best] = f"**{texts[best]}**"
        for rate, runs in own.items():
            if loops := [fmean(run.loops) for run in runs if run.loops]:
                texts[rate] += f" ({fmean(loops):.2f})"
        rows.append([arm, *map(texts.get, rates)])
    headings = (Column(f"{rate:g}", "") for rate in rates)
    return Table([Column("bits per byte (loops)"), *headings], rows)


TABLES: Mapping[str, Callable[[], Table]] = {"tests": tests, "rates": of_rates}


def written(page: str) -> str:
    """A page with its tables made anew."""
    table = re.compile(r"<!-- (\w+) -->\n\n(?:\|.*\n)*\n?")
    return table.sub(
        lambda at: f"<!-- {at[1]} -->\n\n{markdown(TABLES[at[1]](), str)}\n", page
    )


def main() -> None:
    page = STUDY / "first.md"
    page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
