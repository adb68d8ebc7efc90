"""Imports between the rooms of the package run down only, as docs/architecture.md draws
them."""

import ast
import re
from collections import Counter
from collections.abc import Mapping
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
"""Of a forward pass in the files of `model/` that hold the equations; `self` is not
counted."""


CHANGING = re.compile(r"filterwarnings|simplefilter|setLevel|add_\w+|set_\w+|disable")
"""Methods that change what is not the caller's."""


def room_named(module: str) -> str:
    """`data_prep`, or the room of the package in a module's dotted name."""
    package, *names = module.split(".")
    return names[0] if package == PACKAGE.name and names else package


def room_of(path: Path) -> str:
    return room_named(".".join(path.relative_to(ROOT).with_suffix("").parts))


def rooms_imported(path: Path) -> set[str]:
    """The rooms that a file imports anywhere, also within a function, or as a command's
    strings."""
    modules = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, path
            whole = node.module == PACKAGE.name
            modules += (
                [f"{node.module}.{a.name}" for a in node.names]
                if whole
                else [node.module]
            )
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


def files_imported(path: Path) -> set[Path]:
    """The files of the package that a file imports anywhere, also only for types."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # a name is a file of the folder `module`, or stands in the file `module`
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names.append(str(node.module))
        files = {ROOT / f"{name.replace('.', '/')}.py" for name in names}
        found |= files.intersection(FILES)
    return found


def circles(imports: Mapping[Path, set[Path]]) -> set[Path]:
    """The files on circles, and those between two circles.

    They are left when files that import none of the others, or that none of the others
    imports, are taken away again and again.
    """
    left = dict(imports)
    while True:
        imported = set().union(*left.values())
        ends = [
            p for p, of in left.items() if not of & left.keys() or p not in imported
        ]
        if not ends:
            return set(left)
        for path in ends:
            del left[path]


def test_no_files_import_each_other_in_a_circle():
    imports = {path: files_imported(path) for path in FILES}
    assert sum(map(len, imports.values())) > 500
    assert circles(imports) == set()

    a, b, c, d = map(Path, "abcd")
    assert circles({a: {b}, b: {c}, c: {b, d}, d: set()}) == {b, c}


def test_no_name_of_a_class_stands_for_two():
    names = Counter(
        node.name
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, times in names.items() if times > 1] == []


def changes_of_others(tree: ast.Module) -> list[str]:
    """What a module changes in other packages as it is imported, outside of its
    functions."""
    imported, found, nodes = set(), [], list(tree.body)
    while nodes:
        node = nodes.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        nodes += ast.iter_child_nodes(node)
        targets: list[ast.AST] = []
        if isinstance(node, ast.Import | ast.ImportFrom):
            of_others = (
                isinstance(node, ast.Import)
                or room_named(node.module or "") not in ROW_OF
            )
            imported |= {name.asname or name.name for name in node.names if of_others}
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            targets = [node.func] if CHANGING.fullmatch(node.func.attr) else []
        for target in targets:
            owner = ast.unparse(target).partition(".")[0].partition("(")[0]
            if isinstance(target, ast.Attribute | ast.Subscript) and owner in imported:
                found.append(ast.unparse(target))
    return found


def test_no_import_changes_another_package():
    assert changes_of_others(
        ast.parse("import warnings\nwarnings.simplefilter('ignore')")
    )
    assert changes_of_others(ast.parse("from a import b\nb.loader = print"))
    assert changes_of_others(
        ast.parse("import logging\nfor n in 'ab':\n logging.get(n).setLevel(0)")
    )
    found = {
        path.name: changes_of_others(ast.parse(path.read_text("utf-8")))
        for path in FILES
    }
    assert not {name: changes for name, changes in found.items() if changes}


def test_the_page_draws_these_rows():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    lines = page.split("```")[1].splitlines()
    drawn = [re.findall(r"(\w+)(?:/|\.py)", line) for line in lines]
    assert [rooms for rooms in drawn if rooms] == ROWS


def test_each_forward_of_the_equations_is_short():
    """Caches, early exits and overrides belong to a `LayerPass`, not among its
    arguments."""
    forwards = [
        (f"{cls.name}.forward", part)
        for name in EQUATIONS
        for cls in ast.parse(
            (PACKAGE / "model" / name).read_text(encoding="utf-8")
        ).body
        if isinstance(cls, ast.ClassDef)
        for part in cls.body
        if isinstance(part, ast.FunctionDef) and part.name == "forward"
    ]
    assert {
        "DualPathBlock.forward",
        "WidePath.forward",
        "DeepPath.forward",
        "Sublayer.forward",
    } < {name for name, _ in forwards}
    for name, forward in forwards:
        given = forward.args
        arguments = [*given.posonlyargs, *given.args[1:], *given.kwonlyargs]
        assert forward.end_lineno is not None
        assert forward.end_lineno - forward.lineno + 1 <= MOST_LINES, name
        assert len(arguments) <= MOST_ARGUMENTS, name
        assert given.vararg is given.kwarg is None, name
