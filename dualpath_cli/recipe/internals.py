"""Private parts of argparse and jsonargparse, a function each, with its reason.

Torch-free. A change of theirs shows in `tests/cli/options.txt`.
"""

from argparse import Action, ArgumentParser
from typing import Any


def actions_of(parser: ArgumentParser) -> list[Action]:
    """The options of a parser: argparse keeps them in no public list."""
    return parser._actions


def type_of(action: Action) -> Any:
    """The annotation of an option, or None.

    jsonargparse turns an annotation into an action of its own, and keeps it there;
    argparse has it as `type`.
    """
    return getattr(action, "_typehint", None) or getattr(action, "type", None)
