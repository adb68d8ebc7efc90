"""Prints arms over learning rates: python docs/study/grid.py declared_rates declared_rates_k1

Bits per byte are the mean of the mix's four sets, over seeds; bold is an arm's lowest. With --loops
the loops that the router expects to make instead, the mean over layers, at the last read-out or at
that of --step. --by-seed prints each seed's value, --rates are those that are shown. With --trials
the bits per byte of a sweep's trials (chosen.csv), over all of its sets. A kind of parameter with a
scale of its own (`optim.lr_scale`) is one whose rate was held.

Below the table: how seeds of a cell differ, pooled over cells, and what two cells differ by where
nothing else does; the same by pairs, where all cells have the same two seeds; with --loops how many
layers expect few or many, and the correlation of loops and bits per byte over the runs.
"""

import argparse
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import fmean, stdev, variance

from kept import print_row, read_runs, signed
from restore import STUDY, check_known, run_script
from scipy.stats import pearsonr
from unpaired import MIX

from dualpath_cli.compare.runs import TrainedRun
from dualpath_cli.errors import UserError
from dualpath_cli.files.csv_text import read_csv

Grid = dict[str, dict[float, dict[int, float]]]
"""Of each arm, at each peak rate, a value for each seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints arms over learning rates.")
    parser.add_argument("folders", nargs="+", help="Of kept runs, beside this file.")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--loops", action="store_true", help="Expected loops instead.")
    shown.add_argument("--trials", action="store_true", help="Trials instead of runs.")
    parser.add_argument("--step", type=int, help="Of the read-out of loops; the last by default.")
    parser.add_argument("--rates", nargs="+", help="Peak rates; all by default.")
    parser.add_argument("--by-seed", action="store_true", help="Each seed's value, not the mean.")
    given = parser.parse_args()
    if given.step is not None and not given.loops:
        parser.error("--step goes with --loops")
    if given.trials and (given.rates or given.by_seed):
        parser.error("--trials goes without --rates and --by-seed")
    if given.trials:
        print_grid(trials(given.folders), "bits per byte", 4, bold=True)
        return
    runs = looped(given.folders) if given.loops else read_runs(given.folders)
    if given.rates:
        check_known("rate", given.rates, [f"{run.settings.optim.lr:g}" for run in runs])
        runs = [run for run in runs if f"{run.settings.optim.lr:g}" in given.rates]
    layers = [loops_by_layer(run, given.step) if given.loops else [] for run in runs]
    scores = list(map(score, runs))
    loops = [fmean(own) for own in layers] if given.loops else []
    grid, digits = grid_of(runs, loops or scores), 2 if given.loops else 4
    what = "expected loops" if given.loops else "bits per byte"
    print_grid(grid, what, digits, bold=not given.loops, by_seed=given.by_seed)
    print()
    print_spread(grid, digits)
    if given.loops:
        print_layers([one for own in layers for one in own])
        if len(runs) > 2 and len(set(loops)) > 1:
            r = pearsonr(loops, scores)
            print(f"loops and bits per byte of {len(runs)} runs: r = {signed(r.statistic, 2)}, "
                  f"p = {r.pvalue:.2g}")  # fmt: skip


def print_grid(grid: Grid, what: str, digits: int, *, bold: bool, by_seed: bool = False) -> None:
    """The table; a cell is the mean of its seeds, or the value of each, in their order."""
    rates = sorted({rate for cells in grid.values() for rate in cells})
    print_row(what, *(f"{rate:g}" for rate in rates))
    print_row("---", *["---:"] * len(rates))
    for arm, cells in grid.items():
        texts = {
            rate: ", ".join(f"{own[seed]:.{digits}f}" for seed in sorted(own))
            if by_seed
            else f"{fmean(own.values()):.{digits}f}"
            for rate, own in cells.items()
        }
        if bold:
            texts[best(cells)] = f"**{texts[best(cells)]}**"
        print_row(arm, *(texts.get(rate, "") for rate in rates))


def print_spread(grid: Grid, digits: int) -> None:
    """How seeds of a cell differ, and so two cells of as many: pooled, and by pairs of seeds."""
    cells = [own for of_rate in grid.values() for own in of_rate.values()]
    several = [list(own.values()) for own in cells if len(own) > 1]
    if not several:
        return
    df = sum(len(own) - 1 for own in several)
    spread = sqrt(sum((len(own) - 1) * variance(own) for own in several) / df)
    error = spread * sqrt(2 / max(map(len, several)))
    print(f"seeds of a cell differ by {spread:.{digits}f} (standard deviation, pooled over "
          f"{len(several)} cells), two cells by {error:.{digits}f} (standard error)")  # fmt: skip
    first, *others = sorted({seed for own in cells for seed in own})
    if len(cells) > 2 and len(others) == 1 and all(len(own) == 2 for own in cells):
        (second,) = others
        pairs = [own[first] - own[second] for own in cells]
        print(f"seed {first} less seed {second}: below it in {sum(one < 0 for one in pairs)} of "
              f"{len(cells)} cells, {signed(fmean(pairs), digits)} in the mean; by such pairs two "
              f"cells differ by {stdev(pairs) / sqrt(2):.{digits}f}")  # fmt: skip


def print_layers(loops: Sequence[float]) -> None:
    few, many = sum(one < 1.5 for one in loops), sum(one >= 2 for one in loops)
    print(f"{len(loops)} layers: {few} expect fewer than 1.5 loops, {many} two or more, "
          f"{max(loops):.2f} at most")  # fmt: skip


def best(cells: dict[float, dict[int, float]]) -> float:
    """The rate with the lowest mean, the lower one of two that are equal."""
    return min(sorted(cells), key=lambda rate: fmean(cells[rate].values()))


def score(run: TrainedRun) -> float:
    return fmean(run.scores[name] for name in MIX)


def looped(folders: Sequence[str]) -> list[TrainedRun]:
    """The runs with loops. Raises UserError where there is none."""
    runs = [run for run in read_runs(folders) if run.expected_loops is not None]
    if not runs:
        raise UserError(f"no run in {' '.join(folders)} has loops; leave out --loops")
    return runs


def grid_of(runs: Iterable[TrainedRun], values: Iterable[float]) -> Grid:
    grid: Grid = defaultdict(lambda: defaultdict(dict))
    for run, value in zip(runs, values, strict=True):
        grid[without_rate(run.settings.run.recipe)][run.settings.optim.lr][run.seed] = value
    return grid


def loops_by_layer(run: TrainedRun, step: int | None = None) -> list[float]:
    """The loops that the router expects in each looped layer, after a step or the last."""
    rows = [row for row in read_csv(run.folder / "routing.csv") if row["expected_loops"]]
    at = str(step) if step else max((row["step"] for row in rows), key=int)
    check_known("read-out after step", [at], [row["step"] for row in rows])
    return [float(row["expected_loops"]) for row in rows if row["step"] == at]


def trials(folders: Sequence[str]) -> Grid:
    grid: Grid = defaultdict(dict)
    for row in (row for folder in folders for row in read_csv(STUDY / folder / "chosen.csv")):
        arm = without_rate(row["configuration"])
        grid[arm][float(row["lr"])] = {0: float(row["bits_per_byte"])}
    return grid


def without_rate(configuration: str) -> str:
    """Its name without rates; kinds of parameters are named whose own scale is not one."""
    name = re.sub(r"-lr_[\d.]+|-lr_scale_[a-z]+_1(?=-|$)", "", configuration)
    return re.sub(r"-lr_scale_([a-z]+)_[\d.]+", r", \1 held", name)


if __name__ == "__main__":
    run_script(main)
