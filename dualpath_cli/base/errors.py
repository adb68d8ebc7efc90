"""The exceptions that end a command with one line, hints, and how any failure reads as
one."""

import difflib
import errno
import json
from collections.abc import Iterable, Mapping

# characters of a message; a longer one loses its middle, as both ends say what to do
LONGEST = 800
NEAR, FAR = 0.7, 0.4
"""The least similarity, of difflib, of a word that is suggested, and the most letters
to change, as a part of the word: `ablation` has 0.71 and 0.38 to `ablate`, `score` 0.67
to `compare`, `max_steps` 0.44 to `max_bad_steps`."""


class UserError(Exception):
    """A mistake that the user can mend: the command prints one line and exits with 2.

    The message names the thing, its value and the way out.
    """


class RunFailed(Exception):
    """The machine or the numbers failed: the command prints one line and exits with 1.

    The message says what happened, where to look, and what is kept. An empty message
    prints nothing; another rank reports the error.
    """


class NumbersFailed(RunFailed):
    """The numbers failed, not the machine: the same command would end in the same
    way."""


def did_you_mean(
    word: str, candidates: Iterable[str], shown: Mapping[str, str] = {}
) -> str:
    """Returns ``"; did you mean 'x'?"`` for the nearest candidate, or an empty string.

    A candidate of the same letters is near as well, and one that begins with the word
    (of three letters or more). `shown` has the names to show in place of candidates.
    """
    known = list(candidates)
    near = difflib.get_close_matches(word[:LONGEST], known, cutoff=NEAR)
    near = [
        candidate for candidate in near if _changes(word, candidate) <= FAR * len(word)
    ]
    near += [candidate for candidate in known if sorted(candidate) == sorted(word)]
    if len(word) >= 3:
        near += [candidate for candidate in known if candidate.startswith(word)]
    return f"; did you mean '{shown.get(near[0], near[0])}'?" if near else ""


def _changes(word: str, other: str) -> int:
    """Letters that are replaced, left out or added from one word to the other."""
    parts = difflib.SequenceMatcher(None, word, other).get_opcodes()
    return sum(max(i - h, k - j) for kind, h, i, j, k in parts if kind != "equal")


def listed(names: Iterable[str], most: int = 10) -> str:
    """Returns names in a row, those beyond `most` as a count; "none" without any."""
    known = list(names)
    more = f" and {len(known) - most:,} more" if len(known) > most else ""
    return (", ".join(known[:most]) or "none") + more


class Stopped(BaseException):
    """A command that a signal has ended early, with nothing lost."""

    def __init__(self, text: str, code: int, quiet: bool) -> None:
        """`text` says what happened and how to continue; a `quiet` rank prints
        nothing."""
        super().__init__(text)
        self.text = text
        self.code = code
        self.quiet = quiet


_MISTAKES = {
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ENOENT: "give one that is there",
    errno.EISDIR: "remove the folder, or give another name",
    errno.ENOTDIR: "a file is where a folder should be; give another path",
    errno.ELOOP: "it is a symbolic link, or links go in a circle; remove it",
    errno.EEXIST: "remove it, or give another name",
}
_FAILURES = {
    errno.ENOSPC: "free some space and give the same command again",
    errno.EDQUOT: "free some space and give the same command again",
    errno.EACCES: "change its permissions, or choose another folder",
    errno.EPERM: "change its permissions, or choose another folder",
    errno.EROFS: "choose a folder that can be written",
}


def of_system(error: OSError) -> tuple[int, str]:
    """Returns the exit code and the message of an error of the system.

    The code is 2 for a wrong path, and 1 for a failure of the machine.
    """
    number = error.errno or 0
    reason = error.strerror or str(error) or type(error).__name__
    place = "" if error.filename is None else f"'{error.filename}': "
    way_out = _MISTAKES.get(number) or _FAILURES.get(number)
    text = f"{place}{reason}" + (f"; {way_out}" if way_out else "")
    return (2 if number in _MISTAKES else 1), text


def of_content(error: BaseException) -> str:
    """Returns the fault of a file's content in words."""
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON: {error}"
    if isinstance(error, UnicodeDecodeError):
        return f"it is no UTF-8 at byte {error.start}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, TypeError | AttributeError | IndexError):
        return "a value in it is of another kind than it must be"
    return str(error)
