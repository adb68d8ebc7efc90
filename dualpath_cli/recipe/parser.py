"""jsonargparse with errors of one line, and checked dataclasses from plain values.
Torch-free.

The same parser reads recipes and the command line.
"""

import typing
from argparse import SUPPRESS, Action, ArgumentError
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar

import yaml
from jsonargparse import ArgumentParser, Namespace, set_loader
from jsonargparse.typing import register_type

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.base.ranges import (
    PATH_FORM,
    SIZE_FORM,
    Place,
    Size,
    expand_home,
    parse_size,
)
from dualpath_cli.recipe.elsewhere import called_here
from dualpath_cli.recipe.recipes import Loader

T = TypeVar("T")
MODE = "dualpath"
"""jsonargparse's name of parsers that read values as recipes do; other parsers stay as
they are."""
CLASSES = ("callbacks", "plugins", "profiler", "logger")
"""The keys of a trainer's section that name classes; a class runs code."""
A_CLASS = "a class is {class_path: PACKAGE.CLASS, init_args: {NAME: VALUE}}"


def _value(text: str) -> Any:
    """Reads a value on the command line like one in a recipe."""
    value = yaml.load(text, Loader=Loader)
    # As jsonargparse's own: a path may end with a colon, and {a, b} has no values.
    if (
        isinstance(value, dict)
        and value
        and all(part is None for part in value.values())
    ):
        words = set(text.strip(" {}").replace(" ", "").split(","))
        if words == set(value) or text.strip() == f"{next(iter(value))}:":
            return text
    return value


set_loader(MODE, _value, (yaml.YAMLError,))


def _size(value: Any) -> Size:
    try:
        return Size(parse_size(str(value), ""))
    except UserError:
        raise ValueError(f"Got value: {value}") from None


register_type(
    Size, serializer=int, deserializer=_size, type_check=lambda v, _: type(v) is Size
)


# A value never has this type, so that each is read, and becomes a plain text.
register_type(
    Place, serializer=str, deserializer=expand_home, type_check=lambda v, _: False
)


class Parser(ArgumentParser):
    """The parser of every command, and of every dataclass that is read from a file.

    A user's mistake becomes a UserError of one line.
    """

    words: Sequence[str] | None = None
    """The user's words; messages name options as written there. None: messages name
    keys."""
    prefix = ""
    """Text before keys in messages."""
    plain = ""
    """The option that a word before all options is meant for, if the command has
    one."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("parser_mode", MODE)
        # A mistyped option must not be taken for another option.
        super().__init__(
            exit_on_error=False, add_help=False, allow_abbrev=False, **settings
        )

    def read(self, base: Mapping[str, Any], words: Sequence[str] = ()) -> Namespace:
        """Returns `base` with the keys that `words` set, and no default of any other
        key.

        Raises UserError for the first mistake in `base` or `words`.
        """
        for action in self._actions:
            action.required = False  # `construct` names missing keys
        try:
            return self._parsed(base, words)
        except ArgumentError as error:
            raise UserError(self._mistake(base, words) or reason_of(error)) from error

    def _parsed(self, base: Mapping[str, Any], words: Sequence[str] = ()) -> Namespace:
        found = self.parse_object(deepcopy(dict(base)), defaults=False)
        if words:
            found = self.parse_args([*words], namespace=found, defaults=False)
        return found

    def _mistake(self, base: Mapping[str, Any], words: Sequence[str]) -> str:
        """The message for the first key or word that cannot be read, with the values
        allowed."""
        for key, value in self._leaves(base):
            if not self._action(key):
                return self.unknown(key)
            section, _, name = key.rpartition(".")
            try:
                self._parsed({section: {name: value}} if section else {key: value})
            except ArgumentError:
                return self._wrong(key, value)
        # an option and its values, or a word before all options
        parts: list[list[str]] = []
        for word in words:
            if not parts or word[:1] == "-" or parts[-1][0][:1] != "-":
                parts.append([])
            parts[-1].append(word)
        for option, *values in parts:
            try:
                self._parsed(base, [option, *values])
            except ArgumentError:
                return self._wrong_word(option, values)
        return ""

    def _leaves(self, base: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for key, value in base.items():
            if isinstance(value, Mapping) and (
                self._is_section(key) or not self._action(key)
            ):
                yield from ((f"{key}.{name}", part) for name, part in value.items())
            else:
                yield key, value

    def _is_section(self, key: str) -> bool:
        """Whether a key is a section; a key of a Lightning class has keys below, but is
        none."""
        return "." not in key and any(
            a.dest.startswith(f"{key}.") for a in self._actions
        )

    def _action(self, key: str) -> Action | None:
        """The action of a key; for an entry of a mapping, the action of the mapping."""
        found = [
            a
            for a in self._actions
            if a.dest == key
            or (key.startswith(f"{a.dest}.") and not self._is_section(a.dest))
        ]
        return max(found, key=lambda a: len(a.dest), default=None)

    def _wrong_word(self, option: str, values: Sequence[str]) -> str:
        name, equals, value = option.partition("=")
        of_option = (a.dest for a in self._actions if name in a.option_strings)
        key = next(of_option, name.lstrip("-").removesuffix("+"))
        action = self._action(key)
        takes_none = equals or (action is not None and action.nargs == 0)
        stray = [option] if name[:1] != "-" else values if takes_none else []
        if stray:
            meant = "a value follows its option, as --help says"
            if self.plain and not any(
                w.startswith(self.plain) for w in self.words or ()
            ):
                meant = f"give it as {self.plain} {stray[0]}"
            return f"unexpected argument '{stray[0]}'; {meant}"
        if action is None:
            return self.unknown(name)
        if self._is_section(key):
            with suppress(yaml.YAMLError):
                if isinstance(content := yaml.safe_load(value), dict):
                    return self._mistake({key: content}, ())
            return (
                f"{key} must be a mapping, or a file of one, not '{value:.60}'; or set "
                f"--{key}.KEY VALUE"
            )
        return self._wrong(key, value if equals else " ".join(values))

    def _wrong(self, key: str, value: Any) -> str:
        action = self._action(key)
        annotation = getattr(action, "_typehint", None) or getattr(action, "type", None)
        name, must = self.name_of(key), describe(annotation)
        parts = value if isinstance(value, list) else [value]
        shown = {"True": "true", "False": "false", "None": "null"}.get(
            str(value), str(value)
        )
        if name.startswith("--"):
            must = must.removesuffix(" or null")  # null: the option is left out
        choices = choices_of(annotation)
        wrong = [str(part) for part in parts if str(part) not in choices]
        near = did_you_mean(wrong[0], choices) if wrong else ""
        form = f"; {A_CLASS}" if key in {f"trainer.{one}" for one in CLASSES} else ""
        return f"{name} must be {must}, not '{shown:.60}'{near}{form}"

    def name_of(self, key: str) -> str:
        """The name in messages: a recipe's key, or an option as the user wrote it."""
        options = [
            o
            for action in self._actions
            if action.dest == key
            for o in action.option_strings
        ]
        if self.words is None or "." in key or not options:
            return self.prefix + key
        given = {word.partition("=")[0] for word in self.words}
        return next((o for o in options if o in given), options[0])

    def options(self) -> dict[str, str]:
        """Every option, by its name without leading hyphens.

        argparse has no public list of options: `tests/cli/options.txt` shows a change
        of this.
        """
        shown = [action for action in self._actions if action.help != SUPPRESS]
        found = [option for action in shown for option in action.option_strings]
        return {
            option.lstrip("-"): option for option in found if not option.endswith("+")
        }

    def unknown(self, word: str) -> str:
        """The message for an unknown key or option, with the likely intended name.

        A word of another trainer has a counterpart in `recipe/elsewhere.py`. Of
        `--model.loop` the part `loop` is compared: a wrong section is more common than
        a typo. The key's own section goes first, and options of the command go before
        all keys.
        """
        options, option = self.options(), word.partition("=")[0]
        what = "option" if option[:1] == "-" else "key"
        command = str(self.prog).removeprefix("dualpath ")
        if here := called_here(command, option, options, what == "key"):
            return (
                f"unknown {what} '{self.prefix if what == 'key' else ''}{option}'{here}"
            )
        section, _, name = option.lstrip("-").rpartition(".")
        own = [key for key in options if key.startswith(section and f"{section}.")]
        near: dict[str, str] = {}
        for keys in (
            reversed(options),
            own,
            [key for key in options if "." not in key],
        ):
            near |= {key.rpartition(".")[2].replace("-", "_"): key for key in keys}
        shown = (
            {last: options[key] for last, key in near.items()}
            if option[:1] == "-"
            else near
        )
        hint = did_you_mean(name.replace("-", "_"), near, shown)
        if option[:1] == "-":
            lists = "--help lists what there is"
            if "run.name" in options:  # the command has the keys of a recipe
                lists = "--help-recipe lists the keys of a recipe"
                lists = lists if section else f"--help lists the options, {lists}"
            return f"unknown option '{option}'{hint or f'; {lists}'}"
        there = ", ".join(
            key.removeprefix(f"{section}.") for key in own if key.count(".") < 2
        )
        return f"unknown key '{self.prefix}{option}'{hint or f'; there are {there}'}"


