"""`fit --new-data`: the data a run is continued on, and the step since which it trains on them."""

import argparse
from pathlib import Path

from dualpath_cli.errors import UserError
from dualpath_cli.run import run_folder
from dualpath_cli.text.manifest import Manifest
from dualpath_cli.text.tokenizer import Tokenizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the option to fit's."""
    parser.add_argument(
        "--new_data", action="store_true",
        help="Continue the run on other data than it has been trained on up to now, from their "
        "beginning; else they are refused.",
    )  # fmt: skip


def data_since(folder: Path, checkpoint: Path, manifest: Manifest, new_data: bool) -> int:
    """Returns the step at which a run, continued from a checkpoint, began to train on its data.

    Raises:
        UserError: if these are other data, and `new_data` does not allow it, or have other tokens.
    """
    before = run_folder.facts_at(folder, checkpoint)
    trained_on, since = str(before.get("data_fingerprint")), before.get("data_since", 0)
    if trained_on == manifest.fingerprint and isinstance(since, int):
        return since
    if not new_data:
        raise UserError(
            f"{folder} was trained on data of the fingerprint {trained_on:.12}, these are "
            f"{manifest.summary}; go back to those, give this run a name (--run.name NAME), or go "
            "on with these from their beginning (--new-data)"
        )
    if Tokenizer.load(folder / run_folder.TOKENIZER).fingerprint != manifest.tokenizer:
        raise UserError(
            f"{folder} was trained with another tokenizer than that of the new data, whose ids "
            "mean other texts; prepare them with the run's: --tokenizer "
            f"{folder / run_folder.TOKENIZER}"
        )
    return run_folder.step_of(checkpoint)
