"""Faults of reading data while training, from any process and library."""

import re
import signal
import traceback
from contextlib import suppress

from torch.utils.data import dataloader

from dualpath_cli.base.errors import RunFailed, UserError

# The line of a UserError in a traceback, also in the text of a loader process's error.
_USER_ERROR = re.compile(
    rf"^{re.escape(UserError.__module__)}\.UserError: (.+)$", re.MULTILINE
)
# What PyTorch says where /dev/shm is full: its own check, the system's, and a fault of
# a map.
_NO_SHARED_MEMORY = re.compile(
    r"unable to (allocate shared memory|write to file|resize file|stretch file)"
    r".*</torch_"
    r"|killed by signal: Bus error"
)
# what PyTorch puts before an error of a loader process
_FORWARDED = "Caught UserError in "


def loading_fault(error: BaseException) -> UserError | RunFailed | None:
    """The fault of the data or of a loader process, if an error is one."""
    try:
        # PyTorch's handler raises wherever the process is. Outside of the main thread
        # no handler runs, and none can be set.
        with suppress(ValueError):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return _fault(error)
    except RuntimeError as late:
        # from that handler: the signal of a lost loader came just now
        return _fault(late)


def _fault(error: BaseException) -> UserError | RunFailed | None:
    if isinstance(error, RunFailed):
        return None
    if isinstance(error, UserError) and not str(error).startswith(_FORWARDED):
        return None

    # A UserError of this process or, in the text, of a loader process.
    found = _USER_ERROR.findall("".join(traceback.format_exception(error)))
    messages = [text for text in found if not text.startswith(_FORWARDED)]
    if messages:
        return UserError(messages[-1])

    text = str(error)
    if isinstance(error, RuntimeError) and _NO_SHARED_MEMORY.search(text):
        return RunFailed(
            "the batches of the loader processes do not fit into shared memory "
            "(/dev/shm); load in this process by --data.workers 0, or give a container "
            "more by docker --shm-size: the same command continues"
        )
    if isinstance(error, RuntimeError) and text.startswith("DataLoader worker"):
        return _lost_loader(text.strip().splitlines()[0].rstrip(". "))

    # The error if a loader process ends while its batch is in transit.
    files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    if isinstance(error, OSError | EOFError) and dataloader.__file__ in files:
        return _lost_loader(f"a DataLoader worker ended ({type(error).__name__})")

    return None


def _lost_loader(reason: str) -> RunFailed:
    return RunFailed(
        f"{reason}; if memory ran out, lower data.workers or run.micro_batch: the same "
        "command continues"
    )
