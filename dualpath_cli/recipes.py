"""Finds a recipe by path or bare name and resolves its `base:`. Torch-free.

A recipe is a YAML file with the sections `model`, `optim`, `run`, `data`, `trainer` and the number
`seed_everything`. `base: NAME` (or a list of names) starts from other recipes; later ones win, key
by key.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from dualpath_cli.errors import UserError, did_you_mean

Recipe = dict[str, Any]


def recipe_folder() -> Path:
    """The folder of packaged recipes: `recipes/` in a checkout, a copy of it inside the wheel."""
    package = Path(__file__).parent
    packaged = package / "_recipes"
    return packaged if packaged.is_dir() else package.parent / "recipes"


def names() -> list[str]:
    """Bare names of all packaged recipes, sorted."""
    return sorted(path.stem for path in recipe_folder().glob("*.yaml"))


def find(recipe: str, beside: Path | None = None) -> Path:
    """Returns the file that `recipe` means: a path, a path relative to `beside`, or a bare name.

    Raises:
        UserError: if there is no such file and no packaged recipe of that name.
    """
    named = recipe if "/" in recipe or recipe.endswith(".yaml") else f"{recipe}.yaml"
    for candidate in (Path(recipe), beside and beside / recipe, beside and beside / named):
        if candidate and candidate.is_file():
            return candidate
    packaged = recipe_folder() / named
    if "/" not in recipe and packaged.is_file():
        return packaged
    hint = (
        did_you_mean(Path(recipe).stem, names()) or f"; the packaged ones are in {recipe_folder()}"
    )
    raise UserError(f"no recipe '{recipe}': neither a file nor a packaged name{hint}")


def load(recipe: str) -> Recipe:
    """Reads a recipe by path or bare name, with its bases resolved; the result has no `base`.

    Raises:
        UserError: for a recipe that is missing, not YAML, not a mapping, or its own base.
    """
    return _load(find(recipe), ())


def merge(below: Recipe, above: Recipe) -> Recipe:
    """Returns both recipes as one: mappings merge key by key, everything else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def parse(text: str, name: str) -> Recipe:
    """Reads YAML text as one recipe, `base` not yet resolved; `name` is for the error message."""
    try:
        content = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        what = getattr(error, "problem", None) or "cannot be read"
        raise UserError(f"recipe {name}{where} cannot be read: {what}") from error
    if not isinstance(content, dict):
        raise UserError(f"recipe {name} must be a mapping of sections, not {content!r:.40}")
    return content


def parse_value(text: str) -> Any:
    """Reads YAML text as a recipe's value: a number, true, null, a list, a mapping, or text.

    What is no YAML is text.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError):  # a number of thousands of digits is a ValueError
        return text


def _load(path: Path, seen: tuple[Path, ...]) -> Recipe:
    if path.resolve() in seen:
        raise UserError(f"recipe {path} has itself as a base; remove it from `base:`")
    try:
        own = parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"recipe {path} cannot be read: {error}") from error
    bases = own.pop("base", [])
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise UserError(f"recipe {path}: base must be a name or a list of names, not {bases!r:.40}")
    resolved: Recipe = {}
    for base in bases:
        found = find(base, beside=path.parent)
        resolved = merge(resolved, _load(found, (*seen, path.resolve())))
    return merge(resolved, own)


class _Loader(yaml.SafeLoader):
    """YAML with 1.2's numbers (PyYAML alone reads `5e-4` as a string), no dates, no key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuses a key that stands twice: PyYAML would keep the last and say nothing."""
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key '{key.value}' stands there twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if not tag.endswith(":timestamp")]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)
