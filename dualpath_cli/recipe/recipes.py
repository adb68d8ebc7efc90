"""Finds a recipe by path or bare name and resolves its `base:`. Torch-free.

A recipe is a YAML file with the sections `model`, `optim`, `run`, `data`, `trainer` and the number
`seed_everything`. `base: NAME` (or a list of names) starts from other recipes; later ones win, key
by key.
"""

import re
import sys
from collections.abc import Hashable, Iterable
from functools import cache, reduce
from pathlib import Path
from typing import Any

import yaml

from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.output import is_first_rank
from dualpath_cli.system import read_text

Recipe = dict[str, Any]

MOST_CHARACTERS, MOST_VALUES = 50_000, 10_000
"""Characters of a recipe, and its values, those of an alias counted again."""
_MOST = 10**300


def recipe_folder() -> Path:
    """The folder of packaged recipes: `recipes/` in a checkout, a copy of it inside the wheel."""
    package = Path(__file__).parents[1]
    packaged = package / "_recipes"
    return packaged if packaged.is_dir() else package.parent / "recipes"


def names(kind: str = "") -> list[str]:
    """Bare names of all packaged recipes of a kind, sorted: see `find`."""
    return sorted(path.stem for path in (recipe_folder() / kind).glob("*.yaml"))


def find(recipe: str, beside: Path | None = None, kind: str = "") -> Path:
    """Returns the file that `recipe` means: a path has a slash or `.yaml`, a name is packaged.

    A path is relative to `beside`, the folder of the recipe that names it, or to the current one.
    The repository's path of a packaged recipe means that one where no such file is here, and
    standard error says so. `kind` is the folder of packaged recipes, `data` for preparations.
    """
    if recipe in ("-", "/dev/stdin"):
        raise UserError(f"recipe '{recipe}': every rank reads the recipe anew; give a file")
    folder = recipe_folder() / kind
    is_path = "/" in recipe or recipe.endswith((".yaml", ".yml"))
    if is_path:
        for path in ([] if beside is None else [beside / recipe]) + [Path(recipe)]:
            if path.is_file():
                return path
    packaged = folder / (Path(recipe).name if is_path else f"{recipe}.yaml")
    in_repository = Path(recipe) == Path("recipes", kind, packaged.name)
    if packaged.is_file() and (in_repository or not is_path):
        if in_repository:
            _say_packaged(recipe)
        return packaged
    hint = did_you_mean(Path(recipe).stem, names(kind)) or f"; the packaged ones are in {folder}"
    if not is_path and Path(recipe).is_file():
        hint = f"; a file is given as ./{recipe}"
    what = "no such file" if is_path else "no packaged recipe has this name"
    raise UserError(f"no recipe '{recipe}': {what}{hint}")


@cache  # once a process: a command may read its recipe several times
def _say_packaged(recipe: str) -> None:
    if is_first_rank():
        print(f"'{recipe}' is not a file here; the packaged recipe is taken", file=sys.stderr)


def load_recipes(names: Iterable[str]) -> Recipe:
    """Reads recipes, each by path or bare name, as one: later ones win, key by key."""
    return reduce(merge, map(load, names), {})


def load(recipe: str) -> Recipe:
    """Reads a recipe by path or bare name, with its bases resolved; the result has no `base`."""
    return _load(find(recipe), ())


def merge(below: Recipe, above: Recipe) -> Recipe:
    """Returns both recipes as one: mappings merge key by key, everything else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def read(path: Path) -> Recipe:
    """Reads a file as one recipe, `base` not yet resolved."""
    return parse(read_text(path), str(path))


def parse(text: str, name: str) -> Recipe:
    """Reads YAML text as one recipe, `base` not yet resolved; `name` is for the error message.

    Raises UserError for text that is not YAML, not a mapping, or too much.
    """
    try:
        content = _read(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        what = getattr(error, "problem", None) or getattr(error, "reason", "it is no YAML")
        raise UserError(f"recipe {name}{where} cannot be read: {what}") from error
    if content is None:
        raise UserError(f"recipe {name} is empty; give sections, such as model: {{n_layers: 4}}")
    if not isinstance(content, dict):  # whose value may be anything: it is not quoted
        kind = {"str": "a text", "list": "a list"}.get(type(content).__name__, "one value")
        raise UserError(f"recipe {name} must be a mapping of sections, not {kind}")
    return content


def parse_value(text: str) -> Any:
    """Reads YAML text as a value: a number, true, null, a list, a mapping, or else the text."""
    try:
        return _read(text)
    except yaml.YAMLError:
        return text


def _load(path: Path, seen: tuple[Path, ...]) -> Recipe:
    if path.resolve() in seen:
        raise UserError(f"recipe {path} has itself as a base; remove it from `base:`")
    own = read(path)
    bases = own.pop("base", [])
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise UserError(f"recipe {path}: base must be a name or a list of names, not {bases!r:.40}")
    below = [_load(find(base, beside=path.parent), (*seen, path.resolve())) for base in bases]
    return reduce(merge, [*below, own], {})


def _read(text: str) -> Any:
    """Returns the value of YAML text; raises only YAMLError."""
    if len(text) > MOST_CHARACTERS:
        raise yaml.MarkedYAMLError(problem=f"it has more than {MOST_CHARACTERS:,} characters")
    try:
        content = yaml.load(text, Loader=_Loader)
    except RecursionError:
        raise yaml.MarkedYAMLError(problem="it is nested too deeply") from None
    except (ValueError, TypeError) as error:  # such as 0x_, which has the form of a number
        raise yaml.MarkedYAMLError(problem=str(error)) from None
    queue, count = [content], 0
    while queue:
        value = queue.pop()
        if not isinstance(value, dict | list | str | int | float | None):
            raise yaml.MarkedYAMLError(problem=f"{type(value).__name__} is no value of a recipe")
        if isinstance(value, dict | list):
            count += len(value)
            queue.extend(value.values() if isinstance(value, dict) else value)
        if isinstance(value, int) and abs(value) > _MOST:  # beyond a float
            raise yaml.MarkedYAMLError(problem="it has a number of hundreds of digits")
        if count > MOST_VALUES:
            raise yaml.MarkedYAMLError(problem=f"it stands for more than {MOST_VALUES:,} values")
    return content


class _Loader(yaml.SafeLoader):
    """YAML with 1.2's numbers (PyYAML alone reads `5e-4` as text), no dates, no key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Refuses a repeated key, of which PyYAML would keep the last."""
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key '{key.value}' appears twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return {str(key): value for key, value in super().construct_mapping(node, deep).items()}


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if not tag.endswith(":timestamp")]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)
