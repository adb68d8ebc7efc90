"""`dualpath compare`: runs are read and grouped, then shown and written in every form."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import Place
from dualpath_cli.base.system import claimed, format_csv, write_texts
from dualpath_cli.compare.groups import Group, groups_of
from dualpath_cli.compare.runs import TrainedRun, check_same_data, find_folders, read_run
from dualpath_cli.compare.tables import Difference, differences_of
from dualpath_cli.recipe.options import Average, OwnClasses, folder_of
from dualpath_cli.run.run_folder import RECIPE
from dualpath_cli.spec.own_checks import import_classes


@dataclass(frozen=True)
class Compare(OwnClasses, Average):
    """Reads finished runs, sorts them into configurations that differ in more than their seed, and
    compares those of one budget: bits per byte with paired tests over seeds, parameters, FLOPs,
    time. It reads files only."""

    runs: tuple[Place, ...] = field(default=(), metadata={"positional": True})
    """Run folders, or a folder of runs: of `dualpath sweep`, or DIR/RECIPE/NAME as fit has it."""
    by: tuple[str, ...] = ()
    """Keys of recipes, separated by commas, such as model.loops or run.recipe: runs that have the
    same there are one configuration; by default runs that differ in nothing but their seed."""
    best: Literal["lr"] | None = None
    """Join runs that differ in their learning rate, at the lowest point of a parabola over its log;
    intervals count that choice. The aggregate alone is tested."""
    average: int = 1
    """Compare the mean of the weights of each run's last N checkpoints, as validate --average N
    has scored it."""
    out: Place | None = None
    """Folder for tables, figures and the page; by default `comparison` in the folder of runs, or
    here for several RUNs."""
    baseline: tuple[str, ...] = ()
    """Configurations that the others are tested against, also separated by commas; by default the
    PureWide of each budget."""
    pairs: tuple[str, ...] = ()
    """Test the pairs A:B,C:D,... of configurations of one table and nothing else: on the aggregate,
    in this order, each at 5 % and only while every pair before it differed."""
    margin: float | None = None
    """The smallest difference that matters, in bits per byte: adds 90 % intervals, and the verdict
    `no difference that matters` for one within it."""
    any_length: bool = False
    """One table for each budget, whatever the number of training tokens: to compare at equal time.
    Without it each number of tokens has a table."""
    aggregate_only: bool = False
    """Test the mean of the validation sets alone, not each set, which leaves fewer tests to correct
    for: to be chosen before the numbers are seen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.runs:
            raise UserError("compare needs a RUN or a folder of runs")
        if self.pairs and self.baseline:
            raise UserError("--pairs says which configurations are tested; leave --baseline out")
        if self.margin is not None and not 0 < self.margin < math.inf:
            raise UserError(f"--margin must be bits per byte above 0, not {self.margin:g}")


def run(options: Compare) -> str:
    """Compares, and returns where that is written, as text."""
    baselines, pairs = _names("--baseline", options.baseline), _pairs(options.pairs)
    by = _names("--by", options.by)
    runs, left_out = _read(options)
    out = _out(options)
    groups = groups_of(runs, baselines, options.any_length, by, options.best is not None, pairs)
    left_out += [c.edge for group in groups for c in group.configurations if c.edge]
    if options.average > 1:
        named = f"average of {options.average} checkpoints"
        groups = [replace(group, name=f"{group.name}, {named}") for group in groups]
    rows = differences_of(groups, aggregate_only=options.aggregate_only, margin=options.margin)
    with claimed(out):
        return "\n".join(map(str, _answer(groups, rows, left_out, out)))


def _names(option: str, given: Sequence[str]) -> list[str]:
    names = [name.strip() for text in given for name in text.split(",")]
    if not all(names):
        raise UserError(f"{option} needs names separated by commas, not '{', '.join(given)}'")
    return names


