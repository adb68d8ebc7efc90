"""Imports between the rooms of the package run down only, as docs/architecture.md draws them."""

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dualpath_cli"
ROWS = [
    ["cli"],
    ["compare"],
    ["export", "study", "sweep"],
    ["evaluation"],
    ["training", "decoding"],
    ["run", "flops"],
    ["model", "recipe"],
    ["intervention", "text"],
    ["own_classes"],
    ["config", "output"],
    ["system", "errors", "ranges", "statistics", "kernels"],
]
ROW_OF = {room: number for number, row in enumerate(ROWS) for room in row}
ENTRANCES = {"__init__", "__main__"}
EQUATIONS = ("block.py", "deep_path.py", "sublayer.py")
MOST_LINES, MOST_ARGUMENTS = 20, 3
"""Of a forward pass in the files of `model/` that hold the equations; `self` is not counted."""


def rooms_imported(path: Path) -> set[str]:
    """The rooms that a file imports anywhere, also within a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            package, *names = node.module.split(".")
            if package == PACKAGE.name:
                found |= {names[0]} if names else {alias.name for alias in node.names}
    return found - {"__version__"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_a_room_imports_only_from_the_rows_below_its_own():
    bottom = len(ROWS) - 1
    wrong = [
        f"{path.relative_to(ROOT)} imports {other}"
        for path in PACKAGE.rglob("*.py")
        if (room := room_of(path)) not in ENTRANCES
        for other in rooms_imported(path) - {room}
        if ROW_OF[other] <= ROW_OF[room] and not ROW_OF[other] == ROW_OF[room] == bottom
    ]
    assert not wrong


def test_no_name_of_a_class_stands_for_two():
    files = [path for part in (PACKAGE, ROOT / "data_prep") for path in part.rglob("*.py")]
    names = Counter(
        node.name
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, times in names.items() if times > 1] == []


def test_the_page_draws_these_rows():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    lines = page.split("```")[1].splitlines()
    drawn = [set(line.replace(".py", "").replace("/", "").replace(",", "").split())
             for line in lines]  # fmt: skip
    places = [[n for n, words in enumerate(drawn) if set(row) <= words] for row in ROWS]
    assert all(places)
    assert [found[-1] for found in places] == sorted(found[-1] for found in places)


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
