"""Consent to import the classes that something read names: importing them runs their code.

A recipe that the user gives is the user's own, and so is a word of the command line. A run, a file
or a folder that is read may come from anybody: what its `model.gate` and `model.combination` name
is imported only where the user agrees, and never from inside of what is read.
"""

import importlib.util
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from dualpath_cli.errors import UserError

OPTION = "--own-classes"
ALL = "*"

_NAMED: set[str] = set()  # classes that something read names
_READ: set[Path] = set()  # folders that are read
_AGREED: set[str] = set()


def forget() -> None:
    """Ends with a command what was read and agreed to for it."""
    for known in (_NAMED, _READ, _AGREED):
        known.clear()


def note_read(place: Path, model: Mapping[str, Any]) -> None:
    """Notes that a folder is read, and what the `model` section found there names."""
    _READ.add(place.resolve())
    _NAMED.update(_names(model))


def agree(model: Mapping[str, Any], to_all: bool = False) -> None:
    """Notes that the user gave this `model` section, or agrees `to_all` classes."""
    _AGREED.update(_names(model), [ALL] if to_all else [])


def _names(model: Mapping[str, Any]) -> list[str]:
    return [str(model[role]) for role in ("gate", "combination") if role in model]


def check(path: str, start: str) -> None:
    """Checks that a class may be imported; `start` begins the message."""
    if path not in _NAMED:
        return
    if not _AGREED & {path, ALL}:
        raise UserError(
            f"{start} is named by what is read, and importing it runs its code; give {OPTION} "
            "if you trust it"
        )
    for place in _places(path.rpartition(".")[0]):
        for folder in _READ.intersection([place, *place.parents]):
            raise UserError(
                f"{start} would be imported from '{place}', inside of '{folder}', which is read; "
                "move a file that you trust out of there"
            )


def _places(module: str) -> list[Path]:
    """Files and folders that importing a module runs or looks into, found without running any."""
    first, *rest = module.split(".")
    try:  # as Python does, which knows of packages that are installed to be edited
        spec = importlib.util.find_spec(first)
    except ValueError:  # what runs as a script has none
        return []
    places: list[Path] = []
    while spec is not None:
        search = list(spec.submodule_search_locations or [])
        found = [*search, spec.origin] if spec.has_location else search
        places += [Path(str(place)).resolve() for place in found]
        if not rest:
            break
        spec = PathFinder.find_spec(f"{spec.name}.{rest.pop(0)}", search)
    return places
