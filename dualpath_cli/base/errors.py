"""The exceptions that end a command with one line, and how any failure reads as one."""

import difflib
import errno
import json
from collections.abc import Iterable, Mapping

# characters of a message; a longer one loses its middle, as both ends say what to do
LONGEST = 800

# Two bounds of a word that is suggested: `ablation` has 0.71 and 0.38 to `ablate`,
# `score` 0.67 to `compare`, `max_steps` 0.44 to `max_bad_steps`.
LEAST_SIMILARITY = 0.7  # of difflib
MOST_CHANGES = 0.4  # letters to change, as a part of the word


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
    """The numbers failed, not the machine: the same command would end like this."""


def did_you_mean(
    word: str, candidates: Iterable[str], shown: Mapping[str, str] = {}
) -> str:
    """Returns ``"; did you mean 'x'?"`` for the nearest candidate, or an empty string.

    An anagram of the word is near as well, and so is a candidate that begins with it
    (if the word has three letters or more). `shown` maps candidates to names to print.
    """
    known = list(candidates)
    most_changes = MOST_CHANGES * len(word)

    similar = difflib.get_close_matches(word[:LONGEST], known, cutoff=LEAST_SIMILARITY)
    near = [other for other in similar if _changes(word, other) <= most_changes]
    near += [other for other in known if sorted(other) == sorted(word)]
    if len(word) >= 3:
        near += [other for other in known if other.startswith(word)]

    if not near:
        return ""
    return f"; did you mean '{shown.get(near[0], near[0])}'?"


def _changes(word: str, other: str) -> int:
    """Letters that are replaced, left out or added from one word to the other."""
    changes = 0
    parts = difflib.SequenceMatcher(None, word, other).get_opcodes()
    for kind, start, end, other_start, other_end in parts:
        if kind != "equal":
            changes += max(end - start, other_end - other_start)
    return changes


def listed(names: Iterable[str], most: int = 10) -> str:
    """Returns names with commas, those beyond `most` as a count; "none" without any."""
    known = list(names)
    shown = ", ".join(known[:most]) or "none"
    if len(known) <= most:
        return shown
    return f"{shown} and {len(known) - most:,} more"


class Stopped(BaseException):
    """A command that a signal has ended early, with nothing lost."""

    def __init__(self, text: str, code: int, quiet: bool) -> None:
        """`text` says what happened and how to continue.

        A `quiet` rank prints nothing.
        """
        super().__init__(text)
        self.text = text
        self.code = code
        self.quiet = quiet


_MISTAKES = {
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ENOENT: "give an existing path",
    errno.EISDIR: "remove the folder, or give another name",
    errno.ENOTDIR: "a file is where a folder should be; give another path",
    errno.ELOOP: "it is a symbolic link, or links go in a circle; remove it",
    errno.EEXIST: "remove it, or give another name",
}
"""Ways out of a wrong path."""

_FAILURES = {
    errno.ENOSPC: "free some space and run the same command again",
    errno.EDQUOT: "free some space and run the same command again",
    errno.EACCES: "change its permissions, or choose another folder",
    errno.EPERM: "change its permissions, or choose another folder",
    errno.EROFS: "choose a folder that can be written",
}
"""Ways out of a failure of the machine."""


def describe_system_error(error: OSError) -> tuple[int, str]:
    """Returns the exit code and the message of an error of the system.

    The code is 2 for a wrong path, and 1 for a failure of the machine.
    """
    number = error.errno or 0
    reason = error.strerror or str(error) or type(error).__name__
    text = reason if error.filename is None else f"'{error.filename}': {reason}"

    if number in _MISTAKES:
        return 2, f"{text}; {_MISTAKES[number]}"
    if number in _FAILURES:
        return 1, f"{text}; {_FAILURES[number]}"
    return 1, text


def lacks_gpu_memory(error: BaseException | None) -> bool:
    """Whether a GPU ran out of memory; an error of the end of a CUDA graph's record may
    hide this."""
    while error is not None:
        # by name: commands that import no torch end here, too
        if type(error).__name__ == "OutOfMemoryError":
            return True
        error = error.__context__
    return False


def content_fault(error: BaseException) -> str:
    """Returns the fault of a file's content in words."""
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON: {error}"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 at byte {error.start}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, TypeError | AttributeError | IndexError):
        return "a value in it has the wrong type"
    return str(error)
