"""`dualpath compare`: its options, and the way from runs to tables, figures and a
page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import folder_of
from dualpath_cli.base.folders import claimed_folder, folder_inside
from dualpath_cli.base.ranges import Place
from dualpath_cli.compare.baselines import groups_of
from dualpath_cli.compare.configurations import Configuration
from dualpath_cli.compare.differences import differences_of
from dualpath_cli.compare.finished import read_finished_runs
from dualpath_cli.compare.fits.report import ScalingLaws
from dualpath_cli.compare.tried_rates import rates_text
from dualpath_cli.run.run_folder import RECIPE
from dualpath_cli.spec.own_checks import OwnClasses


@dataclass(frozen=True)
class Compare(OwnClasses):
    """Reads finished runs and compares configurations of one budget: bits per byte with
    paired tests over seeds, parameters, FLOPs, time. Runs that differ only in their
    seed are one configuration. No model is run.

      dualpath compare runs/quickstart
    """

    runs: tuple[Place, ...] = field(default=(), metadata={"positional": True})
    """Run folders, or a folder of runs: a sweep's OUT, or runs or runs/RECIPE, which
    `dualpath fit` writes."""
    best: Literal["lr"] | None = None
    """Join runs that differ only in learning rate (and seed), and score them at the
    minimum of a parabola over the log of the rate. Intervals include the uncertainty of
    that choice. Only the aggregate is tested."""
    fit: Literal["all", "non_embedding"] | None = None
    """Fit a scaling law to each family of configurations that differ in size, tokens
    and loops: over all parameters, or those without embedding and head."""
    out: Place | None = None
    """Folder for tables, figures and the page; by default `comparison` in the folder of
    runs, or in the current folder for several RUNs."""
    baseline: tuple[str, ...] = ()
    """Test all others against these, separated by commas: names of configurations, or a
    value in which runs differ, such as two_gates or loops=2; by default against the
    PureWide of each budget."""
    pairs: tuple[str, ...] = ()
    """Test only the pairs A:B,C:D,... of configurations of one table: on the aggregate,
    in this order, each at 5 %, and only if every pair before it differed."""
    margin: float | None = None
    """The smallest difference that matters, in bits per byte: adds 90 % intervals, and
    the verdict `no difference that matters` where the interval lies within it."""
    any_length: bool = False
    """Put all runs of a budget into one table, to compare at equal time; without this
    option each number of training tokens has its own table."""
    aggregate_only: bool = False
    """Test only the mean of the validation sets, not each set, so that fewer tests
    are corrected for; choose this before you see the numbers."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise UserError("compare needs a RUN or a folder of runs")
        self._check_each_run_once()

        if self.pairs and self.baseline:
            raise UserError(
                "--pairs says which configurations are tested; leave --baseline out"
            )
        if self.margin is not None and not 0 < self.margin < math.inf:
            raise UserError(
                f"--margin must be bits per byte above 0, not {self.margin:g}"
            )

    def _check_each_run_once(self) -> None:
        seen = set()
        for run in self.runs:
            folder = Path(run).resolve()
            if folder in seen:
                raise UserError(f"RUN '{run}' is given twice; leave one of the two out")
            seen.add(folder)


def compare(options: Compare) -> str:
    """Prints the comparison, and returns the paths of its files, as text."""
    baselines = _names("--baseline", options.baseline)
    pairs = _pairs(options.pairs)
    runs, left_out = read_finished_runs(options.runs, options.own_classes)
    out = _out(options)

    best = options.best is not None
    groups = groups_of(runs, baselines, options.any_length, best, pairs)
    for group in groups:
        for c in group.configurations:
            left_out += _left_out_of(c)
    differences = differences_of(
        groups, aggregate_only=options.aggregate_only, margin=options.margin
    )

    laws = ScalingLaws.of(groups, options.fit) if options.fit else None

    with claimed_folder(out):
        # Imports matplotlib, which no mistake waits for.
        from dualpath_cli.compare.results import (
            Comparison,
            print_comparison,
            write_comparison,
        )

        comparison = Comparison.with_studies(groups, differences, left_out, laws)
        print_comparison(comparison)
        written = write_comparison(comparison, out)
    return "\n".join(map(str, written))


def _left_out_of(c: Configuration) -> list[str]:
    """Lines on the learning rates, seeds and tests that a configuration goes
    without."""
    lines = []
    if c.diverged:
        lines.append(
            f"'{c.name}' goes without learning rates at which runs went wrong: "
            f"{rates_text(c.diverged)}"
        )
    without = sorted({run.seed for run in c.all_runs} - set(c.seeds))
    if without:
        seeds = ", ".join(map(str, without))
        lines.append(f"'{c.name}' goes without seeds that lack a rate: {seeds}")
    if c.edge:
        lines.append(f"'{c.name}' is not tested: {c.edge}")
    return lines


def _names(option: str, texts: Sequence[str]) -> list[str]:
    names = [name.strip() for text in texts for name in text.split(",")]
    if not all(names):
        raise UserError(
            f"{option} needs names separated by commas, not '{', '.join(texts)}'"
        )
    return names


def _pairs(texts: Sequence[str]) -> list[list[str]]:
    pairs = []
    for text in _names("--pairs", texts):
        pair = [name.strip() for name in text.split(":")]
        if len(pair) != 2 or pair[0] == pair[1]:
            raise UserError(
                "--pairs needs two configurations a pair, as A:B,C:D, not "
                f"'{':'.join(pair)}'"
            )
        pairs.append(pair)
    return pairs


def _out(options: Compare) -> Path:
    """The folder for files: by default in the folder of runs, or here for several
    RUNs."""
    if options.out is not None:
        return folder_of("--out", options.out)

    folder = Path(options.runs[0])
    if len(options.runs) > 1 or (folder / RECIPE).is_file():
        folder = Path()
    return folder_of("--out", folder_inside(folder, "comparison"))
