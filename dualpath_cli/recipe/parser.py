"""jsonargparse with errors of one line, and checked dataclasses from plain values.
Torch-free.

The same parser reads recipes and the command line.
"""

import re
import typing
from argparse import SUPPRESS, Action, ArgumentError
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar

import yaml
from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import register_type

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.base.output import joined_lines
from dualpath_cli.base.ranges import (
    PATH_FORM,
    SIZE_FORM,
    Place,
    Size,
    expand_home,
    parse_size,
)
from dualpath_cli.recipe.dialect import Loader, yaml_fault
from dualpath_cli.recipe.elsewhere import called_here
from dualpath_cli.recipe.internals import actions_of, reading_by, type_of

T = TypeVar("T")
CLASSES = ("callbacks", "plugins", "profiler", "logger")
"""The keys of a trainer's section that name classes; a class runs code."""
A_CLASS = "a class is {class_path: PACKAGE.CLASS, init_args: {NAME: VALUE}}"
_SET = re.compile(r"(?<=^--data\.val\.)[^=]+")
_DOT = "\0"
"""Stands for a dot in the name of a validation set while jsonargparse reads it."""
_AS_YAML = {"True": "true", "False": "false", "None": "null"}


register_type(
    Size,
    serializer=int,
    deserializer=lambda value: Size(parse_size(str(value))),
    type_check=lambda value, _: type(value) is Size,
)


# A value never has this type, so that each is read, and becomes a plain text.
register_type(
    Place, serializer=str, deserializer=expand_home, type_check=lambda v, _: False
)


