"""Finds a recipe by path or bare name and resolves its `base:`. Torch-free.

A recipe is a YAML file with the sections `model`, `optim`, `run`, `data`, `trainer` and
the number `seed_everything`. `base: NAME` (or a list of names) starts from other
recipes; of several, later recipes win, key by key.
"""

import json
import os
import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.base.files import read_text
from dualpath_cli.recipe.dialect import Dumper, Loader, yaml_fault

Recipe = dict[str, Any]

_PACKAGE = Path(__file__).parents[1]
_IN_WHEEL = _PACKAGE / "_recipes"
PACKAGED = _IN_WHEEL if _IN_WHEEL.is_dir() else _PACKAGE.parent / "recipes"
"""The folder of packaged recipes: `recipes/` in a checkout, a copy of it inside the
wheel."""

MOST_CHARACTERS = 50_000
"""Most characters of a recipe."""
MOST_PARTS = 40_000
"""Most parts of a recipe's JSON, with each alias expanded."""


def recipe_names(kind: str = "") -> list[str]:
    """Bare names of all packaged recipes of a kind, sorted: see `find_recipe`."""
    return sorted(path.stem for path in (PACKAGED / kind).glob("*.yaml"))


@dataclass(frozen=True)
class Recipes:
    """Lists the packaged recipes, each with its first sentence. A recipe is given by
    its name: --config NAME; later ones are overlays.
    """


def listing(_: Recipes) -> str:
    """The names of all packaged recipes, with the first sentence of each file's
    comment."""
    lines: list[str] = []
    for command, kind in (("fit", ""), ("prepare", "data")):
        names = recipe_names(kind)
        width = max(map(len, names)) + 2
        lines.append(f"dualpath {command} --config NAME:")
        for name in names:
            sentence = _first_sentence(find_recipe(name, kind=kind))
            lines.append(f"  {name:{width}}{sentence}")
    return "\n".join(lines)


def _first_sentence(path: Path) -> str:
    """The first sentence of the comment at the top of a recipe, without references."""
    lines = read_text(path).splitlines()
    comment = takewhile(lambda line: line.startswith("#"), lines)
    first = " ".join(line.lstrip("# ") for line in comment).partition(". ")[0]
    return re.sub(r" \([^)]*\)", "", first).rstrip(".")


def find_recipe(recipe: str, named_by: Path | None = None, kind: str = "") -> Path:
    """Returns the file that `recipe` means: a path has a slash or `.yaml`, a name is
    packaged.

    A path is relative to the folder of `named_by`, the recipe that has the path as a
    base, or to the current folder. A path such as recipes/NAME.yaml means the packaged
    recipe if there is no such file. `kind` is the folder of packaged recipes, `data`
    for preparations.
    """
    packaged = PACKAGED / kind
    given = Path(recipe)
    if recipe in ("-", "/dev/stdin") or given.is_fifo():
        raise UserError(
            f"recipe '{recipe}': a recipe may be read more than once, which a pipe "
            "cannot; give a file"
        )
    is_path = "/" in recipe or recipe.endswith((".yaml", ".yml"))

    places = [packaged / f"{recipe}.yaml"]
    if is_path:
        beside = Path() if named_by is None else named_by.parent
        places = [beside / recipe, given]
    if given.parent == Path("recipes", kind):
        places.append(packaged / given.name)
    for path in places:
        if path.is_file():
            return path

    hint = did_you_mean(given.stem, recipe_names(kind))
    if not hint:
        hint = "; `dualpath recipes` lists the packaged ones"
    if not is_path and given.is_file():
        hint = f"; a file is given as ./{recipe}"
    missing = "no such file" if is_path else "no packaged recipe has this name"
    if is_path and any(path.is_dir() for path in places):
        missing = "it is a folder"
    of = "" if named_by is None else f", the base of {named_by}"
    raise UserError(f"no recipe '{recipe}'{of}: {missing}{hint}")


def load_recipe(
    recipe: str, named_by: Path | None = None, seen: tuple[Path, ...] = ()
) -> Recipe:
    """Reads a recipe by path or bare name, with its bases resolved; the result has no
    `base`.

    Bases are relative to the recipe's folder. `named_by` has this recipe as a base, and
    `seen` are all recipes that build on this one.
    """
    path = find_recipe(recipe, named_by)
    if path.resolve() in seen:
        raise UserError(f"recipe {path} has itself as a base; remove it from `base:`")

    own = read_recipe_file(path)
    bases = own.pop("base", [])
    if isinstance(bases, str):
        bases = [bases]
    is_list = isinstance(bases, list)
    if not is_list or not all(isinstance(base, str) for base in bases):
        raise UserError(
            f"recipe {path}: base must be a name or a list of names, not {bases!r:.40}"
        )

    resolved: Recipe = {}
    for base in bases:
        below = load_recipe(os.path.expanduser(base), path, (*seen, path.resolve()))
        resolved = merge(resolved, below)
    return merge(resolved, own)


def merge(below: Recipe, above: Recipe) -> Recipe:
    """Returns `below` with `above` over it: mappings merge key by key, others are
    replaced."""
    merged = dict(below)
    for key, value in above.items():
        own = merged.get(key)
        if isinstance(own, dict) and isinstance(value, dict):
            value = merge(own, value)
        merged[key] = value
    return merged


def nested(key: str, value: Any) -> Recipe:
    """A value by its dotted key, as sections of a recipe."""
    for part in reversed(key.split(".")):
        value = {part: value}
    recipe: Recipe = value
    return recipe


def read_recipe_file(path: Path) -> Recipe:
    """Reads a file as one recipe, without resolving `base`."""
    return parse_recipe(read_text(path), str(path))


def parse_recipe(text: str, name: str) -> Recipe:
    """Reads YAML text as one recipe, without resolving `base`; `name` is for the error
    message.

    Raises UserError for text that is not YAML, not a mapping, or too long.
    """
    try:
        content = _bounded_content(text)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise UserError(
            f"recipe {name}{where} cannot be read: {yaml_fault(error)}"
        ) from None

    if not isinstance(content, dict):  # content of any kind and size: not quoted
        fault = "is empty" if content is None else "is not a mapping"
        raise UserError(
            f"recipe {name} {fault}; give sections, such as model: {{n_layers: 4}}"
        )
    return content


def _bounded_content(text: str) -> Any:
    """The content of YAML text. Raises ValueError where it is too large.

    A few lines of aliases can stand for billions of values, which the JSON would write
    out.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"it has more than {MOST_CHARACTERS:,} characters")

    content = yaml.load(text, Loader=Loader)
    parts = json.JSONEncoder().iterencode(content)
    for count, part in enumerate(parts):
        if count > MOST_PARTS:
            raise ValueError(
                f"it has more than {MOST_PARTS:,} parts, with all aliases expanded"
            )
        # A float has 309 digits at most.
        if len(part) > 300 and part.strip("[, -").isdecimal():
            raise ValueError("it has a number of hundreds of digits")
    return content


def dump(recipe: Recipe) -> str:
    """A recipe as YAML text, from which `parse_recipe` restores the recipe."""
    return yaml.dump(recipe, Dumper=Dumper, sort_keys=False)
