"""`dualpath sweep`: the plan, checked before anything is written, and the runs."""

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import write_text
from dualpath_cli.base.folders import check_inside
from dualpath_cli.base.locks import exclusive
from dualpath_cli.base.output import amount
from dualpath_cli.compare.configurations import FAMILIES, siblings_of
from dualpath_cli.compare.finished import read_finished_runs
from dualpath_cli.compare.runs import decisive_values
from dualpath_cli.compare.sweep.cells import SweepCell, solve_cells
from dualpath_cli.compare.sweep.costs import (
    costs_of,
    measured_speeds,
    plan_table,
    records_of,
)
from dualpath_cli.compare.sweep.plan import RATE, plan_runs, shapes_of
from dualpath_cli.compare.sweep.request import (
    LOCK,
    SWEEP,
    Design,
    Sweep,
    read_request,
)
from dualpath_cli.compare.sweep.runner import (
    check_array,
    check_sharing,
    parallel_jobs,
    run_all,
    write_array,
)
from dualpath_cli.compare.sweep.runs import PlannedRun, write_recipes
from dualpath_cli.compare.tried_rates import edge_of, without_diverged_rates
from dualpath_cli.flops.widths import TOLERANCE
from dualpath_cli.recipe.keys import SCALED_RATES
from dualpath_cli.recipe.recipes import Recipe, dump, merge
from dualpath_cli.recipe.settings import Settings, settings_from
from dualpath_cli.report.console import plain_console, print_line
from dualpath_cli.report.table import format_csv, show
from dualpath_cli.run.run_folder import (
    RECIPE,
    check_same_recipe,
    facts_now,
    read_recipe,
)
from dualpath_cli.spec.own_checks import check_as_begun, import_classes, option_of
from dualpath_cli.training.checks import unused_rows
from dualpath_cli.training.launch import to_train


def sweep(options: Sweep, recipe: Recipe) -> str:
    """Plans a sweep, and runs it with --yes; returns what comes next.

    Raises RunFailed at the end, if runs failed, and Stopped after a signal.
    """
    design = read_request(options, recipe)
    # A sweep that is refused leaves no new folders.
    new = [path for path in (design.out, *design.out.parents) if not path.exists()]
    try:
        with exclusive(design.out / LOCK, design.out):
            return _plan_and_run(design, plain_console(goes_on=options.yes))
    except UserError:
        with suppress(OSError):  # the first folder with a file in it ends this
            for folder in new:
                folder.rmdir()
        raise


def _plan_and_run(design: Design, console: Console) -> str:
    options = design.options
    shared = shared_settings(design)
    cells, notes = solve_cells(design.grid, shared.model, shapes_of(design))
    runs = plan_runs(cells, design, shared)
    firsts = _first_of_each_configuration(runs)
    notes += _notes_on_experts(firsts)

    # Nothing is written before all checks.
    check_different(firsts)
    if options.slurm:
        check_array(runs[0])
    else:
        check_sharing(runs[0], options.jobs)
    check_begun(runs)
    check_links(design, runs)
    notes += check_settings(firsts)

    _write_request(design, cells, notes)
    write_recipes(runs)
    for note in notes:
        print_line(console, f"note: {note}")
    _show_plan(design, runs, console)

    comparison = _comparison(design, firsts)
    if options.slurm:
        return _write_slurm_array(design, runs, comparison)
    if not options.yes:
        return f"{design.out} is planned; --yes starts it"

    run_all(runs, options.jobs, console)
    for edge in _best_rates_at_edges(runs, design.out):
        print_line(console, f"note: {edge}")
    return f"next: {comparison}"


def shared_settings(design: Design) -> Settings:
    """The settings that all runs have; block and widths in them mean nothing."""
    any_block = {"block": "wide", "n_experts": 0, "d_ffn": 64, "d_ffn_wide": 64}
    shared = settings_from(merge(design.recipe, {"model": any_block}))
    if shared.run.branch_from is not None:
        raise UserError(
            "the recipe has run.branch_from, but a sweep trains each configuration "
            "from the start; leave it out (--config, repeated, can set it to null)"
        )

    # uses all of the recipe's classes
    looped = replace(shared.model, block="dual", loops=2)
    import_classes(looped, allowed=True)
    return shared


