"""Private parts of argparse and jsonargparse, a function each, with its reason.

Torch-free. A change of theirs shows in `tests/cli/options.txt`, or in the numbers of
`tests/cli/test_arguments.py`.
"""

from argparse import Action, ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jsonargparse import _loaders_dumpers


def actions_of(parser: ArgumentParser) -> list[Action]:
    """The options of a parser: argparse keeps them in no public list."""
    return parser._actions


def type_of(action: Action) -> Any:
    """The annotation of an option, or None.

    jsonargparse turns an annotation into an action of its own, and keeps it there;
    argparse has it as `type`.
    """
    return getattr(action, "_typehint", None) or getattr(action, "type", None)


@contextmanager
def reading_by(loader: type) -> Iterator[None]:
    """Within it, jsonargparse reads values, and texts of numbers, by this YAML loader.

    `set_loader` would not be asked for the text of a number: by YAML 1.1, 0x10 is 16
    and 1:30 is 90.
    """
    before = _loaders_dumpers.yaml_default_loader
    _loaders_dumpers.yaml_default_loader = loader  # type: ignore[assignment]
    try:
        yield
    finally:
        _loaders_dumpers.yaml_default_loader = before
