"""Pointers of Git LFS and git-annex, which a clone has in place of files at first.

Git LFS writes a file of a few lines (github.com/git-lfs/git-lfs, docs/spec.md);
git-annex a file with a key, or a link to a file that is not there
(git-annex.branchable.com/internals/pointer_file). Trained on or scored, these lines
would give numbers like any text.
"""

import os
import re
import stat
from pathlib import Path

from dualpath_cli.base.errors import UserError

_MOST_BYTES = 1 << 15
"""Most bytes of a pointer of git-annex; one of Git LFS is shorter."""

_LFS = re.compile(
    rb"version https://(git-lfs|hawser)\.github\.com/spec/v1\r?\n"
    rb"(ext-[^\n]+\n)*oid sha256:[0-9a-f]{64}\r?\nsize \d+\s*"
)

_KEY = rb"[A-Z0-9_]+(-[smSC]\d+)*--[^/\n]+"
# A link of git-annex is a file with the link's target where a file system has no links.
_ANNEX = re.compile(
    rb"(/|(\.\./)*\.git/)annex/objects/([^\n]+/)?" + _KEY + rb"\s*(/annex/[^\n]*\s*)*"
)


class StandIn(UserError):
    """A pointer where a file's content should be."""


def refuse_pointer(path: Path) -> None:
    """Raises StandIn for a pointer; any other file, or none, passes.

    Files of up to 32 KiB are read; pipes and devices are not opened.
    """
    try:
        status = os.stat(path)
    except OSError:
        if path.is_symlink() and _ANNEX.fullmatch(os.fsencode(os.readlink(path))):
            raise _stand_in(path, "git-annex", "git annex get") from None
        return

    if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
        return

    try:
        content = path.read_bytes()
    except OSError:
        return  # the caller, who opens the file, reports the error

    if _LFS.fullmatch(content):
        raise _stand_in(path, "Git LFS", "git lfs pull")
    if _ANNEX.fullmatch(content):
        raise _stand_in(path, "git-annex", "git annex get")


def _stand_in(path: Path, system: str, command: str) -> StandIn:
    return StandIn(
        f"{path} is a pointer of {system}, not the file itself; get the file by "
        f"`{command}` in its folder"
    )
