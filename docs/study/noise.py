"""Prints what lowers the differences between seeds of PureWide: python docs/study/noise.py

Standard deviations over seeds of the bits per byte of the mix's four sets, after the last step and
of the mean of the last four checkpoints; variances over that of the first cell after the last step,
with 95 % intervals by F, as if cells were independent, and by Pitman and Morgan, whose cells share
seeds; and how many seeds give the standard error that ten of the first cell give.
"""

from math import sqrt
from statistics import fmean, variance

from kept import print_row, read_runs
from scipy.stats import f, pearsonr, t
from unpaired import MIX, arm_of

CELLS = {
    "to zero, one text": "declared_32",
    "to a tenth, one text": "declared_noise_tenth",
    "to zero, chunks of 4M": "declared_noise_chunks",
    "to a tenth, chunks of 4M": "declared_noise_both",
}
"""How the rate ends and which text a seed reads, and the folder of kept runs."""
SEEDS, AVERAGE = range(2, 10), 4


def main() -> None:
    print_row("", "weights", "bits per byte", "standard deviation", "variance, 95 % interval",
              "by pairs", "seeds")  # fmt: skip
    print_row("---", "---", *["---:"] * 5)
    first = scores(CELLS["to zero, one text"], 1)
    for cell, folder in CELLS.items():
        for count, weights in ((1, "last"), (AVERAGE, f"mean of {AVERAGE}")):
            found = scores(folder, count)
            ratio, low, high = variance_ratio(found, first)
            intervals = "1", ""
            if found != first:
                lower, higher = paired_interval(found, first)
                intervals = f"{ratio:.2f} ({low:.2f} to {high:.2f})", f"{lower:.2f} to {higher:.2f}"
            print_row(cell, weights, f"{fmean(found):.4f}", f"{sqrt(variance(found)):.4f}",
                      *intervals, f"{10 * ratio:.1f}")  # fmt: skip


def scores(folder: str, average: int) -> list[float]:
    """Of the runs of PureWide, by seed."""
    runs = [run for run in read_runs([folder], average)
            if arm_of(run) == "wide" and run.seed in SEEDS]  # fmt: skip
    runs.sort(key=lambda run: run.seed)
    assert [run.seed for run in runs] == list(SEEDS)
    return [fmean(run.scores[name] for name in MIX) for run in runs]


def variance_ratio(one: list[float], other: list[float]) -> tuple[float, float, float]:
    """The variance of the first over the second's, and its 95 % interval."""
    ratio = variance(one) / variance(other)
    ends = f.ppf(0.975, len(one) - 1, len(other) - 1), f.ppf(0.025, len(one) - 1, len(other) - 1)
    low, high = (ratio / end for end in ends)
    return ratio, low, high


def paired_interval(one: list[float], other: list[float]) -> tuple[float, float]:
    """The 95 % interval of the ratio of variances where both have the same seeds.

    Of the ratios w for which one + sqrt(w) other and one - sqrt(w) other, which are uncorrelated if
    w is the true one, have a correlation that is not significant (Pitman 1939, Morgan 1939).
    """
    ratio, left = variance(one) / variance(other), len(one) - 2
    unshared = 1 - pearsonr(one, other).statistic ** 2
    middle = 1 + 2 * unshared * t.ppf(0.975, left) ** 2 / left
    reach = sqrt(middle**2 - 1)
    return ratio * (middle - reach), ratio * (middle + reach)


if __name__ == "__main__":
    main()
