"""Recipes with mistakes: in their values, keys and types, and in their YAML."""

import copy
import dataclasses
import random
from typing import Any

import yaml

from dualpath_cli.recipe.recipes import Recipe
from dualpath_cli.recipe.settings import SECTIONS
from tests.fuzz import nasty

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
        return nasty.damaged(draw, content)
    lines = content.splitlines(keepends=True)
    piece = draw.choice(PIECES).encode(errors="surrogatepass")
    lines.insert(draw.choice([0, len(lines), draw.randint(0, len(lines))]), piece)
    return b"".join(lines)


def _mistake(draw: random.Random, recipe: Recipe) -> None:
    """Changes a key or a value of a section, or a section."""
    way = draw.randrange(8)
    if way == 0:
        recipe[draw.choice([*recipe, *SECTIONS, "base", "x"])] = nasty.value(draw)
        return
    section = draw.choice(list(SECTIONS))
    if not isinstance(recipe.get(section), dict):
        recipe[section] = {}
    place: dict[Any, Any] = recipe[section]
    fields = [field.name for field in dataclasses.fields(SECTIONS[section])]
    key = draw.choice(fields)
    if way == 1:
        other = draw.choice([*nasty.TEXTS, *nasty.NUMBERS, None, True, key + "x"])
        place[other] = nasty.value(draw)
    elif way == 2:
        place.pop(key, None)
    elif way == 3 and section == "data":
        place["val"] = {nasty.word(draw): draw.choice([nasty.word(draw), "val.jsonl"])}
    else:
        place[key] = nasty.value(draw)
