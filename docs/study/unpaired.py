"""Prints the tests of a declared study: some pairs, unpaired, the error pooled over all arms.

python docs/study/unpaired.py experts_dense experts --pairs wide_e8-wide a50_k4_e8-a50_k4

Columns of the first table: the mean over seeds ± its standard error. Of the second: the difference,
95 % interval and p by the variance within all arms, p after Holm's correction for the pairs given,
what is found with a probability of 80 %, and Welch's p, by the runs of the two alone.
--table second prints the second alone.
"""

import argparse
from collections.abc import Mapping, Sequence
from itertools import chain
from math import sqrt
from statistics import variance

from kept import print_row, read_group, signed
from restore import check_known, run_script
from scipy.stats import ttest_ind

from dualpath_cli.compare.configurations import Configuration
from dualpath_cli.compare.runs import AGGREGATE
from dualpath_cli.statistics.blocks import Spread
from dualpath_cli.statistics.levels import holm

Arms = Mapping[str, Sequence[float]]
"""The scores of each arm's runs."""


def pooled(arms: Arms, one: str, other: str) -> Spread:
    """Spread of the difference of two arms' means, by the variance within all of them."""
    df = sum(len(scores) - 1 for scores in arms.values())
    squares = sum((len(scores) - 1) * variance(scores) for scores in arms.values())
    return Spread(sqrt(squares / df * (1 / len(arms[one]) + 1 / len(arms[other]))), df)


def print_arms(arms: Sequence[Configuration]) -> None:
    """The first table."""
    sets = [name for name in arms[0].scores if name != AGGREGATE]
    print_row("", "parameters", "active", "loops", "rate", "bits per byte", *sets)
    print_row("---", *["---:"] * (len(sets) + 5))
    for arm in arms:
        print_row(
            arm.name,
            f"{arm.parameters:,}",
            f"{arm.active or arm.parameters:,}",
            "" if arm.expected_loops is None else f"{arm.expected_loops:.2f}",
            f"{arm.runs[0].settings.optim.lr:g}",
            f"{arm.mean(AGGREGATE):.4f} ± {arm.standard_error(AGGREGATE):.4f}",
            *(f"{arm.mean(name):.4f}" for name in sets),
        )


def print_pairs(arms: Arms, pairs: Sequence[tuple[str, str]]) -> None:
    """The second table."""
    print_row("", "difference, 95 % interval", "p", "Holm", "detectable", "p, Welch")
    print_row("---", *["---:"] * 5)
    means = {name: sum(scores) / len(scores) for name, scores in arms.items()}
    spreads = [pooled(arms, *pair) for pair in pairs]
    leads = [means[one] - means[other] for one, other in pairs]
    tests = [spread.p(lead) for spread, lead in zip(spreads, leads, strict=True)]
    rows = zip(pairs, leads, spreads, tests, holm(tests), strict=True)
    for (one, other), lead, spread, p, corrected in rows:
        interval = f"{signed(lead - spread.reach)} to {signed(lead + spread.reach)}"
        welch = ttest_ind(arms[one], arms[other], equal_var=False).pvalue
        print_row(f"{one} − {other}", f"{signed(lead)} ({interval})", f"{p:.2g}",
                  f"{corrected:.2g}", f"{spread.detectable:.4f}", f"{welch:.2g}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints the tests of a declared study.")
    parser.add_argument("folders", nargs="+", help="Of kept runs, beside this file.")
    parser.add_argument("--pairs", nargs="+", required=True, help="ARM-BASELINE, so many tests.")
    parser.add_argument("--sets", nargs="+", help="Validation sets, whose mean is taken.")
    parser.add_argument("--table", choices=("first", "second"), help="This one alone.")
    given = parser.parse_args()
    pairs = [(one, other) for one, _, other in (pair.partition("-") for pair in given.pairs)]
    group, _ = read_group(given.folders, [pairs[0][1]], primary=True, sets=given.sets)
    arms = {arm.name: list(arm.scores[AGGREGATE].values()) for arm in group.configurations}
    check_known("arm", chain(*pairs), arms)
    if given.table != "second":
        print_arms(group.configurations)
    if given.table is None:
        print()
    if given.table != "first":
        print_pairs(arms, pairs)


if __name__ == "__main__":
    run_script(main)
