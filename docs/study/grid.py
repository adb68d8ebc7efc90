"""Prints arms over learning rates: python docs/study/grid.py declared_rates declared_rates_k1

Bits per byte are the mean of the mix's four sets, over seeds; bold is an arm's lowest. With --loops
the loops that the router expects to make instead, the mean over layers at the last read-out. With
--trials the bits per byte of a sweep's trials (chosen.csv), over all of its sets. A kind of
parameter with a scale of its own (`optim.lr_scale`) is one whose rate was held.
"""

import argparse
import re
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from kept import print_row, read_runs
from restore import STUDY, run_script
from unpaired import MIX

from dualpath_cli.files.csv_text import read_csv

Grid = dict[str, dict[float, list[float]]]
"""Of each arm, at each peak rate, a value for each seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints arms over learning rates.")
    parser.add_argument("folders", nargs="+", help="Of kept runs, beside this file.")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--loops", action="store_true", help="Expected loops instead.")
    shown.add_argument("--trials", action="store_true", help="Trials instead of runs.")
    given = parser.parse_args()
    grid = (trials(given.folders) if given.trials else
            expected_loops(given.folders) if given.loops else scores(given.folders))  # fmt: skip
    rates = sorted({rate for cells in grid.values() for rate in cells})
    print_row("expected loops" if given.loops else "bits per byte", *(f"{r:g}" for r in rates))
    print_row("---", *["---:"] * len(rates))
    for arm, cells in grid.items():
        texts = {r: f"{fmean(v):.2f}" if given.loops else f"{fmean(v):.4f}"
                 for r, v in cells.items()}  # fmt: skip
        if not given.loops:
            texts[best(cells)] = f"**{texts[best(cells)]}**"
        print_row(arm, *(texts.get(rate, "") for rate in rates))


def best(cells: dict[float, list[float]]) -> float:
    """The rate with the lowest mean, the lower one of two that are equal."""
    return min(sorted(cells), key=lambda rate: fmean(cells[rate]))


def scores(folders: Sequence[str]) -> Grid:
    grid: Grid = defaultdict(lambda: defaultdict(list))
    for run in read_runs(folders):
        mean = fmean(run.scores[name] for name in MIX)
        grid[without_rate(run.settings.run.recipe)][run.settings.optim.lr].append(mean)
    return grid


def expected_loops(folders: Sequence[str]) -> Grid:
    grid: Grid = defaultdict(lambda: defaultdict(list))
    for run in read_runs(folders):
        if run.expected_loops is not None:
            arm = without_rate(run.settings.run.recipe)
            grid[arm][run.settings.optim.lr].append(run.expected_loops)
    return grid


def trials(folders: Sequence[str]) -> Grid:
    grid: Grid = defaultdict(dict)
    for row in (row for folder in folders for row in read_csv(STUDY / folder / "chosen.csv")):
        arm = without_rate(row["configuration"])
        grid[arm][float(row["lr"])] = [float(row["bits_per_byte"])]
    return grid


def without_rate(configuration: str) -> str:
    """Its name without rates; kinds of parameters are named whose own scale is not one."""
    name = re.sub(r"-lr_[\d.]+|-lr_scale_[a-z]+_1(?=-|$)", "", configuration)
    return re.sub(r"-lr_scale_([a-z]+)_[\d.]+", r", \1 held", name)


if __name__ == "__main__":
    run_script(main)
