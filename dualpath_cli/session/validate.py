"""`dualpath validate`: the losses of a checkpoint on named texts."""

from dualpath_cli.errors import UserError
from dualpath_cli.session.session import Session


def validate(session: Session) -> None:
    """Scores the checkpoint on every validation set; UserError if the run names none."""
    if not session.launch.settings.data.val:
        raise UserError("the run names no validation set; give one: --data.val.NAME FILE_OR_FOLDER")
    session.trainer.validate(session.module, datamodule=session.datamodule, verbose=False)
    session.show_validation()
