"""The facts of a run: recorded as it starts or goes on, in each checkpoint's manifest too.

Torch-free. `run_folder.py` names the files, `run_folder.facts_at` reads a checkpoint's.
"""

import importlib.metadata
import json
import platform
import re
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.system import read_json, write_text
from dualpath_cli.base.version import __version__
from dualpath_cli.recipe.recipes import Recipe, dump
from dualpath_cli.run.run_folder import AVERAGES, PUT_BACK, RECIPE, VERSIONS, facts_at


def start(folder: Path, recipe: Recipe, facts: dict[str, Any], step: int | None = None) -> None:
    """Writes the resolved recipe and the versions into a run folder.

    A run continued from `step` keeps its first files, and gets further ones for the rest.
    Those of later parts, of a run that is taken back, go.
    """
    for name in (RECIPE, VERSIONS):
        for begun, path in _parts(folder, name).items():
            if begun >= (step or 0):
                path.unlink()
    (folder / AVERAGES).unlink(missing_ok=True)
    suffix = "" if step is None else f"-{step:08d}"
    recipe_text = dump(recipe)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    versions_text = json.dumps({**versions(), "started": started, **facts}, indent=2) + "\n"
    # First, as it tells that the folder is a run's.
    write_text((folder / VERSIONS).with_stem(f"versions{suffix}"), versions_text)
    write_text((folder / RECIPE).with_stem(f"recipe{suffix}"), recipe_text)


def _parts(folder: Path, name: str) -> dict[int, Path]:
    """The files of that name of all continued parts of a run, by the step they go on from."""
    path = folder / name
    written = re.compile(rf"{path.stem}-([0-9]{{8,18}})")
    found = [(written.fullmatch(p.stem), p) for p in folder.glob(f"{path.stem}-*{path.suffix}")]
    return {int(match[1]): p for match, p in found if match}


def facts_now(folder: Path) -> dict[str, Any]:
    """The last facts by `start`; empty where it has written none."""
    parts = {-1: folder / VERSIONS, **_parts(folder, VERSIONS)}
    newest = parts[max(parts)]
    return read_json(newest, PUT_BACK) if newest.exists() else {}


def check_same_facts(folder: Path, checkpoint: Path, facts: dict[str, Any]) -> None:
    """Refuses the first fact that is not as it was where a checkpoint was written."""
    before = facts_at(folder, checkpoint)
    for name, now in facts.items():
        if before.get(name) != now:
            raise UserError(
                f"{folder} was begun with {name} {before.get(name)}, now it is {now}; go back to "
                "what it was or give this run a name (--run.name NAME)"
            )


def versions() -> dict[str, Any]:
    packages = ("dualpath", "torch", "lightning", "litdata", "torchmetrics", "jsonargparse")
    return {
        "packages": package_versions(packages),
        "python": platform.python_version(),
        "git_commit": _git_commit(),
    }


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of installed packages, and of this one, which may be a checkout on the path."""
    return {
        name: __version__ if name == "dualpath" else importlib.metadata.version(name)
        for name in names
    }


def _git_commit() -> str | None:
    """The checkout's commit, with `+changes` where files differ from it; None outside of one."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # not in another's repository
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
