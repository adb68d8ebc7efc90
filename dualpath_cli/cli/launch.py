"""From a command's arguments to a training or a trained run. Imports nothing slow.

The recipe is from --config, or from the RUN with --config over it; the arguments
override both. Checks are in order of types, values of a section together (`settings`),
data, and checkpoints. The last two import numpy and pyarrow, which `fit` does once its
arguments are right.
"""

import glob
import json
import sys
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.output import say
from dualpath_cli.base.processes import is_first_rank
from dualpath_cli.cli.arguments import Arguments, CommandLine
from dualpath_cli.recipe.parser import CLASSES, construct
from dualpath_cli.recipe.recipes import Recipe, dump, merge
from dualpath_cli.recipe.settings import DataSettings, Settings

if TYPE_CHECKING:
    from dualpath_cli.training.launch import RunLaunch, TrainingLaunch

_THIS_MACHINE = {
    "trainer": {
        "accelerator": "auto",
        "devices": 1,
        "num_nodes": 1,
        "strategy": "auto",
        **dict.fromkeys(CLASSES),
    }
}
"""Replaces values of a run's recipe that only hold on the machine that trained it."""


def training(arguments: Arguments) -> "TrainingLaunch":
    """The run that `fit` begins or continues.

    Raises UserError for the first mistake, SystemExit if there is nothing to do.
    """
    # A run is named after the first recipe, unless a recipe says otherwise.
    configs = arguments.paths("--config", "-c")
    named = {"run": {"recipe": Path(configs[0]).stem}} if configs else {}
    line = arguments.over(merge(named, arguments.recipes))
    settings = _checked_settings(line)
    from dualpath_cli.training.launch import to_train

    launch = to_train(settings, line.options.ckpt_path, line.options.new_data)
    if launch.is_finished:
        if is_first_rank():
            say(f"{launch.folder} is finished: nothing to do", sys.stdout)
        raise SystemExit(0)
    return replace(launch, dry_run=line.options.dry_run)


def trained_run(arguments: Arguments) -> "RunLaunch":
    """The trained run that a command reads.

    Raises UserError for the first mistake.
    """
    from dualpath_cli.run.trained import check_as_run, check_as_trained, find_run
    from dualpath_cli.training.checks import check_validation_sets, verify_data
    from dualpath_cli.training.launch import RunLaunch

    runs = arguments.paths("--ckpt-path")
    if not runs:
        arguments.over({})  # raises: the option must be given
    own = arguments.recipes
    run = find_run(runs[0])
    no_sets: Recipe = {"data": {"val": {}}}
    line = arguments.over(reduce(merge, [no_sets, run.recipe, _THIS_MACHINE, own]))
    options = line.options.with_run(run)
    settings = _checked_settings(line)
    if settings.trainer.logger:
        raise UserError(
            "trainer.logger has no effect: only fit gives rows to loggers; leave it "
            "out, or give --trainer.logger null after a recipe with one"
        )

    check_as_run(run, settings.model)
    if not settings.data.val:
        raise UserError(
            "the run names no validation set; give one: --data.val.NAME FILE_OR_FOLDER"
        )
    trusted = arguments.keys_named("data.val", _with_paths(own))
    _check_followed(settings.data, trusted, run.folder)

    model = line.recipe.get("model", {})
    given = arguments.keys_named("model", own) & model.keys()
    check_as_trained(
        run, settings.model, options.own_classes, {key: model[key] for key in given}
    )
    options.check(settings)
    verify_data(settings, check_validation_sets(settings, run.tokenizer))
    return RunLaunch(settings, run, options)


def _with_paths(own: Recipe) -> Recipe:
    """The validation sets of a recipe without those that only change a set's field."""
    sets = own.get("data", {}).get("val") or {}
    with_path = {
        name: value
        for name, value in sets.items()
        if isinstance(value, str) or "path" in value
    }
    return {"data": {"val": with_path}}


def _check_followed(data: DataSettings, trusted: set[str], folder: Path) -> None:
    """Refuses validation sets named only by a run's recipe, unless files or data
    folders.

    The author of a received recipe must not choose where the user's machine looks.
    `trusted` are the sets that the user has given.
    """
    from dualpath_cli.data.manifest import is_data_folder
    from dualpath_cli.data.storage import exists, is_remote
    from dualpath_cli.run.run_folder import RECIPE

    for name, of_set in data.validation_sets.items():
        if name in trusted:
            continue
        path = of_set.path
        is_glob = glob.has_magic(path) and not exists(path)
        has_many = is_glob or Path(path).is_dir()
        if is_remote(path) or (has_many and not is_data_folder(path)):
            value = data.val[name]
            shown = value if isinstance(value, str) else json.dumps(value)
            raise UserError(
                f"data.val.{name}: '{path}' in {folder / RECIPE} is a glob, a folder "
                "of texts or an s3:// location, and is read only if you give it: "
                f"--data.val.{name} '{shown}'"
            )


def _checked_settings(line: CommandLine) -> Settings:
    """The checked recipe; raises SystemExit after --print-config."""
    settings = construct(Settings, line.recipe)
    if line.options.print_config:
        say(dump(settings.as_recipe()), sys.stdout, end="")
        raise SystemExit(0)
    return settings
