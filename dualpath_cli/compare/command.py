"""`dualpath compare`: runs are read and grouped, then shown and written in every
form."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import claimed, folder_of, inside, read_text, write_texts
from dualpath_cli.base.ranges import Place
from dualpath_cli.compare.groups import Group, groups_of
from dualpath_cli.compare.runs import (
    TrainedRun,
    check_same_data,
    find_folders,
    read_run,
)
from dualpath_cli.compare.sweep.runner import last_words
from dualpath_cli.compare.sweep.runs import planned_in
from dualpath_cli.compare.tables import Difference, differences_of
from dualpath_cli.report.table import format_csv
from dualpath_cli.run.run_folder import RECIPE, WENT_WRONG
from dualpath_cli.spec.own_checks import OwnClasses, import_classes


@dataclass(frozen=True)
class Compare(OwnClasses):
    """Reads finished runs and compares configurations of one budget: bits per byte with
    paired tests over seeds, parameters, FLOPs, time. Runs that differ in their seed
    alone are one configuration. It reads files only."""

    runs: tuple[Place, ...] = field(default=(), metadata={"positional": True})
    """Run folders, or a folder of runs: of `dualpath sweep`, or the folder runs or
    runs/RECIPE of fit."""
    best: Literal["lr"] | None = None
    """Join runs that differ in their learning rate, at the lowest point of a parabola
    over its log; intervals count that choice. The aggregate alone is tested."""
    out: Place | None = None
    """Folder for tables, figures and the page; by default `comparison` in the folder of
    runs, or here for several RUNs."""
    baseline: tuple[str, ...] = ()
    """Test all others against these, separated by commas: names of configurations, or a
    value in which runs differ, such as two_gates or loops=2; by default against the
    PureWide of each budget."""
    pairs: tuple[str, ...] = ()
    """Test the pairs A:B,C:D,... of configurations of one table and nothing else: on
    the aggregate, in this order, each at 5 % and only while every pair before it
    differed."""
    margin: float | None = None
    """The smallest difference that matters, in bits per byte: adds 90 % intervals, and
    the verdict `no difference that matters` for one within it."""
    any_length: bool = False
    """Put all runs of a budget into one table, to compare at equal time; without this
    option each number of training tokens has its own table."""
    aggregate_only: bool = False
    """Test the mean of the validation sets alone and not each set, so that fewer tests
    are corrected for; choose this before you see the numbers."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise UserError("compare needs a RUN or a folder of runs")
        for number, run in enumerate(self.runs):
            if Path(run).resolve() in [
                Path(other).resolve() for other in self.runs[:number]
            ]:
                raise UserError(
                    f"RUN '{run}' is given twice; a run is compared with others"
                )
        if self.pairs and self.baseline:
            raise UserError(
                "--pairs says which configurations are tested; leave --baseline out"
            )
        if self.margin is not None and not 0 < self.margin < math.inf:
            raise UserError(
                f"--margin must be bits per byte above 0, not {self.margin:g}"
            )


def run(options: Compare) -> str:
    """Compares, and returns the paths of the files, as text."""
    baselines, pairs = _names("--baseline", options.baseline), _pairs(options.pairs)
    runs, left_out = _read(options)
    folder = Path(options.runs[0])
    if len(options.runs) > 1 or (folder / RECIPE).is_file():
        folder = Path()
    out: str | Path | None = options.out
    if out is None:
        way_out = "remove the link, or give a folder by --out"
        out = inside(folder, folder / "comparison", way_out)
    out = folder_of("--out", out)
    groups = groups_of(
        runs, baselines, options.any_length, options.best is not None, pairs
    )
    left_out += [
        f"'{c.name}' is not tested: {c.edge}"
        for g in groups
        for c in g.configurations
        if c.edge
    ]
    rows = differences_of(
        groups, aggregate_only=options.aggregate_only, margin=options.margin
    )
    with claimed(out):
        return "\n".join(map(str, _answer(groups, rows, left_out, out)))


def _names(option: str, given: Sequence[str]) -> list[str]:
    names = [name.strip() for text in given for name in text.split(",")]
    if not all(names):
        raise UserError(
            f"{option} needs names separated by commas, not '{', '.join(given)}'"
        )
    return names


def _pairs(given: Sequence[str]) -> list[list[str]]:
    pairs = [
        [name.strip() for name in pair.split(":")] for pair in _names("--pairs", given)
    ]
    for pair in pairs:
        if len(pair) != 2 or pair[0] == pair[1]:
            raise UserError(
                "--pairs needs two configurations a pair, as A:B,C:D, not "
                f"'{':'.join(pair)}'"
            )
    return pairs


def _read(options: Compare) -> tuple[list[TrainedRun], list[str]]:
    """The finished runs, and a line for each of the others, also of those that are only
    planned."""
    planned = [files for path in options.runs for files in _planned(Path(path))]
    log_of = {folder.resolve(): log for folder, _, log in planned}

    runs, left_out = [], []
    for folder in find_folders(options.runs):
        run = read_run(folder)
        if isinstance(run, str):
            how = _how_ended(folder, log_of.get(folder.resolve()))
            left_out.append(f"{folder}: left out, unfinished at {run}{how}")
        else:
            runs.append(run)
            left_out += run.lost
    left_out += [
        f"{folder}: left out, planned by {recipe} and not "
        f"begun{_how_ended(folder, log)}"
        for folder, recipe, log in planned
        if not (folder / RECIPE).is_file()
    ]
    left_out += _incomplete(
        [folder for folder, _, _ in planned], [run.folder for run in runs]
    )
    if not runs:
        raise UserError(f"no run has finished: {left_out[0]}; let fit end one first")
    check_same_data(runs)
    read = [*map(Path, options.runs), *(run.folder for run in runs)]
    for run in runs:
        import_classes(run.settings.model, allowed=options.own_classes, read=read)
    return runs, left_out


