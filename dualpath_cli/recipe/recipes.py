"""Finds a recipe by path or bare name and resolves its `base:`. Torch-free.

A recipe is a YAML file with the sections `model`, `optim`, `run`, `data`, `trainer` and the number
`seed_everything`. `base: NAME` (or a list of names) starts from other recipes; later ones win, key
by key.
"""

import re
import sys
from collections.abc import Iterable
from functools import cache, reduce
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.files import read_text
from dualpath_cli.output.streams import is_first_rank

Recipe = dict[str, Any]

MOST_CHARACTERS, MOST_VALUES, MOST_LEVELS, MOST_DIGITS = 50_000, 10_000, 50, 100
"""Characters of a recipe, its values (counted again for each alias), its levels of nesting, and
digits of a number."""


def recipe_folder() -> Path:
    """The folder of packaged recipes: `recipes/` in a checkout, a copy of it inside the wheel."""
    package = Path(__file__).parents[1]
    packaged = package / "_recipes"
    return packaged if packaged.is_dir() else package.parent / "recipes"


def names(kind: str = "") -> list[str]:
    """Bare names of all packaged recipes of a kind, sorted: see `find`."""
    return sorted(path.stem for path in (recipe_folder() / kind).glob("*.yaml"))


def find(recipe: str, beside: Path | None = None, kind: str = "") -> Path:
    """Returns the file that `recipe` means: a path, a path relative to `beside`, or a bare name.

    The repository's path of a packaged recipe means that one where no such file is here, and
    standard error says so. `kind` is the folder of packaged recipes, `data` for preparations.
    Raises UserError if there is no such file and no packaged recipe of that name.
    """
    named = recipe if "/" in recipe or recipe.endswith(".yaml") else f"{recipe}.yaml"
    for candidate in (Path(recipe), beside and beside / recipe, beside and beside / named):
        if candidate and candidate.is_file():
            return candidate
    folder = recipe_folder() / kind
    packaged = folder / Path(named).name
    in_repository = Path(recipe) == Path("recipes", kind, packaged.name)
    if packaged.is_file() and ("/" not in recipe or in_repository):
        if in_repository:
            _say_packaged(recipe)
        return packaged
    hint = did_you_mean(Path(recipe).stem, names(kind)) or f"; the packaged ones are in {folder}"
    raise UserError(f"no recipe '{recipe}': neither a file nor a packaged name{hint}")


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
    if len(text) > MOST_CHARACTERS:
        raise UserError(
            f"recipe {name} has more than {MOST_CHARACTERS:,} characters; give a shorter one"
        )
    try:
        content = _read(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        what = getattr(error, "problem", None) or getattr(error, "reason", "it is no YAML")
        raise UserError(f"recipe {name}{where} cannot be read: {what}") from error
    if not isinstance(content, dict):
        raise UserError(f"recipe {name} must be a mapping of sections, not {_kind(content)}")
    return content


def parse_value(text: str) -> Any:
    """Reads YAML text as a recipe's value: a number, true, null, a list, a mapping, or text.

    A value that is not YAML is text.
    """
    try:
        return _read(text) if len(text) <= MOST_CHARACTERS else text
    except yaml.YAMLError:
        return text


def _kind(content: Any) -> str:
    """The kind of content that is no recipe. Quotes none of it: the file may hold anything."""
    return {str: "a text", list: "a list", type(None): "None"}.get(type(content), "one value")


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
    try:
        return yaml.load(text, Loader=_Loader)
    except RecursionError:
        raise yaml.MarkedYAMLError(problem=_TOO_DEEP) from None
    except ValueError:  # such as 0x_, which has the form of a number
        raise yaml.MarkedYAMLError(problem="it holds a number without digits") from None


_TOO_DEEP = f"it is nested more than {MOST_LEVELS} levels deep"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_TEXT, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


def _check(
    node: yaml.Node, measured: dict[int, tuple[int, int]], above: frozenset[int]
) -> tuple[int, int]:
    """Returns a node's number of values, counted again for each alias, and of levels of nesting.

    Scalar keys become text. `measured` has the results of earlier nodes by their ids, `above` the
    ids of the nodes around this one.

    Raises:
        MarkedYAMLError: for more than a recipe may have, and for a value that holds itself.
    """
    if id(node) in measured:
        return measured[id(node)]
    values, levels, problem = 1, 1, ""
    if isinstance(node, yaml.ScalarNode):
        if node.tag in _NUMBERS and len(node.value) > MOST_DIGITS:
            problem = f"a number of more than {MOST_DIGITS} digits"
    elif id(node) in above:
        problem = "a value holds itself"
    else:
        parts = list(node.value)
        if isinstance(node, yaml.MappingNode):
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                    key.tag = _TEXT
            parts = list(chain.from_iterable(node.value))
        for part in parts:
            more, deeper = _check(part, measured, above | {id(node)})
            values, levels = values + more, max(levels, deeper + 1)
        if values > MOST_VALUES:
            problem = f"it stands for more than {MOST_VALUES:,} values"
        elif levels > MOST_LEVELS:
            problem = _TOO_DEEP
    if problem:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    measured[id(node)] = values, levels
    return values, levels


class _Loader(yaml.SafeLoader):
    """YAML with 1.2's numbers (PyYAML alone reads `5e-4` as a string), no dates, no key twice.

    Keys are text, values those of JSON, and aliases cannot make a huge value of a small text.
    """

    def get_single_node(self) -> yaml.Node | None:
        """Checks the whole document before anything is made of it."""
        node = super().get_single_node()
        if node is not None:
            _check(node, {}, frozenset())
        return node

    def fetch_flow_collection_start(self, token: type[yaml.Token]) -> None:
        """Refuses deeply nested brackets while they are read: each takes longer than the last."""
        if self.flow_level >= MOST_LEVELS:
            raise yaml.MarkedYAMLError(problem=_TOO_DEEP, problem_mark=self.get_mark())
        super().fetch_flow_collection_start(token)

    def fetch_tag(self) -> None:
        """Refuses tags: `!!binary`, `!!set` and others make what no recipe holds."""
        raise yaml.MarkedYAMLError(
            problem="a tag, as ! begins one; put text into quotes", problem_mark=self.get_mark()
        )

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuses a repeated key: PyYAML would silently keep the last."""
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key '{key.value}' appears twice", problem_mark=key.start_mark
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
