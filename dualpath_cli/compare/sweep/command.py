"""`dualpath sweep`: the plan, checked before anything is written, and the runs."""

import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from rich.console import Console

from dualpath_cli.base.errors import Stopped, UserError
from dualpath_cli.base.system import alone, format_csv, write_text
from dualpath_cli.compare.runs import decisive
from dualpath_cli.compare.sweep import plan, request
from dualpath_cli.compare.sweep.cells import FAMILIES, Cell, solve
from dualpath_cli.compare.sweep.request import Design, Sweep
from dualpath_cli.compare.sweep.runner import (
    check_none,
    check_sharing,
    run_all,
    say,
    side_by_side,
    write_array,
)
from dualpath_cli.compare.sweep.runs import LENGTH, PlannedRun, plan_runs, write_recipes
from dualpath_cli.flops.widths import TOLERANCE
from dualpath_cli.recipe.recipes import Recipe, dump, merge
from dualpath_cli.recipe.schedule import stable_steps
from dualpath_cli.recipe.settings import Settings, settings_from
from dualpath_cli.report.console import plain_console
from dualpath_cli.report.table import show
from dualpath_cli.run.run_folder import RECIPE, check_same_recipe, facts_now
from dualpath_cli.spec.own_checks import check_as_begun, import_classes, option_of
from dualpath_cli.training.launch import to_train


def run(options: Sweep, recipe: Recipe) -> str:
    """Plans a sweep, asks, and runs it; returns what comes next.

    Raises RunFailed at the end, if runs failed, and Stopped where it was not wanted after all, or
    after a signal.
    """
    wanted = request.read(options, recipe)
    new = [path for path in (wanted.out, *wanted.out.parents) if not path.exists()]
    try:
        with alone(wanted.out / request.LOCK, wanted.out):
            return _run(wanted, plain_console())
    except UserError:
        with suppress(OSError):  # the first one with a file in it ends this
            for folder in new:
                folder.rmdir()
        raise


def _run(wanted: Design, console: Console) -> str:
    shared, jobs = _shared(wanted), wanted.options.jobs
    cells, notes = solve(wanted.wanted, shared.model)
    runs = plan_runs(
        cells, wanted.varied, wanted.recipe, shared, wanted.seeds, wanted.out,
        _branches(wanted, shared),
    )  # fmt: skip
    check_different(runs)
    if not wanted.options.slurm:
        check_sharing(runs[0], jobs)
    check_begun(runs)
    check_settings(runs)
    _write_down(wanted, cells, notes)
    write_recipes(runs)
    for note in notes:
        say(console, f"note: {note}")
    _show_plan(wanted, runs, console)
    if wanted.options.slurm:
        return _array(wanted, runs)
    _ask(wanted, console)
    check_none(run_all(runs, jobs, console), len(runs))
    return f"next: {_comparison(wanted, runs)}"


def _branches(wanted: Design, shared: Settings) -> bool:
    """Whether runs of several lengths are branches of the longest."""
    if LENGTH not in wanted.varied or shared.optim.schedule != "wsd":
        return False
    if "optim.schedule" in wanted.varied:
        raise UserError("--set optim.schedule does not go with --set run.max_tokens under wsd")
    if shared.optim.decay_sum is not None or "optim.decay_sum" in wanted.varied:
        raise UserError(
            "under optim.schedule wsd runs of several run.max_tokens are branches of the longest, "
            "for which optim.decay_sum must be null: it depends on the length; set weight_decay"
        )
    return True


def _shared(wanted: Design) -> Settings:
    """The settings that all runs have; block and widths in them mean nothing."""
    any_block = {"block": "wide", "n_experts": 0, "d_ffn": 64, "d_ffn_wide": 64}
    shared = settings_from(merge(wanted.recipe, {"model": any_block}))
    if shared.run.branch_from is not None:
        raise UserError(
            "the recipe has run.branch_from, but a sweep trains each configuration from the start; "
            "leave it out (--config, repeated, can set it to null)"
        )
    looped = replace(shared.model, block="dual", loops=2)  # all of the recipe's classes are used
    import_classes(looped, allowed=True)
    return shared


def _write_down(wanted: Design, cells: Sequence[Cell], notes: Sequence[str]) -> None:
    """Writes sweep.yaml: what was asked for, and what it came to."""
    content = {
        "command": shlex.join(["dualpath", *sys.argv[1:]]),
        "cells": [
            {"name": cell.name, "family": cell.family, "budget": cell.budget,
             "matches": list(cell.matches), "alpha": cell.alpha, "spent": round(cell.spent, 6),
             "model": cell.model}
            for cell in cells
        ],
        "notes": list(notes),
    }  # fmt: skip
    write_text(wanted.out / request.SWEEP, dump(content))