def _planned(path: Path) -> list[tuple[Path, Path, Path]]:
    """Folder, recipe and log of each run that a sweep in a folder has planned.

    Raises UserError if none of them has begun.
    """
    planned = list(planned_in(path))
    if planned and not any((folder / RECIPE).is_file() for folder, _, _ in planned):
        raise UserError(
            f"no run of the sweep '{path}' has begun, {len(planned)} are planned; "
            "dualpath sweep with the same words and --yes trains them"
        )
    return planned


def _how_ended(folder: Path, log: Path | None) -> str:
    """The end of the line of a run that has not finished: the failure, if there was
    one."""
    wrong = folder / WENT_WRONG
    if wrong.is_file():
        return f", its numbers went wrong: {read_text(wrong).strip()}"
    said = last_words(log) if log is not None and log.is_file() else ""
    begin = "dualpath fit: "  # of the last line of a command that failed or was stopped
    return f", {said.removeprefix(begin)}" if said.startswith(begin) else ""


def _incomplete(planned: Sequence[Path], finished: Sequence[Path]) -> list[str]:
    """A line on the configurations of a sweep that lack seeds; none if all runs have
    finished."""
    there = {folder.resolve() for folder in finished}
    seeds: dict[str, list[bool]] = {}
    for folder in planned:
        seeds.setdefault(folder.parent.name, []).append(folder.resolve() in there)

    fewer = [
        f"{name} {sum(done)} of {len(done)}"
        for name, done in seeds.items()
        if not all(done)
    ]
    if not fewer:
        return []
    done = sum(map(sum, seeds.values()))
    return [
        f"{done} of {len(planned)} planned runs have finished; {len(fewer)} of "
        f"{len(seeds)} configurations lack seeds: {', '.join(fewer)}"
    ]


def _answer(
    groups: Sequence[Group],
    rows: Sequence[Difference],
    left_out: Sequence[str],
    out: Path,
) -> list[Path]:
    """Prints the tables, with a line for each run that is left out; writes the
    files."""
    from dualpath_cli.compare import figures, studies, tables
    from dualpath_cli.report import page
    from dualpath_cli.report.console import plain_console
    from dualpath_cli.report.figures import save
    from dualpath_cli.report.table import markdown, show

    ablations, classes, damaged = studies.ablations_of(groups)
    evaluations, unread = studies.evaluations_of(groups)
    console = plain_console()
    for line in (left_out := [*left_out, *damaged, *unread]):
        console.print(line, highlight=False, soft_wrap=True)
    made = sum(row.tested for row in rows)
    joined = [studies.table_of_classes(classes)] if classes else []
    scored = [
        [row for row in evaluations if row["group"] == group.name] for group in groups
    ]
    joined += [studies.table_of_scores(of_group) for of_group in scored if of_group]
    for group in groups:
        own = [
            row
            for row in rows
            if (row.group, row.measure) == (group.name, group.measures[0])
        ]
        for table in [
            *tables.group_tables(group, errors=False),
            *tables.tables_of_tests(own, made),
        ]:
            show(console, table)
    for table in joined:
        show(console, table)
    main = [table for group in groups for table in tables.group_tables(group)]
    first = [
        t for group in groups for t in tables.group_tables(group, result_first=True)
    ]
    tests = tables.tables_of_tests(rows, made)
    runs = tables.records_of_runs(groups)
    drawn = figures.draw(groups)
    texts = {
        "table.csv": format_csv(*tables.records_of_groups(groups)),
        "table.md": "\n".join(map(markdown, main)),
        "tests.md": "\n".join(map(markdown, tests)),
        "tests.csv": format_csv(tables.records_of_tests(rows)) if rows else "",
        "runs.csv": format_csv(runs),
        "ablations.csv": format_csv(ablations) if ablations else "",
        "ablation_classes.csv": format_csv(classes) if classes else "",
        "evaluations.csv": format_csv(evaluations) if evaluations else "",
        "index.html": page.page(
            "Comparison of runs",
            [
                page.lead(
                    f"Bits per byte of {len({row['run'] for row in runs}):,} runs on "
                    "validation text, lower is better: means over seeds beside the "
                    "costs of each model, "
                    f"{'tests of the differences, ' if made else ''}and training "
                    "curves."
                ),
                page.terms([("note", line) for line in left_out]),
                page.tables([*first, *tests, *joined]),
                page.pictures(drawn, figures.captions(groups)),
            ],
        ),
    }
    for name in [name for name, text in texts.items() if not text]:
        del texts[name]
        (out / name).unlink(missing_ok=True)  # of an earlier comparison
    written = write_texts(out, texts)
    return [*written, *save(out, drawn)]
