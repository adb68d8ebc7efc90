"""The texts of --help and --help-recipe, and completion in a shell.

Both read docstrings of fields, which is slow, only when they are asked for.
"""

import json
import os
import typing
from argparse import SUPPRESS, Action
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import fields
from inspect import getdoc
from pkgutil import resolve_name

from jsonargparse import ArgumentParser, DefaultHelpFormatter, set_parsing_settings

from dualpath_cli.cli.commands import COMMANDS, Command, split_command
from dualpath_cli.cli.options import (
    add_options,
    is_needed,
    is_positional,
    parser_of,
    usage_of,
)
from dualpath_cli.recipe.internals import actions_of, type_of
from dualpath_cli.recipe.parser import Parser, choices_of
from dualpath_cli.recipe.recipes import recipe_names
from dualpath_cli.recipe.settings import Settings


@contextmanager
def _with_docstrings() -> Iterator[None]:
    """Lets jsonargparse read the docstrings of fields."""
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    try:
        yield
    finally:
        set_parsing_settings(docstring_parse_attribute_docstrings=False)


@_with_docstrings()
def help_of(command: Command, recipe: bool = False) -> str:
    """The text of --help, or, with all keys, of --help-recipe."""
    from docstring_parser import parse_from_object

    options = resolve_name(command.options)
    in_usage = [
        usage_of(field)
        for field in fields(options)
        if is_needed(field) or is_positional(field)
    ]
    parser = Parser(
        prog=f"dualpath {command.name}",
        usage=" ".join(["%(prog)s", *in_usage, "[options]"]),
        formatter_class=_OptionHelp,
    )
    if recipe:
        parser.add_class_arguments(Settings)
        return parser.format_help()

    texts: dict[str, str] = {}
    for cls in reversed(options.__mro__[:-1]):
        for text in parse_from_object(cls).params:
            texts[text.arg_name] = text.description or ""
    parser.description = getdoc(options)
    add_options(parser, command, texts)
    if command.has_recipe:
        about = "List the keys of the recipe; --SECTION.KEY VALUE sets a key."
        parser.add_argument("--help-recipe", action="store_true", help=about)
    return parser.format_help()


class _OptionHelp(DefaultHelpFormatter):
    """Shows choices and defaults, but no types: the metavar has the type; keeps
    examples.

    argparse has no public methods for these parts of help.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        paragraphs = [
            # An example begins with a space.
            paragraph if paragraph.startswith(" ") else fill(paragraph, width, indent)
            for paragraph in text.split("\n\n")
        ]
        return "\n\n".join(paragraphs)

    def _format_action_invocation(self, action: Action) -> str:
        # jsonargparse adds `--NAME+`, which appends to a list, as a second name.
        shown = copy(action)
        shown.option_strings = [
            name for name in action.option_strings if not name.endswith("+")
        ]
        return super()._format_action_invocation(shown)

    def _get_help_string(self, action: Action) -> str:
        parts = []
        type_ = type_of(action)
        choices = choices_of(type_)
        # A Literal's choices are in the metavar.
        if typing.get_origin(type_) is not typing.Literal and len(choices) > 1:
            parts.append(f"choices: {', '.join(dict.fromkeys(choices))}")

        default = action.default
        is_flag = action.nargs == 0
        has_default = default not in (None, [], (), {}, SUPPRESS)
        if has_default and not is_flag:
            shown = default if isinstance(default, str) else json.dumps(default)
            shown = shown.replace("%", "%%")  # argparse formats the text
            parts.append(f"default: {shown}")
        more = f" ({'; '.join(parts)})" if parts else ""
        return f"{action.help or ''}{more}"


def complete() -> None:
    """Prints the completions of a shell's line, as argcomplete asks for them, and
    exits."""
    cursor = int(os.environ["COMP_POINT"])
    line = os.environ["COMP_LINE"][:cursor]
    finished = line[: line.rfind(" ") + 1]  # without an unfinished last word
    words = finished.split()
    name, given = split_command(words[1:])
    if name in COMMANDS:
        # the number of words before the options
        os.environ["_ARGCOMPLETE"] = str(len(words) - len(given))
        _complete_options(COMMANDS[name])

    choice = ArgumentParser()
    names = [name for name in COMMANDS if " " not in name]
    choice.add_argument("command", choices=names)
    choice.parse_args([])


def _complete_options(command: Command) -> None:
    parser = parser_of(command)
    for action in actions_of(parser):
        # jsonargparse offers no values of a Literal.
        action.choices = choices_of(type_of(action)) or None
        if action.dest == "config":
            kind = "data" if command.name == "prepare" else ""
            # argcomplete reads this attribute.
            action.completer = _recipes_or_files(kind)  # type: ignore[attr-defined]
    parser.parse_args([])


def _recipes_or_files(kind: str) -> Callable[..., list[str]]:
    """argcomplete's completer of --config: packaged names of a kind, and files."""
    from argcomplete.completers import FilesCompleter

    def completions(prefix: str, **_: object) -> list[str]:
        return [*recipe_names(kind), *FilesCompleter()(prefix)]

    return completions
