"""`dualpath compare`: runs are read and grouped, then shown and written in every form."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dualpath_cli.compare import paper
from dualpath_cli.compare.configurations import Group
from dualpath_cli.compare.groups import groups_of
from dualpath_cli.compare.runs import TrainedRun, check_same_data, find_folders, is_run, read_run
from dualpath_cli.errors import UserError
from dualpath_cli.files import format_csv, write_texts
from dualpath_cli.options import folder_of
from dualpath_cli.run import average

FOLDER = "comparison"  # in a folder of runs, or here


def run(options: Namespace) -> str:
    """Compares, and returns where that is written, as text."""
    if not options.runs and not options.paper:
        raise UserError("compare needs a RUN, a folder of runs, or --paper")
    for given, problem in (
        (options.baseline, "--baseline is one of RUN's configurations"),
        (options.any_length, "--any-length joins tables of RUNs"),
        (options.aggregate_only, "--aggregate-only is about tests of RUNs"),
        (options.average, "--average is about checkpoints of RUNs"),
    ):
        if given and not options.runs:
            raise UserError(f"{problem}; give a RUN as well")
    baselines = _names(options.baseline)
    count = average.read(options.average)
    runs, left_out = _read(options.runs, count)
    out = _out(options)
    groups = groups_of(runs, baselines, options.any_length)
    if count > 1:
        named = f"average of {count} checkpoints"
        groups = [replace(group, name=f"{group.name}, {named}") for group in groups]
    groups += paper.groups() if options.paper else []
    return "\n".join(map(str, answer(groups, left_out, out, options.aggregate_only)))


def _names(given: Sequence[str]) -> list[str]:
    names = [name.strip() for text in given for name in text.split(",")]
    if not all(names):
        raise UserError(f"--baseline needs names separated by commas, not '{', '.join(given)}'")
    return names


def _read(paths: Sequence[str], count: int) -> tuple[list[TrainedRun], list[str]]:
    """The finished runs, and a line for each of the others."""
    runs, left_out = [], []
    for folder in find_folders(paths):
        run = read_run(folder, count)
        if isinstance(run, str):
            left_out.append(f"{folder}: left out, unfinished at {run}")
        else:
            runs.append(run)
    if paths and not runs:
        raise UserError(f"no run has finished: {left_out[0]}; let fit end one first")
    check_same_data(runs)
    return runs, left_out


def _out(options: Namespace) -> Path:
    if options.out is not None:
        out = options.out
    elif len(options.runs) == 1 and not is_run(Path(options.runs[0])):
        out = Path(options.runs[0]) / FOLDER
    else:
        out = Path(FOLDER)
    return folder_of("--out", out)


def answer(
    groups: Sequence[Group], left_out: Sequence[str], out: Path, aggregate_only: bool
) -> list[Path]:
    """Prints the tables and writes all files, with a line for each run left out; returns paths."""
    from dualpath_cli.compare import figures, tables
    from dualpath_cli.compare.differences import differences_of
    from dualpath_cli.output import page
    from dualpath_cli.output.console import plain_console
    from dualpath_cli.output.figures import save
    from dualpath_cli.output.table import markdown, show

    console = plain_console()
    for line in left_out:
        console.print(line, highlight=False, soft_wrap=True)
    rows = differences_of(groups, aggregate_only=aggregate_only)
    made = sum(row.tested for row in rows)
    for group in groups:
        for table in tables.group_tables(group, errors=False):
            show(console, table)
        aggregates = [
            row for row in rows if (row.group, row.measure) == (group.name, group.measures[0])
        ]
        for table in tables.tables_of_tests(aggregates, made):
            show(console, table)
    main = [table for group in groups for table in tables.group_tables(group)]
    tests = tables.tables_of_tests(rows, made)
    runs = tables.records_of_runs(groups)
    drawn = figures.draw(groups, rows)
    printed = sum(not c.runs for group in groups for c in group.configurations)
    facts = [
        *([("runs", f"{len(runs):,}")] if runs else []),
        *([("of the paper", f"{printed} configurations, as printed")] if printed else []),
        *(("left out", line) for line in left_out),
    ]
    texts = {
        "table.csv": format_csv(*tables.records_of_groups(groups)),
        "table.md": "\n".join(map(markdown, main)),
        "table.tex": "\n".join(map(tables.latex, main)),
        "tests.md": "\n".join(map(markdown, tests)),
        "tests.tex": "\n".join(map(tables.latex, tests)),
        "tests.csv": format_csv(tables.records_of_tests(rows)) if rows else "",
        "runs.csv": format_csv(runs) if runs else "",
    }
    pictures = page.pictures(drawn, figures.CAPTIONS)
    sections = [page.terms(facts), page.tables(main), pictures, page.tables(tests)]
    texts["index.html"] = page.page("Comparison of runs", sections)
    for name in (name for name, text in texts.items() if not text):  # of an earlier comparison
        (out / name).unlink(missing_ok=True)
    written = write_texts(out, {name: text for name, text in texts.items() if text})
    return [*written, *save(out, drawn)]
