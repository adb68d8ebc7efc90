"""`dualpath validate`: the losses of a checkpoint on named texts."""

from dualpath_cli.cli.session import Session
from dualpath_cli.errors import UserError
from dualpath_cli.run import average
from dualpath_cli.run.run_folder import AVERAGES


def validate(session: Session) -> None:
    """Scores the checkpoint on every validation set; UserError if the run names none."""
    if not session.launch.settings.data.val:
        raise UserError("the run names no validation set; give one: --data.val.NAME FILE_OR_FOLDER")
    session.trainer.validate(session.module, datamodule=session.datamodule, verbose=False)
    session.show_validation()
    run, data = session.launch.averaged, session.launch.settings.as_recipe()["data"]
    if run is not None:
        session.say(average.label(run))
        if session.trainer.is_global_zero and average.keep_scores(
            run, data, session.module.val_results
        ):
            session.say(f"kept: {run.folder / AVERAGES}")
