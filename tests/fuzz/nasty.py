"""What people, editors and dying machines put where something else belongs; wrong recipes."""

import copy
import dataclasses
import random
from collections.abc import Callable
from typing import Any

import yaml

from dualpath_cli.recipe.recipes import Recipe
from dualpath_cli.recipe.settings import SECTIONS

TEXTS = [
    "", " ", "-", "--", "---", ".", "..", "../../x", "/", "//", "~", "a/b", "a\\b", "x" * 300,
    "x" * 5000, "é" * 120, "😀", "\u202e", "a\nb", "a\tb", "\x00", "\x1b[31m", "a\udcffb",
    "[red]", "[/x]", "[bold]a[/bold]", ":smile:", "$x^$", "{}", "{0}", "%s", "%(x)s", "s3://b/x",
    "S3://b", "gs://b/x", "http://127.0.0.1:9/x", "hf:a/b", "null", "nan", "true", "1e400", "-1",
    "0x_", "'", '"', "`id`", "$(id)", "a=b", "=", "a,b", "*", "?", "[", "**/*", "con", "NAME=PATH",
    "007", "1984", "!!binary aGVsbG8=", "&a [*a]", "<<", "base", "٣", "\ufeffa", "a" + " " * 200,
]  # fmt: skip
NUMBERS: list[Any] = [
    0, -1, 1, 2, 3, 2**31, 2**32, 2**63, 2**64, 10**9, 10**18, 10**19, 10**99, -(10**30), 0.0, -0.5,
    0.5, 1.5, 1e-320, 1e300, float("inf"), float("-inf"), float("nan"), 1e9, 7, 64, 255, 1000,
]  # fmt: skip
OTHERS: list[Any] = [
    None, True, False, [], {}, [None], [[]], [1, 2], [1, 1], ["a"], {"a": 1}, {"a": {"b": {}}},
    {1: 2}, {None: None}, {"": ""}, [0], [-1], [10**9], {"class_path": "x"},
    {"class_path": "os.system", "init_args": {"command": "true"}}, {"class_path": 3},
]  # fmt: skip


def value(draw: random.Random) -> Any:
    """A value that is rarely right."""
    return draw.choice(draw.choice([TEXTS, NUMBERS, OTHERS]))


def word(draw: random.Random) -> str:
    """A value as a word of a command, which holds no NUL."""
    return str(value(draw)).replace("\x00", "0")


def damaged(draw: random.Random, content: bytes) -> bytes:
    """Some bytes after an accident: cut, flipped, doubled, overwritten, moved."""
    way = draw.randrange(9)
    place, other = sorted(draw.choices(range(len(content) + 1), k=2))
    before, behind = content[:place], content[other:]
    lines = content.splitlines(keepends=True)
    ways: list[Callable[[], bytes]] = [
        lambda: b"",
        lambda: before,
        lambda: before + draw.randbytes(draw.randint(1, 8)) + content[place + 1 :],
        lambda: before + behind,
        lambda: content[:other] + content[place:],
        lambda: draw.randbytes(draw.choice([1, 100, 5000])),
        lambda: bytes(len(content)),
        lambda: b"".join(draw.sample(lines, len(lines))),
        lambda: before + word(draw).encode(errors="surrogateescape") + behind,
    ]
    return ways[way]()


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{below}: &{below} [{','.join(9 * [f'*{above}'])}]\n"
    for above, below in zip("abcdefgh", "bcdefghi", strict=True)
)
"""Nine lines that stand for 9 to the 9 values."""
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{below}: &{below} {{<<: [{','.join(9 * [f'*{above}'])}]}}\n"
    for above, below in zip("abcdefgh", "bcdefghi", strict=True)
)
PIECES = [
    "trainer:\n", "optim:\n  lr:\n", "run: {log_every: }\n", "model: !!binary aGVsbG8=\n",
    "model: !!python/object/apply:os.system [true]\n", "run: {name: !!binary aGVsbG8=}\n",
    "a: " + "[" * 3000 + "\n", "a: " + "{a: " * 3000 + "\n", "- " * 3000, "? " * 500, "a:\n" * 2,
    BOMB, MERGES, "trainer:\n  callbacks: &a [*a]\n", "<<: {model: 3}\n", "<<: 3\n", "base: [[]]\n",
    "base: case\n", "base: case.yaml\n", "base: [tiny, nowhere]\n", "base: ''\n", "base: /\n",
    "---\n", "...\n", "%YAML 9.9\n", "\t", "&a *a", "|\n", ">", "'", '"', "\x00", "\ufeff", "\x85",
    "seed_everything: 0x_\n", "seed_everything: 1:1:1\n", f"seed_everything: {'9' * 5000}\n",
    "seed_everything: 0x" + "f" * 200 + "\n", "? [a]\n: b\n", "{}: {}\n", "=: =\n", "a: =\n",
    "x: " + "y" * 60000 + "\n", "x: [" + "1," * 15000 + "]\n", "data: {val: {a: *b}}\n",
    "model: {n_layers: 1000000000}\n", "data: {val: {'../x': tiny.yaml}}\n", "date: 2020-01-01\n",
]  # fmt: skip
"""Lines of YAML that mean something else than they seem to."""


def mutated(draw: random.Random, recipe: Recipe) -> bytes:
    """The text of a recipe with one to three mistakes."""
    changed = copy.deepcopy(recipe)
    in_yaml = draw.random() < 0.5
    for _ in range(draw.randint(0 if in_yaml else 1, 3)):
        _mistake(draw, changed)
    text = yaml.safe_dump(changed, sort_keys=False, allow_unicode=True)
    content = text.encode(errors="surrogatepass")
    if not in_yaml:
        return content
    if draw.random() < 0.5:
        return damaged(draw, content)
    lines = content.splitlines(keepends=True)
    piece = draw.choice(PIECES).encode(errors="surrogatepass")
    lines.insert(draw.choice([0, len(lines), draw.randint(0, len(lines))]), piece)
    return b"".join(lines)


def _mistake(draw: random.Random, recipe: Recipe) -> None:
    """Changes a key or a value of a section, or a section."""
    way = draw.randrange(8)
    if way == 0:
        recipe[draw.choice([*recipe, *SECTIONS, "base", "x"])] = value(draw)
        return
    section = draw.choice(list(SECTIONS))
    if not isinstance(recipe.get(section), dict):
        recipe[section] = {}
    place: dict[Any, Any] = recipe[section]
    fields = [field.name for field in dataclasses.fields(SECTIONS[section])]
    key = draw.choice(fields)
    if way == 1:
        other = draw.choice([*TEXTS, *NUMBERS, None, True, key + "x"])
        place[other] = value(draw)
    elif way == 2:
        place.pop(key, None)
    elif way == 3 and section == "data":
        place["val"] = {word(draw): draw.choice([word(draw), "val.jsonl"])}
    else:
        place[key] = value(draw)
