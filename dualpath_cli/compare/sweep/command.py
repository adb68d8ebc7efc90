"""`dualpath sweep`: the plan, checked before anything is written, and the runs."""

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from rich.console import Console

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import inside, write_text
from dualpath_cli.base.locks import alone
from dualpath_cli.compare.groups import FAMILIES, edge_of, first_of, frames_of
from dualpath_cli.compare.runs import TrainedRun, read_run
from dualpath_cli.compare.sweep import request, runner
from dualpath_cli.compare.sweep import runs as sweep_runs
from dualpath_cli.compare.sweep.cells import Cell, solve
from dualpath_cli.compare.sweep.request import Design, Sweep
from dualpath_cli.compare.sweep.runner import run_all, say
from dualpath_cli.compare.sweep.runs import RATE, PlannedRun, plan_runs, write_recipes
from dualpath_cli.flops import count
from dualpath_cli.flops.widths import TOLERANCE
from dualpath_cli.recipe.keys import SCALED_RATES
from dualpath_cli.recipe.recipes import Recipe, dump, merge
from dualpath_cli.recipe.settings import Settings, settings_from
from dualpath_cli.report.console import plain_console
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


def run(options: Sweep, recipe: Recipe) -> str:
    """Plans a sweep, and runs it with --yes; returns what comes next.

    Raises RunFailed at the end, if runs failed, and Stopped after a signal.
    """
    design = request.read(options, recipe)
    new = [path for path in (design.out, *design.out.parents) if not path.exists()]
    try:
        with alone(design.out / request.LOCK, design.out):
            return _run(design, plain_console())
    except UserError:
        with suppress(OSError):  # the first folder with a file in it ends this
            for folder in new:
                folder.rmdir()
        raise


def _run(design: Design, console: Console) -> str:
    shared, jobs = _shared(design), design.options.jobs
    cells, notes = solve(design.wanted, shared.model)
    runs = plan_runs(cells, design, shared)
    firsts = list({run.configuration: run for run in reversed(runs)}.values())[::-1]
    sparse = [run for run in firsts if count.has_experts(run.settings.model)]
    notes += [
        f"{run.configuration} spends {run.cell.spent:.4f} of the budget: no experts "
        "come nearer"
        for run in sparse
        if abs(run.cell.spent - 1) > TOLERANCE
    ]
    check_different(firsts)
    if not design.options.slurm:
        runner.check_sharing(runs[0], jobs)
    check_begun(runs)
    check_links(design, runs)
    notes += check_settings(firsts)
    _write_down(design, cells, notes)
    write_recipes(runs)
    for note in notes:
        say(console, f"note: {note}")
    _show_plan(design, runs, console)
    after = f"dualpath compare {design.out}"
    if len(design.varied.get(RATE, ())) > 2 and SCALED_RATES.intersection(
        design.varied
    ) == {RATE}:
        after += " --best lr"
    after += max(option_of(run.settings.model) for run in firsts)
    if design.options.slurm:
        return _array(design, runs, after)
    if not design.options.yes:
        return f"{design.out} is planned; --yes starts it"
    run_all(runs, jobs, console)
    for edge in _edges(runs):
        say(console, f"note: {edge}")
    return f"next: {after}"


def _shared(design: Design) -> Settings:
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


def check_different(firsts: Sequence[PlannedRun]) -> None:
    """Refuses two configurations that would be trained with the same numbers."""
    seen: dict[str, str] = {}
    for run in firsts:
        trainer = run.settings.trainer
        numbers = json.dumps([run.decisive(), trainer.callbacks, trainer.plugins])
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
        if (run.folder / RECIPE).is_file():
            way_out, settings = "give this sweep another --out", run.settings
            words = f"{way_out}, or the words that it was begun with"
            begun = read_recipe(run.folder)
            check_same_recipe(run.folder, begun, settings.as_recipe(), way_out=words)
            if option_of(settings.model):
                check_as_begun(
                    run.folder, facts_now(run.folder), settings.model, way_out
                )


def check_links(design: Design, runs: Sequence[PlannedRun]) -> None:
    """Refuses links to folders outside of --out, where recipes, logs or runs would be
    written."""
    way_out = "remove the link, or give this sweep another --out"
    for run in runs:
        written = [run.path.parent, run.log.parent]
        written += [] if run.is_finished else [run.folder]
        for folder in written:
            inside(design.out, folder, way_out)


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
            notes += filter(None, [unused_rows(run.settings, launch.manifest)])
            if run.settings.trainer.names_classes:
                # Imports Lightning, some ten seconds, which only a sweep with such
                # classes pays.
                from dualpath_cli.training.classes import check_classes

                check_classes(run.settings)
        except UserError as error:
            name = f"{run.configuration}: " if run.varied else ""
            raise UserError(f"{name}{error}") from None
    return list(dict.fromkeys(notes))


def _write_down(design: Design, cells: Sequence[Cell], notes: Sequence[str]) -> None:
    """Writes sweep.yaml: the command, and its cells."""
    content = {
        "command": shlex.join(["dualpath", *sys.argv[1:]]),
        "cells": [
            {
                "name": cell.name,
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
    write_text(design.out / request.SWEEP, dump(content))


def _show_plan(design: Design, runs: Sequence[PlannedRun], console: Console) -> None:
    given = design.options.tflops
    speeds = (
        sweep_runs.measured(runs)
        if given is None
        else dict.fromkeys(FAMILIES, given * 1e12)
    )
    rows = sweep_runs.costs(runs, speeds)
    write_text(design.out / "plan.csv", format_csv([asdict(row) for row in rows]))
    show(
        console,
        sweep_runs.plan_table(rows, runner.side_by_side(runs[0], design.options.jobs)),
    )


def _array(design: Design, runs: Sequence[PlannedRun], after: str) -> str:
    """Writes the array of unfinished runs; returns what to do with it."""
    left = [run for run in runs if not run.is_finished]
    if not left:
        return f"all runs are finished; next: {after}"
    script = runner.write_array(left, design.options.jobs, design.out)
    return f"{len(left)} runs: sbatch {script}; when they are finished, {after}"


def _edges(runs: Sequence[PlannedRun]) -> Iterator[str]:
    """A line for each configuration whose best learning rate is the lowest or
    highest."""
    trained = []
    for run in runs if RATE in runs[0].varied else ():
        with suppress(UserError):  # of a folder that compare will refuse
            found = read_run(run.folder)
            trained += [found] if isinstance(found, TrainedRun) else []
    with suppress(UserError):  # of runs that also differ in another rate
        for frames in frames_of(trained, best=True).values():
            for frame in frames:
                if edge := edge_of(frame):
                    yield f"{first_of(frame).settings.run.recipe} is {edge}"