def _first_of_each_configuration(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    found: dict[str, PlannedRun] = {}
    for run in runs:
        found.setdefault(run.configuration, run)
    return list(found.values())


def _notes_on_experts(firsts: Sequence[PlannedRun]) -> list[str]:
    return [
        f"{run.configuration} spends {run.cell.spent:.4f} of the budget: no experts "
        "come nearer"
        for run in firsts
        if run.settings.model.has_experts and abs(run.cell.spent - 1) > TOLERANCE
    ]


def _comparison(design: Design, firsts: Sequence[PlannedRun]) -> str:
    """The command that compares the finished runs."""
    command = shlex.join(["dualpath", "compare", str(design.out)])
    only_the_rate_varies = SCALED_RATES.intersection(design.varied) == {RATE}
    if only_the_rate_varies and len(design.varied[RATE]) > 2:
        command += " --best lr"
    return command + max(option_of(run.settings.model) for run in firsts)


def check_different(firsts: Sequence[PlannedRun]) -> None:
    """Refuses two configurations that would be trained with the same numbers."""
    seen: dict[str, str] = {}
    for run in firsts:
        numbers = json.dumps(decisive_values(run.settings))
        other = seen.setdefault(numbers, run.configuration)
        if other != run.configuration:
            raise UserError(
                f"{other} and {run.configuration} would be the same run twice; leave "
                "one of the values out"
            )


def check_begun(runs: Sequence[PlannedRun]) -> None:
    """Refuses runs that were begun with other settings, or another source of a
    class."""
    for run in runs:
        if not (run.folder / RECIPE).is_file():
            continue

        begun = read_recipe(run.folder)
        now = run.settings.as_recipe()
        another = "give this sweep another --out"
        way_out = f"{another}, or the options that it began with"
        check_same_recipe(run.folder, begun, now, way_out=way_out)

        model = run.settings.model
        if option_of(model):
            check_as_begun(run.folder, facts_now(run.folder), model, another)


def check_links(design: Design, runs: Sequence[PlannedRun]) -> None:
    """Refuses links to folders outside of --out, where recipes, logs or runs would be
    written."""
    way_out = "remove the link, or give this sweep another --out"
    for run in runs:
        written = [run.path.parent, run.log.parent]
        if not run.is_finished:
            written.append(run.folder)
        for folder in written:
            check_inside(design.out, folder, way_out)


def check_settings(firsts: Sequence[PlannedRun]) -> list[str]:
    """Checks a run of each configuration as `fit` would; those that have begun were
    checked.

    Returns notes on the data that all share.
    """
    notes: list[str] = []
    for run in firsts:
        if (run.folder / RECIPE).is_file():
            continue

        try:
            launch = to_train(run.settings)
            if note := unused_rows(run.settings, launch.manifest):
                notes.append(note)
            if run.settings.trainer.names_classes:
                # Imports Lightning, some ten seconds, which only a sweep with such
                # classes pays.
                from dualpath_cli.training.classes import check_classes

                check_classes(run.settings)
        except UserError as error:
            name = f"{run.configuration}: " if run.varied else ""
            raise UserError(f"{name}{error}") from None
    return list(dict.fromkeys(notes))


def _write_request(
    design: Design, cells: Sequence[SweepCell], notes: Sequence[str]
) -> None:
    """Writes sweep.yaml: the command, and its cells."""
    content = {
        "command": shlex.join(["dualpath", *sys.argv[1:]]),
        "cells": [
            {
                "name": cell.title,
                "family": cell.family,
                "budget": cell.budget,
                "match": cell.match,
                "alpha": cell.alpha,
                "spent": round(cell.spent, 6),
                "model": cell.model,
            }
            for cell in cells
        ],
        "notes": list(notes),
    }
    write_text(design.out / SWEEP, dump(content))


def _show_plan(design: Design, runs: Sequence[PlannedRun], console: Console) -> None:
    """Writes plan.csv, and prints its table."""
    tflops = design.options.tflops
    if tflops is None:
        speeds = measured_speeds(runs)
    else:
        speeds = dict.fromkeys(FAMILIES, tflops * 1e12)

    rows = costs_of(runs, speeds)
    write_text(design.out / "plan.csv", format_csv(records_of(rows)))
    show(console, plan_table(rows, parallel_jobs(runs[0], design.options.jobs)))


def _write_slurm_array(
    design: Design, runs: Sequence[PlannedRun], comparison: str
) -> str:
    """Writes the array of unfinished runs; returns what to do with it."""
    left = [run for run in runs if not run.is_finished]
    if not left:
        return f"all runs are finished; next: {comparison}"
    script = write_array(left, design.options.jobs, design.out)
    submission = shlex.join(["sbatch", str(script)])
    unfinished = amount("runs", len(left))
    return f"{unfinished}: {submission}; when they are finished, {comparison}"


def _best_rates_at_edges(runs: Sequence[PlannedRun], out: Path) -> Iterator[str]:
    """A line for each configuration whose best learning rate is the lowest or highest,
    over these runs and those of earlier commands in `out`."""
    if RATE not in runs[0].varied:
        return

    in_order = [*(str(run.folder) for run in runs), str(out)]
    # of runs that compare will refuse, or that also differ in another rate
    with suppress(UserError):
        trained, _ = read_finished_runs(in_order, own_classes=True)
        for siblings in siblings_of(trained, best=True):
            if edge := edge_of(without_diverged_rates(siblings.runs)):
                yield f"{siblings.runs[0].settings.run.recipe} is {edge}"
