"""Faults of reading data while training, whichever process and library they come through."""

import re
import traceback

from torch.utils.data import dataloader

from dualpath_cli.errors import RunFailed, UserError

# How a UserError is named in a traceback, also in one that a loader process sent as text.
_USER_ERROR = re.compile(rf"^{re.escape(UserError.__module__)}\.UserError: (.+)$", re.MULTILINE)
_FORWARDED = "Caught UserError in "  # what PyTorch puts before an error of a loader process


def loading_fault(error: BaseException) -> UserError | RunFailed | None:
    """Returns the fault of the data or of a loader process; None for any other error.

    A message that is one line already stays as it is.
    """
    try:
        return _fault(error)
    except RuntimeError as late:  # PyTorch's, as the signal of a lost loader arrives only now
        return _fault(late)


def _fault(error: BaseException) -> UserError | RunFailed | None:
    if isinstance(error, RunFailed):
        return None
    if isinstance(error, UserError) and not str(error).startswith(_FORWARDED):
        return None
    messages = _USER_ERROR.findall("".join(traceback.format_exception(error)))
    if messages := [text for text in messages if not text.startswith(_FORWARDED)]:
        return UserError(messages[-1])
    if isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker"):
        return _lost_loader(str(error).strip().splitlines()[0].rstrip(". "))
    # The error of a process that ends while its batch is on the way.
    files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    if isinstance(error, OSError | EOFError) and dataloader.__file__ in files:
        return _lost_loader(f"a DataLoader worker ended ({type(error).__name__})")
    return None


def _lost_loader(reason: str) -> RunFailed:
    return RunFailed(
        f"{reason}; if memory ran out, lower data.workers or run.micro_batch: the same command "
        "continues"
    )