class Parser(ArgumentParser):
    """The parser of every command, and of every dataclass that is read from a file.

    A user's mistake becomes a UserError of one line.
    """

    arguments: Sequence[str] | None = None
    """The user's arguments, set by `read`; messages name options as written there.
    None: messages name keys."""
    prefix = ""
    """Text before keys in messages."""
    subject = ""
    """The option that an argument before all options is meant for, if the command has
    one."""

    def __init__(self, **settings: Any) -> None:
        # A mistyped option must not be taken for another option.
        super().__init__(
            exit_on_error=False, add_help=False, allow_abbrev=False, **settings
        )
        # Python 3.14 colours help on a terminal, where `say` shows each escape as text.
        self.color = False

    def read(
        self, base: Mapping[str, Any], arguments: Sequence[str] | None = None
    ) -> Namespace:
        """Returns `base` with the keys that `arguments` set, and no default of any
        other key.

        Raises UserError for the first mistake in `base` or `arguments`.
        """
        self.arguments = arguments
        for action in actions_of(self):
            action.required = False  # `construct` names missing keys
        try:
            return self._parsed(base, arguments or ())
        except ArgumentError as error:
            mistake = self._mistake(base, arguments or ())
            raise UserError(mistake or reason_of(error)) from error

    def _parsed(
        self, base: Mapping[str, Any], arguments: Sequence[str] = ()
    ) -> Namespace:
        # jsonargparse would take --data.val.c4.en=FILE for {c4: {en: FILE}}.
        texts = [
            _SET.sub(lambda name: name[0].replace(".", _DOT), argument)
            for argument in arguments
        ]
        with reading_by(Loader):
            parsed = self.parse_object(deepcopy(dict(base)), defaults=False)
            if texts:
                parsed = self.parse_args(texts, namespace=parsed, defaults=False)

        sets = parsed.get("data.val")
        if texts and sets:
            parsed["data.val"] = {
                name.replace(_DOT, "."): path for name, path in sets.items()
            }
        return parsed

    def _mistake(self, base: Mapping[str, Any], arguments: Sequence[str]) -> str:
        """The message for the first key or argument that cannot be read, with the
        values allowed."""
        # jsonargparse's own message lacks the allowed values: each value is parsed by
        # itself, and each argument after those before it, until one fails.
        for section, name, value in self._leaves(base):
            key = f"{section}.{name}" if section else name
            if "." in name or not self._action(key):
                return self.unknown(key)
            try:
                self._parsed({section: {name: value}} if section else {key: value})
            except ArgumentError:
                return self._wrong(key, value)

        before = ""
        for place, argument in enumerate(arguments):
            try:
                self._parsed(base, arguments[: place + 1])
            except ArgumentError:
                return self._wrong_argument(argument, before)
            before = argument.partition("=")[0]
        return ""

    def _leaves(self, base: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
        """Each value, with its section, which may be empty, and its name there."""
        for key, value in base.items():
            has_keys = self._is_section(key) or not self._action(key)
            if isinstance(value, Mapping) and has_keys:
                for name, part in value.items():
                    yield key, name, part
            else:
                yield "", key, value

    def _is_section(self, key: str) -> bool:
        """Whether a key is a section; a key of a Lightning class has keys below, but is
        none."""
        names = [action.dest for action in actions_of(self)]
        return "." not in key and any(name.startswith(f"{key}.") for name in names)

    def _action(self, key: str) -> Action | None:
        """The action of a key; for an entry of a mapping, the action of the mapping."""
        longest: Action | None = None
        for action in actions_of(self):
            name = action.dest
            is_its_own = name == key
            is_its_mapping = key.startswith(f"{name}.") and not self._is_section(name)
            if not (is_its_own or is_its_mapping):
                continue
            if longest is None or len(name) > len(longest.dest):
                longest = action
        return longest

    def whole_of(self, key: str) -> str:
        """Why there is no key such as `optim.betas.0`, an entry of a value that is not
        a mapping; else an empty text."""
        action = self._action(key)
        if action is None or action.dest == key:
            return ""
        annotation = type_of(action)
        if _entry_type(annotation) is not None:
            return ""
        return f"set all of {action.dest} instead: {describe(annotation)}"

    def _wrong_argument(self, argument: str, before: str) -> str:
        """The message for an argument that cannot be read; `before` is the option or
        argument in front of it."""
        name, _, value = argument.partition("=")
        if not name.startswith("-"):
            return self._stray(argument, before)

        key = name.lstrip("-").removesuffix("+")
        for action in actions_of(self):
            if name in action.option_strings:
                key = action.dest
                break
        action_of_key = self._action(key)

        if action_of_key is None:
            return self.unknown(name)
        if action_of_key.nargs == 0:
            return (
                f"{name} takes no value such as '{value:.60}'; give {name}, or leave "
                "it out"
            )
        if not self._is_section(key):
            return self._wrong(key, value)

        try:
            content = yaml.load(value, Loader=Loader)
        except yaml.YAMLError as error:
            return f"--{key} '{value:.60}' cannot be read: {yaml_fault(error)}"
        if isinstance(content, dict):
            return self._mistake({key: content}, ())
        return (
            f"{key} must be a mapping, or a file of one, not '{value:.60}'; or set "
            f"--{key}.KEY VALUE"
        )

    def _stray(self, argument: str, before: str) -> str:
        """The message for an argument that is not an option's value; `before` is the
        option or argument in front of it."""
        others = self.arguments or ()
        takes_several = any(
            before in action.option_strings and action.default == []
            for action in actions_of(self)
        )
        way_out = "leave it out, or put its option before it (see --help)"
        if takes_several:
            way_out = f"give it as {before} {argument}"
        elif self.subject and not any(text.startswith(self.subject) for text in others):
            way_out = f"give it as {self.subject} {argument}"
        return f"unexpected argument '{argument}'; {way_out}"

    def _wrong(self, key: str, value: Any) -> str:
        """The message for a value that a key cannot have."""
        action = self._action(key)
        annotation = None if action is None else type_of(action)
        if action is not None and action.dest != key:
            annotation = _entry_type(annotation)
        name = self.name_of(key)
        wanted = describe(annotation)
        # On a command line null is not a value: the option is left out.
        if name.startswith("--"):
            wanted = wanted.removesuffix(" or null")

        hint = ""
        choices = choices_of(annotation)
        for part in value if isinstance(value, list) else [value]:
            if str(part) not in choices:
                hint = did_you_mean(str(part), choices)
                break
        section, _, last = key.partition(".")
        if section == "trainer" and last in CLASSES:
            hint += f"; {A_CLASS}"

        shown = _AS_YAML.get(str(value), str(value))
        return f"{name} must be {wanted}, not '{shown:.60}'{hint}"

    def name_of(self, key: str) -> str:
        """The name in messages: a recipe's key, or an option as the user wrote it."""
        options = [
            option
            for action in actions_of(self)
            if action.dest == key
            for option in action.option_strings
        ]
        if self.arguments is None or "." in key or not options:
            return self.prefix + key

        given = {text.partition("=")[0] for text in self.arguments}
        for option in options:
            if option in given:
                return option
        return options[0]

    def options(self) -> dict[str, str]:
        """Every option, by its name without leading hyphens."""
        return {
            option.lstrip("-"): option
            for action in actions_of(self)
            if action.help != SUPPRESS
            for option in action.option_strings
            if not option.endswith("+")
        }

    def unknown(self, argument: str) -> str:
        """The message for an unknown key or option, with the likely intended name.

        A word of another trainer has a counterpart in `recipe/elsewhere.py`. Of
        `--model.loop` the part `loop` is compared: a wrong section is more common than
        a typo. The key's own section goes first, and options of the command go before
        all keys.
        """
        name = argument.partition("=")[0]
        is_option = name.startswith("-")
        start = f"unknown option '{name}'"
        if not is_option:
            start = f"unknown key '{self.prefix}{name}'"
            if whole := self.whole_of(name):
                return f"{start}; {whole}"
            if self._action(name):
                return f"{start}; a recipe has it as '{_nested(name)}'"

        options = self.options()
        command = str(self.prog).removeprefix("dualpath ")
        counterpart = called_here(command, name, options, not is_option)
        if counterpart:
            return f"{start}{counterpart}"

        section, _, last = name.lstrip("-").rpartition(".")
        prefix = f"{section}." if section else ""
        all_keys = [*reversed(options)]
        same_section = [key for key in options if key.startswith(prefix)]
        of_command = [key for key in options if "." not in key]

        # By their last part. Of keys with one last part the latest wins.
        candidates: dict[str, str] = {}
        for key in (*all_keys, *same_section, *of_command):
            candidates[key.rpartition(".")[2].replace("-", "_")] = key

        shown = candidates
        if is_option:
            shown = {part: options[key] for part, key in candidates.items()}
        hint = did_you_mean(last.replace("-", "_"), candidates, shown)
        if hint:
            return f"{start}{hint}"
        if is_option:
            return f"{start}; {self._where_listed(bool(section))}"
        siblings = [key.removeprefix(prefix) for key in same_section]
        siblings = [key for key in siblings if "." not in key]
        return f"{start}; there are {', '.join(siblings)}"

    def _where_listed(self, is_key: bool) -> str:
        """The end of the message for an unknown option that resembles no other."""
        has_recipe = "run.name" in self.options()
        if not has_recipe:
            return "--help lists what there is"
        of_recipe = "--help-recipe lists the keys of a recipe"
        return of_recipe if is_key else f"--help lists the options, {of_recipe}"


def _nested(key: str) -> str:
    """A dotted key as YAML, such as `optim: {lr: ...}`."""
    *sections, name = key.split(".")
    text = f"{name}: ..."
    for section in reversed(sections):
        text = f"{section}: {{{text}}}"
    return text


def reason_of(error: Exception) -> str:
    """jsonargparse's reason; for a union, the first reason of a type that the value
    fits."""
    of_types = [joined_lines(part) for part in str(error).split("\n    - ")[1:]]
    for reason in of_types:
        if not reason.startswith("Expected a <class"):
            return reason.rpartition("Problem with given class_path ")[2]
    return joined_lines(error)


def build(cls: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """Returns the dataclass with these values; nested dataclasses are given as
    mappings.

    Types are not converted: 2.0 and `true` are not whole numbers, and 3 is not text.
    `prefix` is the text before keys in messages.
    """
    parser = reader_of(cls)  # type: ignore[arg-type]
    parser.prefix = prefix
    return construct(cls, parser.read(values).as_dict(), prefix)


def construct(cls: type[T], found: Mapping[str, Any], prefix: str = "") -> T:
    """Returns the dataclass from values of its fields' types; a ValueError becomes a
    UserError.

    A nested dataclass is given as a mapping. Raises UserError also for a missing key,
    and for a null, which jsonargparse accepts for any type.
    """
    types = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for field in fields(typing.cast(Any, cls)):
        name = field.name
        type_ = types[name]
        if is_dataclass(type_):
            section = found.get(name, {})
            made = construct(typing.cast(Any, type_), section, f"{prefix}{name}.")
            values[name] = made
        elif name in found:
            values[name] = found[name]
        elif field.default is MISSING and field.default_factory is MISSING:
            raise UserError(f"{prefix}{name} is missing")

        may_be_null = type(None) in typing.get_args(type_)
        if name in values and values[name] is None and not may_be_null:
            raise UserError(f"{prefix}{name} must be {describe(type_)}, not 'null'")

    try:
        return cls(**values)
    except ValueError as error:
        start = f"{prefix.rstrip('.')}: " if prefix else ""
        raise UserError(f"{start}{error}") from None


@cache
def reader_of(cls: type) -> Parser:
    parser = Parser()
    parser.add_class_arguments(cls)
    return parser


_KINDS = {
    int: "a whole number",
    Size: SIZE_FORM,
    float: "a number",
    bool: "true or false",
    str: "text",
    Place: PATH_FORM,
    type(None): "null",
}


def describe(annotation: Any) -> str:
    """The values of a type in words, as the end of "KEY must be ..."."""
    if annotation in _KINDS:
        return _KINDS[annotation]
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))

    parts = [describe(part) for part in arguments if part not in (..., Any)]
    if origin in (tuple, list):
        each = "" if len(parts) > 1 else "each "
        return f"a list ({each}{' and '.join(parts)})"
    if origin is dict:
        if len(parts) < 2:  # of any values
            return "a mapping of names to values"
        return f"a mapping of names to values (each {parts[1]})"
    return " or ".join(parts) or str(annotation)


def _entry_type(annotation: Any) -> Any:
    """The type of a mapping's values; None where no mapping is taken."""
    if typing.get_origin(annotation) is dict:
        return typing.get_args(annotation)[1]
    found = map(_entry_type, typing.get_args(annotation))
    return next((type_ for type_ in found if type_ is not None), None)


def choices_of(annotation: Any) -> list[str]:
    if typing.get_origin(annotation) is Literal:
        return [str(value) for value in typing.get_args(annotation)]
    return [
        choice for part in typing.get_args(annotation) for choice in choices_of(part)
    ]
