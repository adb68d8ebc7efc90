"""Prints what lowers the differences between seeds of PureWide: python docs/study/noise.py

Standard deviations over seeds of the bits per byte of the mix's four sets, after the last step and
of the mean of the last four checkpoints; variances over that of the first cell after the last step,
with 95 % intervals by F; and how many seeds give the interval that ten of the first cell give.
"""

from math import sqrt
from statistics import fmean, variance

from kept import print_row, read_runs
from scipy.stats import f
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
              "seeds")  # fmt: skip
    print_row("---", "---", *["---:"] * 4)
    first = scores(CELLS["to zero, one text"], 1)
    for cell, folder in CELLS.items():
        for count, weights in ((1, "last"), (AVERAGE, f"mean of {AVERAGE}")):
            found = scores(folder, count)
            ratio, low, high = variance_ratio(found, first)
            print_row(
                cell, weights, f"{fmean(found):.4f}", f"{sqrt(variance(found)):.4f}",
                "1" if found == first else f"{ratio:.2f} ({low:.2f} to {high:.2f})",
                f"{10 * ratio:.1f}",
            )  # fmt: skip


def scores(folder: str, average: int) -> list[float]:
    """Of the runs of PureWide."""
    runs = [run for run in read_runs([folder], average)
            if arm_of(run) == "wide" and run.seed in SEEDS]  # fmt: skip
    assert len(runs) == len(SEEDS)
    return [fmean(run.scores[name] for name in MIX) for run in runs]


def variance_ratio(one: list[float], other: list[float]) -> tuple[float, float, float]:
    """The variance of the first over the second's, and its 95 % interval."""
    ratio = variance(one) / variance(other)
    ends = f.ppf(0.975, len(one) - 1, len(other) - 1), f.ppf(0.025, len(one) - 1, len(other) - 1)
    low, high = (ratio / end for end in ends)
    return ratio, low, high


if __name__ == "__main__":
    main()
