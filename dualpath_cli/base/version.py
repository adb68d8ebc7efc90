"""The version of the package, which `pyproject.toml` reads from here, and those of its
packages."""

import importlib.metadata
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_PACKAGES = (
    "dualpath",
    "torch",
    "lightning",
    "litdata",
    "torchmetrics",
    "jsonargparse",
)


def versions() -> dict[str, Any]:
    """Versions of packages and Python, and the commit, as a run records them."""
    return {
        "packages": package_versions(_PACKAGES),
        "python": platform.python_version(),
        "git_commit": _git_commit(),
    }


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of installed packages, and of this one, which may be a checkout on the
    path."""
    return {
        name: __version__ if name == "dualpath" else importlib.metadata.version(name)
        for name in names
    }


def _git_commit() -> str | None:
    """The checkout's commit, with `+changes` where files differ from it; None outside
    of one."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        # not in another's repository
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "HEAD") + (
            "+changes" if git("status", "--porcelain") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None
