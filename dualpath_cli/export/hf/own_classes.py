"""Custom classes in a folder for transformers: their source goes beside the model's code.

A folder loads where nothing of dualpath is installed, so a class may import PyTorch, what comes
with Python, and `dualpath_cli.config`, which the folder has as `configuration_dualpath`.
"""

import ast
import sys

from dualpath_cli.config import ModelConfig
from dualpath_cli.errors import UserError
from dualpath_cli.own_classes.classes import Source, own_class, own_roles, sources

CONFIG = "dualpath_cli.config"
ALLOWED = {"torch", *sys.stdlib_module_names}


def own_files(config: ModelConfig) -> dict[str, str]:
    """Names and texts of the files of a model's own classes.

    Raises:
        UserError: where one of them imports what an exported folder does not hold.
    """
    found = sources(config)
    return {f"{_name(source)}.py": _moved(path, source) for path, source in found.items()}


def registration(config: ModelConfig) -> str:
    """The end of the model's code, by which it finds the classes in those files."""
    lines = []
    for role in own_roles(config):
        path, cls = getattr(config, role), own_class(config, role)
        name = f"Own{role.capitalize()}"
        place = _name(sources(config)[path])
        lines += [f"from .{place} import {cls.__name__} as {name}", f'FOUND["{path}"] = {name}']
    return "".join(f"{line}\n" for line in ["\n", "# ---- custom classes", *lines] if lines)


def _name(source: Source) -> str:
    return "own_" + source.module.replace(".", "_")


def _moved(path: str, source: Source) -> str:
    """A file's text with its imports of the project as they are in the folder."""
    lines = source.text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source.text)):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = ["." * node.level + (node.module or "")]
            if modules == [CONFIG]:
                line = node.lineno - 1
                lines[line] = lines[line].replace(CONFIG, ".configuration_dualpath", 1)
                continue
        for module in modules:
            if module.split(".")[0] not in ALLOWED:
                raise UserError(
                    f"{path} cannot go into a folder for transformers, as its file imports "
                    f"{module}; let it import torch, Python's own modules and `from {CONFIG} "
                    "import ...` alone, or give --format consolidated"
                )
    return "".join(lines)
