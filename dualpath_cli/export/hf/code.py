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
from typing import NamedTuple, TypeGuard

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
    elsewhere = {module.name for other in beside for module in _with_imports(other)}
    modules = [module for module in _with_imports(name) if module.name not in elsewhere]
    _check_names(modules)

    imports = sorted({line for module in modules for line in module.imports})
    if elsewhere:
        # Names of the file beside are imported from there.
        nodes = [node for module in modules for node in module.ours]
        names: set[str] = set()
        for node in nodes:
            if node.module in elsewhere:
                names.update(alias.name for alias in node.names)
        taken = ", ".join(sorted(names))
        imports.append(f"\nfrom .configuration_dualpath import {taken}")

    parts = [LICENSE, modules[-1].docstring, "\n".join(imports)]
    for module in modules:
        title = module.docstring.strip().splitlines()[0].strip('"')
        parts.append(f"# ---- {module.name}: {title}\n\n{module.body}")
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


def _check_names(modules: Sequence[_Module]) -> None:
    """Raises ValueError where two modules define the same name at their top level."""
    places: dict[str, str] = {}
    for module in modules:
        for name in _defined_names(module.body):
            place = places.setdefault(name, module.name)
            if place != module.name:
                raise ValueError(f"{name} is in {place} and in {module.name}")


def _with_imports(name: str) -> list[_Module]:
    """A module after all that it imports of the project."""
    found: dict[str, _Module] = {}

    def visit(name: str) -> None:
        module = _read_module(name)
        for node in module.ours:
            if node.module not in found:
                visit(str(node.module))
        found[name] = module

    visit(name)
    return list(found.values())


def _read_module(name: str) -> _Module:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    tree = ast.parse(source)

    statements: list[ast.stmt] = []
    ours = []
    imports = []
    for node in tree.body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        statements.append(node)
        if _is_ours(node):
            ours.append(node)
        else:
            imports += _one_a_line(node)

    docstring = ""
    if ast.get_docstring(tree) is not None:
        docstring = ast.get_source_segment(source, tree.body[0]) or ""
        statements.append(tree.body[0])

    # The rest, with its comments, is the body.
    lines = source.splitlines(keepends=True)
    for statement in statements:
        first = statement.lineno - 1
        last = statement.end_lineno or statement.lineno
        lines[first:last] = [""] * (last - first)
    return _Module(name, docstring, ours, imports, "".join(lines).strip("\n"))


def _is_ours(node: ast.Import | ast.ImportFrom) -> TypeGuard[ast.ImportFrom]:
    if not isinstance(node, ast.ImportFrom):
        return False
    return str(node.module).split(".")[0] == PROJECT


def _one_a_line(node: ast.Import | ast.ImportFrom) -> list[str]:
    """An import as lines of one name each."""
    start = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
    return [start + ast.unparse(ast.Import([alias])) for alias in node.names]


def _defined_names(body: str) -> Iterator[str]:
    """The names that a module's body defines at its top level."""
    for node in ast.parse(body).body:
        targets: list[ast.expr] = []
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]

        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id


def own_files(config: ModelConfig) -> dict[str, str]:
    """Names and texts of the files of a model's own classes."""
    files = {}
    for path, text in sources(config).items():
        files[f"{_module_of(path)}.py"] = _with_local_imports(path, text)
    return files


def registration(config: ModelConfig) -> str:
    """The end of the model's code, by which it finds the classes in those files."""
    lines = []
    for role in own_roles(config):
        path = getattr(config, role)
        cls = own_class(config, role)
        name = f"Own{role.capitalize()}"
        lines.append(f"from .{_module_of(path)} import {cls.__name__} as {name}")
        lines.append(f'FOUND["{path}"] = {name}')
    if not lines:
        return ""

    return "\n".join(["\n", "# ---- custom classes", *lines, ""])


def _module_of(path: str) -> str:
    module: str = FOUND[path].__module__
    return "own_" + module.replace(".", "_")


def _with_local_imports(path: str, text: str) -> str:
    """A file's text with its imports of the project as they are in the folder."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = ["." * node.level + (node.module or "")]
        else:
            continue

        # The folder has a copy of the configuration.
        if isinstance(node, ast.ImportFrom) and modules == [CONFIG]:
            line = node.lineno - 1
            lines[line] = lines[line].replace(CONFIG, ".configuration_dualpath", 1)
            continue

        for module in modules:
            if module.split(".")[0] not in ALLOWED:
                raise UserError(
                    f"{path} cannot go into a folder for transformers, as its file "
                    f"imports {module}; let it import only torch, Python's own "
                    f"modules and `from {CONFIG} import ...`"
                )
    return "".join(lines)
