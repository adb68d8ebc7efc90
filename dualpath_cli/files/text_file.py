"""Reads a small file, as runs and exported folders hold them, whoever wrote what lies there."""

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from dualpath_cli.errors import UserError

MOST_BYTES = 1 << 30
"""The most bytes of a file that is read at once; the largest are the tables of long runs."""


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Yields a file that is open for reading, also through links.

    Raises:
        OSError: where there is none, and for pipes and devices, whose bytes may never come or end.
    """
    # Without waiting for whoever may write into a pipe.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device, no file", str(path))
        yield file


def read_text(path: Path, way_out: str = "") -> str:
    """The text of a file, unchanged; `way_out` ends a message.

    Raises:
        UserError: where it cannot be read, is no UTF-8 or has more than `MOST_BYTES`.
    """
    try:
        with open_regular(path) as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES:,} bytes")
        return content.decode()
    except OSError as error:
        reason = error.strerror
    except UnicodeDecodeError as error:
        reason = str(error)
    raise _unreadable(path, reason, way_out)


def read_json(path: Path, way_out: str = "") -> dict[str, Any]:
    """The JSON object in a file. Raises UserError as `read_text`, and where it holds none."""
    text = read_text(path, way_out)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, f"no JSON: {error}", way_out) from None
    if not isinstance(content, dict):
        raise _unreadable(path, "no JSON object", way_out)
    return content


def _unreadable(path: Path, reason: str | None, way_out: str) -> UserError:
    return UserError(f"{path} cannot be read ({reason})" + (f"; {way_out}" if way_out else ""))
