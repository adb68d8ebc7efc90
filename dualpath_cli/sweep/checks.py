"""What a sweep checks before it writes anything."""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml

from dualpath_cli.command import launch
from dualpath_cli.command.own_classes import check_as_begun
from dualpath_cli.command.records import COMMANDS
from dualpath_cli.run_folder import RECIPE, check_same_recipe
from dualpath_cli.sweep.runs import Run

WAY_OUT = "give this sweep another --out"


def check_begun(runs: Iterable[Run]) -> None:
    """Checks that the runs that were begun before are those of this sweep.

    Else seeds would be added to a configuration that trained something else.

    Raises:
        UserError: where a run was begun with a recipe of other numbers, or with another source of
            a class of one's own.
    """
    for run in runs:
        if (run.folder / RECIPE).is_file():
            way_out = f"{WAY_OUT}, or the words that it was begun with"
            check_same_recipe(run.folder, run.settings.as_recipe(), way_out=way_out)
            check_as_begun(run.folder, None, run.settings.model, WAY_OUT)


def check_settings(runs: Sequence[Run]) -> None:
    """Has `fit` check one run of each configuration, as far as it can before anything runs.

    Raises:
        UserError: for the first mistake that it finds.
    """
    firsts = {run.configuration.name: run for run in runs if run.is_ready}
    with tempfile.TemporaryDirectory() as folder:
        for run in firsts.values():
            if (run.folder / RECIPE).is_file():
                continue  # checked as it was begun
            path = Path(folder) / "recipe.yaml"
            path.write_text(yaml.safe_dump(run.recipe, sort_keys=False), encoding="utf-8")
            launch.read(COMMANDS["fit"], ["--config", str(path)])
