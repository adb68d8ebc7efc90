"""The exceptions that end a command with one line, and the nearest-name hint that goes with it."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can mend: the command prints it as one line and exits with 2.

    The message names the thing, its value and the way out.
    """


class RunFailed(Exception):
    """The machine or the numbers failed: the command prints it as one line and exits with 1.

    The message says what happened, where to look, and what is kept. An empty one prints nothing:
    another rank tells it.
    """


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Returns ``"; did you mean 'x'?"`` for the nearest candidate, or an empty string."""
    near = difflib.get_close_matches(word, list(candidates), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


class Stopped(BaseException):
    """A command that ended early, because a signal asked it to, with nothing lost."""

    def __init__(self, text: str, code: int, quiet: bool) -> None:
        """`text` says what happened and how to go on; `quiet` leaves that to another rank."""
        super().__init__(text)
        self.text = text
        self.code = code
        self.quiet = quiet