def _show_plan(wanted: Design, runs: Sequence[PlannedRun], console: Console) -> None:
    given = wanted.options.tflops
    speeds = plan.measured(runs) if given is None else dict.fromkeys(FAMILIES, given * 1e12)
    rows = plan.costs(runs, speeds)
    write_text(wanted.out / "plan.csv", format_csv([asdict(row) for row in rows]))
    show(console, plan.plan_table(rows, side_by_side(runs[0], wanted.options.jobs)))
    for row in rows:
        if row.gate_excess > TOLERANCE:
            say(console, f"note: the gate of {row.configuration} takes {row.gate_excess:.4f} of "
                "the budget more than the recipe's, which widths are solved for; a sweep of its "
                "own would leave it room")  # fmt: skip


def _ask(wanted: Design, console: Console) -> None:
    """Raises Stopped where the answer is no."""
    if wanted.options.yes:
        return
    if not sys.stdin.isatty():
        raise UserError(f"{wanted.out} is planned; --yes starts it where there is nobody to ask")
    answer = console.input("start? [y/N] ", markup=False, emoji=False)
    if answer.strip().lower() not in ("y", "yes"):
        raise Stopped(f"nothing was started; the plan is in {wanted.out}", 0, quiet=False)


def _array(wanted: Design, runs: Sequence[PlannedRun]) -> str:
    """Writes the array of what is not finished; returns what to do with it."""
    left = [run for run in runs if not run.is_finished and run.is_ready]
    if not left:
        return f"all runs are finished; next: {_comparison(wanted, runs)}"
    script = write_array(left, wanted.options.jobs, wanted.out)
    last = all(run.is_ready for run in runs)
    after = _comparison(wanted, runs) if last else "this command again"
    return f"{len(left)} runs: sbatch {script}; when they are finished, {after}"


def _comparison(wanted: Design, runs: Sequence[PlannedRun]) -> str:
    return f"dualpath compare {wanted.out}" + max(option_of(run.settings.model) for run in runs)


def check_begun(runs: Iterable[PlannedRun]) -> None:
    """Checks that no seeds are added to a configuration that trained something else before."""
    for run in runs:
        if (run.folder / RECIPE).is_file():
            way_out, settings = "give this sweep another --out", run.settings
            words = f"{way_out}, or the words that it was begun with"
            check_same_recipe(run.folder, settings.as_recipe(), way_out=words)
            if option_of(settings.model):
                check_as_begun(run.folder, facts_now(run.folder), settings.model, way_out)


def check_different(runs: Sequence[PlannedRun]) -> None:
    """Checks that no two configurations would be trained with the same numbers."""
    seen: dict[str, str] = {}
    for name, run in _first_runs(runs).items():
        other = seen.setdefault(_identity(run), name)
        if other != name:
            raise UserError(
                f"{other} and {name} would be the same run twice; leave one of the values out "
                "of --set"
            )


def _first_runs(runs: Sequence[PlannedRun]) -> dict[str, PlannedRun]:
    return {run.configuration: run for run in reversed(runs)}


def _identity(run: PlannedRun) -> str:
    """The settings that decide a run's numbers; its tokens by the whole steps that they make."""
    recipe, trainer = run.settings.as_recipe(), run.settings.trainer
    recipe["run"]["max_tokens"] = run.steps * run.settings.run.batch_tokens
    return json.dumps([decisive(recipe, {}), trainer.callbacks, trainer.plugins], sort_keys=True)


def check_settings(runs: Sequence[PlannedRun]) -> None:
    """Checks one run of each configuration, as far as it can be before anything runs."""
    for run in _first_runs(runs).values():
        if (run.folder / RECIPE).is_file():
            continue  # checked as it was begun
        try:
            # One whose trunk is not there yet is checked as if it began at the start.
            whole = replace(run.settings, run=replace(run.settings.run, branch_from=None))
            to_train(run.settings if run.is_ready else whole)
            _check_branch(run)
        except UserError as error:
            name = f"{run.configuration}: " if run.varied else ""
            raise UserError(f"{name}{error}") from None


def _check_branch(run: PlannedRun) -> None:
    """Checks that a branch's trunk saves a checkpoint that it can begin from."""
    start, every = stable_steps(run.settings), run.settings.run.save_every
    if run.settings.run.branch_from is not None and start < every:
        raise UserError(
            f"run.save_every={every} leaves no checkpoint before the cool-down of a run of "
            f"{run.steps} steps, or its second phase of loops, at step {start}; save more often"
        )
