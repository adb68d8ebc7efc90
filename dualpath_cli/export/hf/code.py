"""The code of an exported folder, which loads where nothing of dualpath is installed.

Remote code of transformers is a file or two beside the weights. Its source stays that
of the project, comments and docstrings included: there is no second text of the model
to keep in step. The source of custom classes goes beside it: a class may import
PyTorch, what comes with Python, and `dualpath_cli.spec.config`, which the folder has as
`configuration_dualpath`.
"""

import ast
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dualpath_cli.base.errors import UserError
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.own_checks import sources
from dualpath_cli.spec.own_classes import FOUND, own_class, own_roles

PROJECT = "dualpath_cli"
CONFIG = "dualpath_cli.spec.config"
ALLOWED = {"torch", *sys.stdlib_module_names}
LICENSE = "# SPDX-License-Identifier: Apache-2.0\n"


class _Module(NamedTuple):
    name: str
    docstring: str
    ours: list[ast.ImportFrom]  # its imports of the project
    imports: list[str]  # its other imports, one a line
    body: str


def flatten(name: str, beside: Sequence[str] = ()) -> str:
    """Returns the source of a module and of all that it imports of the project, as one.

    Modules of `beside` are left out with what they import: they lie beside the result
    as a file of their own, `configuration_dualpath.py`, from which their names are
    imported. All import each other by `from MODULE import NAME` at the top. Raises
    ValueError where two modules give the same name at their top level.
    """
    elsewhere = {module.name for other in beside for module in _in_order(other)}
    modules = [module for module in _in_order(name) if module.name not in elsewhere]
    places: dict[str, str] = {}
    for module in modules:
        for given in _names(module.body):
            if places.setdefault(given, module.name) != module.name:
                raise ValueError(f"{given} is in {places[given]} and in {module.name}")
    imports = sorted({line for module in modules for line in module.imports})
    if elsewhere:
        taken = [node for m in modules for node in m.ours if node.module in elsewhere]
        wanted = sorted({alias.name for node in taken for alias in node.names})
        imports.append(f"\nfrom .configuration_dualpath import {', '.join(wanted)}")
    parts = [LICENSE, modules[-1].docstring, "\n".join(imports)]
    parts += [
        f"# ---- {m.name}: {m.docstring.strip().splitlines()[0].strip(chr(34))}\n"
        "\n"
        f"{m.body}"
        for m in modules
    ]
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


def _in_order(name: str) -> list[_Module]:
    """A module after all that it imports of the project."""
    found: dict[str, _Module] = {}

    def visit(name: str) -> None:
        module = _read(name)
        for node in module.ours:
            if node.module not in found:
                visit(str(node.module))
        found[name] = module

    visit(name)
    return list(found.values())


def _read(name: str) -> _Module:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    tree = ast.parse(source)
    statements = [
        node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    ours = [
        node
        for node in statements
        if isinstance(node, ast.ImportFrom)
        and str(node.module).split(".")[0] == PROJECT
    ]
    imports = [
        (f"from {node.module} " if isinstance(node, ast.ImportFrom) else "")
        + ast.unparse(ast.Import([alias]))
        for node in statements
        if node not in ours
        for alias in node.names
    ]
    cut: list[ast.stmt] = [*statements]
    docstring = ""
    if ast.get_docstring(tree) is not None:
        docstring = ast.get_source_segment(source, tree.body[0]) or ""
        cut.append(tree.body[0])
    lines = source.splitlines(keepends=True)
    for node in cut:
        for line in range(node.lineno - 1, node.end_lineno or node.lineno):
            lines[line] = ""
    return _Module(name, docstring, ours, imports, "".join(lines).strip("\n"))


def _names(body: str) -> Iterator[str]:
    for node in ast.parse(body).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def own_files(config: ModelConfig) -> dict[str, str]:
    """Names and texts of the files of a model's own classes."""
    return {
        f"{_name(path)}.py": _moved(path, text)
        for path, text in sources(config).items()
    }


def registration(config: ModelConfig) -> str:
    """The end of the model's code, by which it finds the classes in those files."""
    lines = []
    for role in own_roles(config):
        path, cls = getattr(config, role), own_class(config, role)
        name = f"Own{role.capitalize()}"
        lines.append(f"from .{_name(path)} import {cls.__name__} as {name}")
        lines.append(f'FOUND["{path}"] = {name}')
    return "".join(
        f"{line}\n" for line in ["\n", "# ---- custom classes", *lines] if lines
    )


def _name(path: str) -> str:
    module: str = FOUND[path].__module__
    return "own_" + module.replace(".", "_")


def _moved(path: str, text: str) -> str:
    """A file's text with its imports of the project as they are in the folder."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        modules = (
            [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        )
        if isinstance(node, ast.ImportFrom):
            modules = ["." * node.level + (node.module or "")]
            if modules == [CONFIG]:
                line = node.lineno - 1
                lines[line] = lines[line].replace(CONFIG, ".configuration_dualpath", 1)
                continue
        for module in modules:
            if module.split(".")[0] not in ALLOWED:
                raise UserError(
                    f"{path} cannot go into a folder for transformers, as its file "
                    f"imports {module}; let it import torch, Python's own modules and "
                    f"`from {CONFIG} import ...` alone"
                )
    return "".join(lines)