def reason_of(error: Exception) -> str:
    """jsonargparse's reason; for a union, the first reason of a type that the value
    fits."""
    whole = " ".join(str(error).split())
    reasons = [" ".join(part.split()) for part in str(error).split("\n    - ")[1:]]
    reasons = [
        reason for reason in reasons if not reason.startswith("Expected a <class")
    ]
    return (
        reasons[0].rpartition("Problem with given class_path ")[2] if reasons else whole
    )


def build(cls: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """Returns the dataclass with these values; nested dataclasses are given as
    mappings.

    Types are not converted: 2.0 and `true` are no whole numbers, and 3 is no text.
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
    hints = typing.get_type_hints(cls)
    made: dict[str, Any] = {}
    for field in fields(typing.cast(Any, cls)):
        name, kind = field.name, hints[field.name]
        if is_dataclass(kind):
            part = found.get(name, {})
            made[name] = construct(typing.cast(Any, kind), part, f"{prefix}{name}.")
        elif name in found:
            made[name] = found[name]
        elif {field.default, field.default_factory} == {MISSING}:
            raise UserError(f"{prefix}{name} is missing")
        if made.get(name, "") is None and type(None) not in typing.get_args(kind):
            raise UserError(f"{prefix}{name} must be {describe(kind)}, not 'null'")
    try:
        return cls(**made)
    except ValueError as error:
        raise UserError(
            f"{prefix.rstrip('.')}: {error}" if prefix else str(error)
        ) from None


@cache
def reader_of(cls: type) -> Parser:
    parser = Parser()
    parser.add_class_arguments(cls, fail_untyped=False)
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
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    parts = [describe(part) for part in arguments if part not in (..., Any)]
    if origin in (tuple, list):
        return f"a list ({'' if parts[1:] else 'each '}{' and '.join(parts)})"
    if origin is dict:
        return (
            f"a mapping of names to values{f' (each {parts[1]})' if parts[1:] else ''}"
        )
    return " or ".join(parts) or str(annotation)


def choices_of(annotation: Any) -> list[str]:
    if typing.get_origin(annotation) is Literal:
        return [str(value) for value in typing.get_args(annotation)]
    return [
        choice for part in typing.get_args(annotation) for choice in choices_of(part)
    ]