def _pairs(given: Sequence[str]) -> list[tuple[str, str]]:
    """A pair whose names have a colon themselves cannot be told apart, and is refused."""
    found = []
    for pair in _names("--pairs", given):
        one, *others = (name.strip() for name in pair.split(":"))
        if len(others) != 1 or others[0] == one:
            raise UserError(f"--pairs needs two configurations a pair, as A:B,C:D, not '{pair}'")
        found.append((one, others[0]))
    return found


def _read(options: Compare) -> tuple[list[TrainedRun], list[str]]:
    """The finished runs, and a line for each of the others."""
    runs, left_out, paths = [], [], options.runs
    for folder in find_folders(paths):
        run = read_run(folder, options.average)
        if isinstance(run, str):
            left_out.append(f"{folder}: left out, unfinished at {run}")
        else:
            runs.append(run)
    if not runs:
        raise UserError(f"no run has finished: {left_out[0]}; let fit end one first")
    check_same_data(runs)
    read = [*map(Path, paths), *(run.folder for run in runs)]
    for run in runs:
        import_classes(run.settings.model, allowed=options.own_classes, read=read)
    return runs, left_out


def _out(options: Compare) -> Path:
    folder = Path()
    if len(options.runs) == 1 and not (Path(options.runs[0]) / RECIPE).is_file():
        folder = Path(options.runs[0])
    return folder_of("--out", folder / "comparison" if options.out is None else options.out)


def _answer(
    groups: Sequence[Group], rows: Sequence[Difference], left_out: Sequence[str], out: Path
) -> list[Path]:
    """Prints tables and writes all files, with a line for all that is left out; returns paths."""
    from dualpath_cli.compare import figures, tables
    from dualpath_cli.compare.studies import ablations_of, routings_of, table_of_classes
    from dualpath_cli.report import page
    from dualpath_cli.report.console import plain_console
    from dualpath_cli.report.figures import save
    from dualpath_cli.report.table import markdown, show

    ablations, classes, damaged = ablations_of(groups)
    routings, more = routings_of(groups)
    console = plain_console()
    for line in (left_out := [*left_out, *damaged, *more]):
        console.print(line, highlight=False, soft_wrap=True)
    made = sum(row.tested for row in rows)
    for group in groups:
        for table in tables.group_tables(group, errors=False):
            show(console, table)
        own = group.name, group.measures[0]
        aggregates = [row for row in rows if (row.group, row.measure) == own]
        for table in tables.tables_of_tests(aggregates, made):
            show(console, table)
    forced = [table_of_classes(classes)] if classes else []
    for table in forced:
        show(console, table)
    main = [table for group in groups for table in tables.group_tables(group)]
    tests = tables.tables_of_tests(rows, made)
    runs = tables.records_of_runs(groups)
    drawn = figures.draw(groups, rows)
    count = len({row["run"] for row in runs})
    facts = [("runs", f"{count:,}"), *(("left out", line) for line in left_out)]
    texts = {
        "table.csv": format_csv(*tables.records_of_groups(groups)),
        "table.md": "\n".join(map(markdown, main)),
        "table.tex": "\n".join(map(tables.latex, main)),
        "tests.md": "\n".join(map(markdown, tests)),
        "tests.tex": "\n".join(map(tables.latex, tests)),
        "tests.csv": format_csv(tables.records_of_tests(rows)) if rows else "",
        "runs.csv": format_csv(runs),
        "ablations.csv": format_csv(ablations) if ablations else "",
        "ablation_classes.csv": format_csv(classes) if classes else "",
        "routings.csv": format_csv(routings) if routings else "",
    }
    pictures = page.pictures(drawn, figures.CAPTIONS)
    sections = [page.terms(facts), page.tables(main), pictures, page.tables([*tests, *forced])]
    texts["index.html"] = page.page("Comparison of runs", sections)
    for name in [name for name, text in texts.items() if not text]:
        del texts[name]
        (out / name).unlink(missing_ok=True)  # of an earlier comparison
    written = write_texts(out, texts)
    return [*written, *save(out, drawn)]
