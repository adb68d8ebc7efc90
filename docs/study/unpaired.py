"""Prints the tests of a declared study: some pairs of arms, unpaired, the error pooled over arms.

python docs/study/unpaired.py experts_dense+experts --pairs wide_e8:wide a50_k4_e8:a50_k4

Each word is a group: folders of kept runs, joined by `+`, such as those of one width. Within a
group all arms, or those of --arms, have one variance. Columns of the first table: FLOPs of training
in all, the mean over seeds ± its standard error. Of the second: the difference, 95 % interval and p
by that variance, p after Holm's correction for all pairs of all groups, the difference that is
found with a probability of 80 % before the correction, and Welch's p, by the runs of the two alone;
with --matters the verdict of docs/study/declared.md as well; with --others a second correction,
which counts as p = 1 so many tests that were declared and not made. --described prints the
differences with their intervals alone, by that variance and by Welch's.

--change tests the pairs' differences in the second group less those in the first, by one variance
of all arms of both. --paired takes the variance that is left within a seed, as `dualpath compare`
does. --table prints one of the tables alone.
"""

import argparse
from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev, variance
from typing import NamedTuple

from kept import of_seeds, print_row, read_runs, signed
from restore import check_known, run_script
from scipy.stats import ttest_ind

from dualpath_cli.compare.runs import TrainedRun
from dualpath_cli.errors import UserError
from dualpath_cli.flops.count import (
    active_parameters,
    has_experts,
    parameters,
    training_flops_per_token,
)
from dualpath_cli.statistics.blocks import Spread, block_spread
from dualpath_cli.statistics.levels import LEVEL, holm

Arms = Mapping[str, Sequence[float]]
"""The scores of the runs of each arm of a group."""
MIX = ("novels", "peps", "rust_rfcs", "gsm8k")
"""The sets that a study's measure is the mean of, if it is not told otherwise."""
INTERVAL = "difference, 95 % interval"


class Contrast(NamedTuple):
    """Means of arms, added and taken away."""

    name: str
    plus: Sequence[Sequence[float]]
    minus: Sequence[Sequence[float]]

    @property
    def value(self) -> float:
        return sum(map(fmean, self.plus)) - sum(map(fmean, self.minus))


def pooled(contrast: Contrast, arms: Sequence[Sequence[float]]) -> Spread:
    """Spread of a contrast by the variance within all of some arms."""
    df = sum(len(scores) - 1 for scores in arms)
    within = sum((len(scores) - 1) * variance(scores) for scores in arms) / df
    return Spread(sqrt(within * sum(1 / len(c) for c in [*contrast.plus, *contrast.minus])), df)


def print_arms(groups: Sequence[Sequence[TrainedRun]], sets: Sequence[str]) -> None:
    """The first table."""
    print_row("", "parameters", "FLOPs", "loops", "rate", "seeds", "bits per byte", *sets)
    print_row("---", *["---:"] * (len(sets) + 6))
    for runs in groups:
        for name, scores in arms_of(runs, sets).items():
            own = [run for run in runs if arm_of(run) == name]
            model, loops = own[0].settings.model, [run.expected_loops for run in own]
            active = f" ({active_parameters(model):,} active)" if has_experts(model) else ""
            flops = own[0].tokens * training_flops_per_token(model)
            print_row(
                name, f"{parameters(model):,}{active}", f"{flops / 1e12:.1f}e12",
                "" if None in loops else f"{fmean(loops):.2f}",
                f"{own[0].settings.optim.lr:g}", str(len(own)),
                f"{fmean(scores):.4f} ± {stdev(scores) / sqrt(len(own)):.4f}",
                *(f"{fmean(run.scores[one] for run in own):.4f}" for one in sets),
            )  # fmt: skip


def print_differences(contrasts: Sequence[Contrast], spreads: Sequence[Spread]) -> None:
    """The second table of what is described and not tested."""
    pairs = all(len(one.plus) == len(one.minus) == 1 for one in contrasts)
    print_row("", INTERVAL, *["interval, Welch"] * pairs)
    print_row("---", "---:", *["---:"] * pairs)
    for one, spread in zip(contrasts, spreads, strict=True):
        cells = [one.name, interval(one, spread)]
        if pairs:
            ends = ttest_ind(*one.plus, *one.minus, equal_var=False).confidence_interval()
            cells.append(" to ".join(map(signed, ends)))
        print_row(*cells)


def print_tests(
    contrasts: Sequence[Contrast],
    spreads: Sequence[Spread],
    others: int = 0,
    matters: float | None = None,
) -> None:
    """The second table."""
    beside = [f"Holm, {len(contrasts) + others}"] if others else []
    verdicts = [] if matters is None else ["verdict"]
    columns = [INTERVAL, "p", "Holm", *beside, "detectable", "p, Welch"]
    print_row("", *columns, *verdicts)
    print_row("---", *["---:"] * len(columns), *["---"] * len(verdicts))
    tests = [spread.p(one.value) for one, spread in zip(contrasts, spreads, strict=True)]
    with_others = holm([*tests, *[1.0] * others])[: len(tests)]
    for one, spread, p, p_holm, p_others in zip(
        contrasts, spreads, tests, holm(tests), with_others, strict=True
    ):
        two = [*one.plus, *one.minus]
        welch = f"{ttest_ind(*two, equal_var=False).pvalue:.2g}" if len(two) == 2 else ""
        low = one.value - spread.reach
        verdicts = [] if matters is None else [verdict(one.value, low, p_holm, matters)]
        beside = [f"{p_others:.2g}"] if others else []
        print_row(one.name, interval(one, spread), f"{p:.2g}", f"{p_holm:.2g}", *beside,
                  f"{spread.detectable:.4f}", welch, *verdicts)  # fmt: skip


