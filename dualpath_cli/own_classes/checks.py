"""Custom classes that a recipe names: tried before anything slow, and compared with a run's.

A run folder keeps their source under `classes/` and its hash in versions.json, as numbers follow
from it as they do from the recipe.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from dualpath_cli.config import ModelConfig
from dualpath_cli.errors import UserError
from dualpath_cli.files import write_text
from dualpath_cli.output import is_first_rank
from dualpath_cli.own_classes.classes import own_class, own_roles, sources
from dualpath_cli.own_classes.consent import OPTION

CLASSES = "classes"  # folder of a run folder that holds their source


class _Trained(Protocol):
    @property
    def checkpoint(self) -> Path: ...

    @property
    def facts(self) -> Mapping[str, Any]: ...


def check_classes(config: ModelConfig) -> None:
    """Tries each class on a few tokens; imports torch where there is one."""
    if roles := own_roles(config):
        for role in roles:  # found before torch is imported to try them
            own_class(config, role)
        from dualpath_cli.own_classes.trial import try_classes

        try_classes(config)


def option_of(config: ModelConfig) -> str:
    """The option that a command needs to read this model: ` --own-classes`, or nothing."""
    return f" {OPTION}" if own_roles(config) else ""


def check_as_trained(run: _Trained, config: ModelConfig) -> None:
    """The same for a run that is scored; says where a class has changed since it was trained."""
    check_classes(config)
    if not own_roles(config):
        return
    for path in _changed(run.facts, config):
        if is_first_rank():
            print(f"{path} has changed since {run.checkpoint} was trained with it", file=sys.stderr)


def check_as_begun(
    folder: Path,
    facts: Mapping[str, Any],
    config: ModelConfig,
    way_out: str = "give this run a name (--run.name NAME)",
) -> None:
    """Refuses to continue a run, of these facts, with a class that has changed."""
    for path in _changed(facts, config):
        kept = _copy(folder, sources(config)[path].module)
        raise UserError(
            f"{folder} was begun with another source of {path}, kept in {kept}; go back to that "
            f"or {way_out}"
        )


def hashes(config: ModelConfig) -> dict[str, str]:
    return {path: source.sha256 for path, source in sources(config).items()}


def keep_sources(folder: Path, config: ModelConfig) -> None:
    for source in sources(config).values():
        copy = _copy(folder, source.module)
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_text(copy, source.text)


def _changed(facts: Mapping[str, Any], config: ModelConfig) -> list[str]:
    """Paths of the classes whose source is not that of a run's facts, where that is known."""
    before = facts.get("classes")
    if not isinstance(before, dict):
        return []
    return [path for path, now in hashes(config).items() if before.get(path, now) != now]


def _copy(folder: Path, module: str) -> Path:
    return folder / CLASSES / f"{module.replace('.', '/')}.py"
