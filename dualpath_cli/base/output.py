"""Standard output and error: characters that a terminal obeys, a reader that leaves."""

import errno
import os
import re
import stat
import sys
from typing import TextIO

from dualpath_cli.base.errors import LONGEST

_SPACES = "".join(map(chr, range(0x2000, 0x200B)))
LAYOUT = "\n\t\xa0\u1680\u202f\u205f\u3000\u200c\u200d" + _SPACES
"""Characters that lay a text out, or join letters, and that no terminal obeys."""

_LONG_WORD = re.compile(r"\S{300,}")


def printable(text: str, keep: str = LAYOUT) -> str:
    """Returns a text with escapes for the characters that a terminal obeys or hides.

    These are control characters, marks of writing direction, and others without a form,
    except those to `keep`.
    """
    if text.isprintable():
        return text

    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def amount(unit: str, count: int) -> str:
    """Such as `2,000 documents`, `1 document`; `unit` is a plural in s."""
    return f"{count:,} {unit if count != 1 else unit.removesuffix('s')}"


def joined_lines(text: object, most: int | None = None) -> str:
    """Returns the words of a text or an error on one line; `most` are characters."""
    return " ".join(str(text).split())[:most]


def one_line(text: str) -> str:
    """Returns a message as one line of bounded length.

    Unprintable characters are escaped, and a word of 300 characters loses its middle.
    """
    plain = printable(text, keep="")
    plain = _LONG_WORD.sub(lambda word: f"{word[0][:60]}...{word[0][-20:]}", plain)
    if len(plain) <= LONGEST:
        return plain

    half = LONGEST // 2
    return f"{plain[:half]} [...] {plain[-half:]}"


def escape_unprintable() -> None:
    """Lets stdout escape characters that its encoding lacks.

    A closed stdout goes nowhere.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as we live
    if sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def say(text: str, stream: TextIO | None = None, *, end: str = "\n") -> None:
    """Prints a line, on stderr by default.

    A terminal gets it `printable`, a file as it is; a closed stderr and a terminal that
    was closed get nothing.
    """
    stream = stream or sys.stderr
    if stream is None:  # print would take stdout instead
        return

    shown = printable(text) if stream.isatty() else text
    try:
        print(shown, end=end, file=stream, flush=True)
    except OSError as failure:
        is_device = stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
        if failure.errno != errno.EIO or not is_device:
            raise
        send_nowhere(stream)


def send_nowhere(stream: TextIO) -> None:
    """Sends the rest of a stream, whose reader has left, nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