def interval(contrast: Contrast, spread: Spread) -> str:
    low, high = (contrast.value + side * spread.reach for side in (-1, 1))
    return f"{signed(contrast.value)} ({signed(low)} to {signed(high)})"


def verdict(difference: float, low: float, p_holm: float, matters: float) -> str:
    """As docs/study/declared.md has it; `low` is where the 95 % interval begins."""
    if p_holm < LEVEL and difference > 0:
        return "worse"
    if p_holm < LEVEL:
        return "better" if low <= -matters else "better by less than matters"
    return "no lead that matters" if low > -matters else "undecided"


def arm_of(run: TrainedRun) -> str:
    return run.settings.run.recipe


def arms_of(runs: Sequence[TrainedRun], sets: Sequence[str]) -> dict[str, list[float]]:
    """The mean over sets of each run, by arm. Raises UserError for runs that are no replicates."""
    arms: dict[str, list[TrainedRun]] = {}
    for run in runs:
        check_known("validation set", sets, list(run.scores)[1:])
        arms.setdefault(arm_of(run), []).append(run)
    for name, own in arms.items():
        check_replicates(name, own)
    return {name: [fmean(run.scores[one] for one in sets) for run in own]
            for name, own in arms.items()}  # fmt: skip


def check_replicates(arm: str, runs: Sequence[TrainedRun]) -> None:
    """Raises UserError unless an arm's runs are two or more that differ in their seeds alone."""
    first, seeds = runs[0], dict[int, str]()
    for run in runs:
        seed, kept = run.seed, run.folder.parents[2].name
        if seed in seeds:
            raise UserError(f"arm '{arm}' has seed {seed} twice, in {seeds[seed]} and {kept}; "
                            "make them two groups, or leave one out")  # fmt: skip
        if (run.identity, run.data) != (first.identity, first.data):
            raise UserError(f"arm '{arm}' has other settings or data in {kept} (seed {seed}) than "
                            f"in {seeds[first.seed]} (seed {first.seed}); make them two groups, or "
                            "leave one out")  # fmt: skip
        seeds[seed] = kept
    if len(runs) < 2:
        raise UserError(f"arm '{arm}' has one run, of seed {first.seed}, and its spread needs two; "
                        "give more --seeds, or leave it out of --arms")  # fmt: skip


def contrasts_of(
    groups: Sequence[Arms],
    names: Sequence[str],
    pairs: Sequence[tuple[str, str]],
    *,
    change: bool = False,
    paired: bool = False,
) -> tuple[list[Contrast], list[Spread]]:
    """Each pair in each group; or how its difference changes from the first to the second."""
    found, spreads = [], []
    for one, other in pairs:
        if change:
            before, after = groups
            where = f", {names[1]} less {names[0]}"
            plus, minus = [after[one], before[other]], [after[other], before[one]]
            found.append(Contrast(f"{one} − {other}{where}", plus, minus))
            spreads.append(pooled(found[-1], [*before.values(), *after.values()]))
            continue
        for name, arms in zip(names, groups, strict=True):
            where = f", {name}" if len(groups) > 1 else ""
            found.append(Contrast(f"{one} − {other}{where}", [arms[one]], [arms[other]]))
            scores = list(arms.values())
            spreads.append(block_spread(scores) if paired else pooled(found[-1], scores))
    return found, spreads


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints the tests of a declared study.")
    parser.add_argument("groups", nargs="+", help="Folders of kept runs, joined by +.")
    parser.add_argument("--pairs", nargs="+", required=True, help="ARM:BASELINE, so many tests.")
    parser.add_argument("--arms", nargs="+", help="Those that have one variance, if not all.")
    parser.add_argument("--seeds", nargs="+", type=int, help="These alone.")
    parser.add_argument("--sets", nargs="+", default=MIX, help="Sets whose mean is taken.")
    parser.add_argument("--change", action="store_true", help="From the first group to the second.")
    parser.add_argument("--paired", action="store_true", help="The same seeds in all arms.")
    parser.add_argument("--others", type=int, default=0, help="Declared tests that were not made.")
    parser.add_argument("--matters", type=float, help="The least lead that counts, for verdicts.")
    parser.add_argument("--described", action="store_true", help="No tests: intervals alone.")
    parser.add_argument("--table", choices=("first", "second"), help="This one alone.")
    given = parser.parse_args()
    if given.described and (given.others or given.matters is not None):
        raise UserError("--described makes no tests; leave out --others and --matters")
    if given.change and (len(given.groups) != 2 or given.paired):
        raise UserError("--change needs two groups and is not paired; leave out --paired")
    pairs = [(one, other) for one, _, other in (pair.partition(":") for pair in given.pairs)]
    read = [of_seeds(read_runs(group.split("+")), given.seeds) for group in given.groups]
    for number, runs in enumerate(read if given.arms else []):
        check_known("arm", given.arms, map(arm_of, runs))
        read[number] = [run for run in runs if arm_of(run) in given.arms]
    groups = [arms_of(runs, given.sets) for runs in read]
    for arms in groups:
        check_known("arm", [name for pair in pairs for name in pair], arms)
    for runs in read if given.paired else []:
        seeds = {arm_of(run): [r.seed for r in runs if arm_of(r) == arm_of(run)] for run in runs}
        if any(own != seeds[arm_of(runs[0])] for own in seeds.values()):
            raise UserError(f"--paired needs the same seeds in all arms, not {seeds}")
    if given.table != "second":
        print_arms(read, given.sets)
    if given.table is None:
        print()
    if given.table != "first":
        found = contrasts_of(groups, given.groups, pairs, change=given.change, paired=given.paired)
        if given.described:
            print_differences(*found)
        else:
            print_tests(*found, given.others, given.matters)


if __name__ == "__main__":
    run_script(main)
