"""Imports between the rooms of the package run down only, as docs/architecture.md draws them."""

import ast
import re
from collections import Counter
from dataclasses import astuple
from pathlib import Path

from dualpath_cli.cli.commands import COMMANDS

ROOT = Path(__file__).parents[2]
PACKAGE, PREPARATION = ROOT / "dualpath_cli", ROOT / "data_prep"
ROWS = [
    ["cli", "api"],
    ["compare", "export"],
    ["study", "evaluation"],
    ["training", "decoding"],
    ["run", "flops", "data_prep"],
    ["recipe", "data"],
    ["model"],
    ["spec", "report", "kernels"],
    ["base"],
]
ROW_OF = {room: number for number, row in enumerate(ROWS) for room in row}
FILES = [
    path
    for folder in (PACKAGE, PREPARATION)
    for path in folder.rglob("*.py")
    if path.name != "__main__.py" and path != PACKAGE / "__init__.py"
]
EQUATIONS = ("block.py", "deep_path.py", "sublayer.py")
MOST_LINES, MOST_ARGUMENTS = 20, 3
"""Of a forward pass in the files of `model/` that hold the equations; `self` is not counted."""


def room_named(module: str) -> str:
    """`data_prep`, or the room of the package in a module's dotted name."""
    package, *names = module.split(".")
    return names[0] if package == PACKAGE.name and names else package


def room_of(path: Path) -> str:
    return room_named(".".join(path.relative_to(ROOT).with_suffix("").parts))


def rooms_imported(path: Path) -> set[str]:
    """The rooms that a file imports anywhere, also within a function, or as a command's strings."""
    modules = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, path
            whole = node.module == PACKAGE.name
            modules += [f"{node.module}.{a.name}" for a in node.names] if whole else [node.module]
    if path == PACKAGE / "cli" / "commands.py":
        words = [word for command in COMMANDS.values() for word in astuple(command)]
        modules += [word.partition(":")[0] for word in words if ":" in str(word)]
    return {room for module in modules if (room := room_named(str(module))) in ROW_OF}


def test_every_file_is_in_one_of_sixteen_rooms():
    assert {room_of(path) for path in FILES} == set(ROW_OF)
    assert len(ROW_OF) == 16 + len({"api", "data_prep"})


def test_a_room_imports_only_from_the_rows_below_its_own():
    wrong = [
        f"{path.relative_to(ROOT)} imports {other}"
        for path in FILES
        for other in rooms_imported(path) - {room_of(path)}
        if ROW_OF[other] <= ROW_OF[room_of(path)]
    ]
    assert not wrong
    assert "data_prep" in rooms_imported(PACKAGE / "cli" / "commands.py")


def test_no_name_of_a_class_stands_for_two():
    names = Counter(
        node.name
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, times in names.items() if times > 1] == []


def test_the_page_draws_these_rows():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    lines = page.split("```")[1].splitlines()
    drawn = [re.findall(r"(\w+)(?:/|\.py)", line) for line in lines]
    assert [rooms for rooms in drawn if rooms] == ROWS


def test_each_forward_of_the_equations_is_short():
    """Caches, early exits and overrides belong to a `LayerPass`, not among its arguments."""
    forwards = [
        (f"{cls.name}.forward", part)
        for name in EQUATIONS
        for cls in ast.parse((PACKAGE / "model" / name).read_text(encoding="utf-8")).body
        if isinstance(cls, ast.ClassDef)
        for part in cls.body
        if isinstance(part, ast.FunctionDef) and part.name == "forward"
    ]
    assert {"DualPathBlock.forward", "WidePath.forward", "DeepPath.forward", "Sublayer.forward"} < {
        name for name, _ in forwards
    }
    for name, forward in forwards:
        given = forward.args
        arguments = [*given.posonlyargs, *given.args[1:], *given.kwonlyargs]
        assert forward.end_lineno is not None
        assert forward.end_lineno - forward.lineno + 1 <= MOST_LINES, name
        assert len(arguments) <= MOST_ARGUMENTS, name
        assert given.vararg is given.kwarg is None, name
