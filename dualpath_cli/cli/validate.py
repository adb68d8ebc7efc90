"""`dualpath validate`: the losses of a checkpoint on named texts."""

from typing import Any

from dualpath_cli.cli.session import Session
from dualpath_cli.errors import UserError
from dualpath_cli.files import format_csv, read_csv, write_text
from dualpath_cli.recipe.recipes import Recipe
from dualpath_cli.run.run_folder import AVERAGES, Run, read_recipe
from dualpath_cli.run.trained import label_of_average


def validate(session: Session) -> None:
    """Scores the checkpoint on every validation set; UserError if the run names none."""
    if not session.launch.settings.data.val:
        raise UserError("the run names no validation set; give one: --data.val.NAME FILE_OR_FOLDER")
    session.trainer.validate(session.module, datamodule=session.datamodule, verbose=False)
    session.show_validation()
    run, data = session.launch.averaged, session.launch.settings.as_recipe()["data"]
    if run is not None:
        session.say(label_of_average(run))
        if session.trainer.is_global_zero and _keep_scores(run, data, session.module.val_results):
            session.say(f"kept: {run.folder / AVERAGES}")


def _keep_scores(run: Run, data: Recipe, results: dict[str, dict[str, float]]) -> bool:
    """Writes the scores of an average into the run's folder, in place of its earlier ones.

    Only of the run's own sets, read as its recipe says; returns whether they were.
    """
    asked = ("val", "val_tokens", "val_seed")
    own = read_recipe(run.folder).get("data", {})
    if not results or any(own.get(key) != data.get(key) for key in asked):
        return False
    at = {"step": str(run.step), "average": str(len(run.average))}
    path = run.folder / AVERAGES
    rows: list[Any] = [row for row in read_csv(path) if not at.items() <= row.items()]
    rows += [{**at, "set": name, **result} for name, result in results.items()]
    write_text(path, format_csv(rows))
    return True
