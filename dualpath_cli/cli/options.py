"""A command's options: the fields of its frozen dataclass, as options of a parser.

A field's type decides the form: a flag, a list of values, or one value. Its metadata
may add: `option` and `also`, names of the option; `each`, for a list that takes one
value each time; `positional`, for values without an option.
"""

import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from inspect import get_annotations
from pkgutil import resolve_name
from typing import Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import Place, Size, expand_home
from dualpath_cli.cli.commands import Command
from dualpath_cli.recipe.internals import actions_of
from dualpath_cli.recipe.parser import Parser
from dualpath_cli.recipe.recipes import Recipe, parse_recipe
from dualpath_cli.recipe.settings import SECTIONS, Settings

GIVEN = "given"
"""A field with this name is not an option: it holds the names of the given options and
keys."""

_METAVARS = {"ckpt_path": "RUN", "config": "RECIPE", "folder": "DIR", "vocab_size": "N"}
_NUMBERS = {int: "N", Size: "N", float: "X"}
_SUBJECTS = ("ckpt_path", "sources", "source", "config", "pretrained")
"""Options for which users give a value without an option, such as a RUN or a recipe."""


def is_needed(field: Field[Any]) -> bool:
    """Whether an option must be given."""
    return field.default is MISSING and field.default_factory is MISSING


def is_positional(field: Field[Any]) -> bool:
    return bool(field.metadata.get("positional"))


def option_name(field: Field[Any]) -> str:
    by_default = f"--{field.name.replace('_', '-')}"
    return str(field.metadata.get("option", by_default))


def usage_of(field: Field[Any]) -> str:
    """An option with its value, as in a usage line."""
    value = _METAVARS.get(field.name, field.name.upper())
    return value if is_positional(field) else f"{option_name(field)} {value}"


@cache
def parser_of(command: Command) -> Parser:
    """The parser of a command's options, and of the keys of its recipe."""
    parser = Parser(prog=f"dualpath {command.name}")
    add_options(parser, command)
    if command.has_recipe:
        parser.add_class_arguments(Settings)
    parser.subject = _subject(command)
    return parser


def _subject(command: Command) -> str:
    """The option that a value before all options is meant for, if there is one."""
    options = resolve_name(command.options)
    own = {field.name: field for field in fields(options)}
    if any(map(is_positional, own.values())):
        return ""

    subjects = [own[name] for name in _SUBJECTS if name in own]
    subjects.sort(key=is_needed, reverse=True)
    return option_name(subjects[0]) if subjects else ""


def add_options(parser: Any, command: Command, texts: Mapping[str, str] = {}) -> None:
    """Adds a command's own options to a jsonargparse parser: needed ones first, of
    mixins last. `texts` are for help."""
    options = resolve_name(command.options)
    types = typing.get_type_hints(options)
    own = get_annotations(options)
    # Beside positional values a list takes one value each time, else it would take
    # these values, too.
    beside_positional = any(map(is_positional, fields(options)))

    ordered = sorted(
        (field for field in fields(options) if field.name != GIVEN),
        key=lambda field: (not is_needed(field), field.name not in own),
    )
    for field in ordered:
        names = [option_name(field), *field.metadata.get("also", ())]
        how = _form_of(field, types[field.name], beside_positional)
        if is_positional(field):
            names = [field.name]
        how["help"] = texts.get(field.name)
        parser.add_argument(*names, **how)


def _form_of(field: Field[Any], type_: Any, beside_positional: bool) -> dict[str, Any]:
    """argparse's settings of an option, by its field's type."""
    # None is not a value on a command line, where `null` is text.
    parts = typing.get_args(type_)
    if type(None) in parts:
        parts = tuple(part for part in parts if part is not type(None))
        type_ = typing.Union[parts]  # noqa: UP007 - of a tuple

    is_list = typing.get_origin(type_) is tuple
    metavar = _METAVARS.get(field.name)
    default = None if is_needed(field) else field.default

    if is_positional(field):
        return {"nargs": "*" if is_list else "?", "default": default}
    if type_ is bool:
        return {"action": "store_true", "default": default}
    if is_list:
        once_each = beside_positional or "each" in field.metadata
        how = {"action": "append"} if once_each else {"action": "extend", "nargs": "+"}
        return {"dest": field.name, "default": [], "metavar": metavar, **how}

    form: dict[str, Any] = {"type": type_, "default": default}
    numbers = [_NUMBERS[part] for part in (type_, *parts) if part in _NUMBERS]
    if numbers:
        metavar = numbers[0]
    if metavar:  # else jsonargparse's own
        form["metavar"] = metavar
    return form


def build_options(parser: Parser, command: Command, parsed: Recipe) -> Any:
    """The command's dataclass from parsed values; its ValueError becomes a
    UserError."""
    options = resolve_name(command.options)
    names = [field.name for field in fields(options)]
    values = {name: parsed[name] for name in names if name in parsed}
    if GIVEN in names:
        values[GIVEN] = _given_names(parser, command)

    for name, type_ in typing.get_type_hints(options).items():
        value = values.get(name)
        is_path = Place in (type_, *typing.get_args(type_))
        if is_path and isinstance(value, list):
            values[name] = [path_at_home(parser.name_of(name), path) for path in value]
        elif is_path and value:
            values[name] = path_at_home(parser.name_of(name), value)

    for field in fields(options):
        if is_needed(field) and not values.get(field.name):
            raise UserError(
                f"{command.name} needs {usage_of(field)}; see dualpath {command.name} "
                "--help"
            )

    frozen = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
    }
    try:
        return options(**frozen)
    except ValueError as error:  # the message begins with the field
        name, _, rest = str(error).partition(" ")
        raise UserError(f"{parser.name_of(name)} {rest}") from None


def _given_names(parser: Parser, command: Command) -> list[str]:
    """The options and keys that the arguments name, also within the mapping of a
    section."""
    options: set[str] = set()
    keys: list[str] = []
    for text in parser.arguments or ():
        option, _, value = text.partition("=")
        options.add(option)
        section = option.removeprefix("--")
        if command.has_recipe and section in SECTIONS:
            keys += [f"{section}.{key}" for key in parse_recipe(value, option)]

    given = [
        action.dest
        for action in actions_of(parser)
        if options.intersection(action.option_strings)
    ]
    return [*given, *keys]


def path_at_home(option: str, path: str) -> str:
    """A path with the home folder for a leading ~; `option` is for the message."""
    try:
        return expand_home(path)
    except ValueError as error:
        raise UserError(f"{option} must be {error}") from None
