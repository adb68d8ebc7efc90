"""The arguments of a recipe, for both parsers: the quick one and LightningCLI's. Torch-free."""

import dataclasses
import difflib
import re
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import jsonargparse
from jsonargparse.typing import register_type

from dualpath_cli.config import ModelConfig
from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.recipes import Recipe
from dualpath_cli.settings import DataSettings, OptimSettings, RunSettings
from dualpath_cli.sizes import Size, parse_size

SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "optim": OptimSettings,
    "run": RunSettings,
    "data": DataSettings,
}
OTHER_KEYS = ("trainer", "seed_everything", "ckpt_path")


@dataclass(frozen=True)
class Settings:
    """A whole recipe, checked."""

    model: ModelConfig
    optim: OptimSettings
    run: RunSettings
    data: DataSettings


def _to_size(value: Any) -> Size:
    try:
        return Size(parse_size(str(value), "it"))
    except UserError as error:
        raise ValueError(str(error)) from error


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


register_type(Size, int, _to_size, type_check=lambda value, cls: _is_size(value))


def add_sections(parser: jsonargparse.ArgumentParser) -> None:
    """Adds the recipe's own sections; their help is the text under each field."""
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    for name, section in SECTIONS.items():
        parser.add_class_arguments(section, name)


def settings_from(values: dict[str, Any]) -> Settings:
    """Builds the checked settings from parsed sections.

    Raises:
        UserError: if a field is out of range or fields contradict each other.
    """
    built = {}
    for name, section in SECTIONS.items():
        try:
            built[name] = section(**values[name])
        except ValueError as error:
            raise UserError(f"{name}: {error}") from error
    return Settings(**built)


def check_keys(recipe: Recipe) -> None:
    """Refuses keys that no section has, with the nearest one that exists.

    Raises:
        UserError: naming the first unknown key.
    """
    known_top = [*SECTIONS, *OTHER_KEYS]
    for key, value in recipe.items():
        if key not in known_top:
            hint = did_you_mean(str(key), known_top) or f"; sections are {', '.join(known_top)}"
            raise UserError(f"unknown key '{key}' in the recipe{hint}")
        if key not in SECTIONS:
            continue
        if not isinstance(value, dict):
            raise UserError(f"'{key}' in the recipe must be a mapping, not {value!r:.40}")
        fields = [field.name for field in dataclasses.fields(SECTIONS[key])]
        for name in value:
            if name not in fields:
                hint = did_you_mean(str(name), fields) or f"; {key} has {', '.join(fields)}"
                raise UserError(f"unknown key '{key}.{name}'{hint}")


class OneLineParser(jsonargparse.ArgumentParser):
    """A parser whose errors are a UserError of one line instead of a screen of usage."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raises what jsonargparse found as a UserError."""
        raise UserError(explain(message, self._options())) from ex

    def _options(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings]


def explain(message: str, options: Iterable[str] = ()) -> str:
    """Says in one line what jsonargparse says in several, with what would be right."""
    key = re.search(r'[Kk]ey "(?:fit\.|validate\.|ablate\.|routing\.)?([\w.]+)"', message)
    value = re.search(r"(?:Got value|Given value): (.*)", message)
    if key and value:
        section, _, name = key[1].partition(".")
        hints: dict[str, Any] = {"trainer": dict, "seed_everything": int}
        if section in SECTIONS:
            hints = typing.get_type_hints(SECTIONS[section])
        annotation = hints.get(name or section)
        if annotation is not None:
            given = value[1].strip()
            return (
                f"{key[1]} must be {_describe(annotation)}, not '{given}'"
                f"{did_you_mean(given, _choices(annotation))}"
            )
    size = re.search(r'key "([\w.]+)":\s+Not of type Size: it (.*)', message)
    if size:
        return f"{size[1]} {size[2]}"
    whole = re.search(r'key "(\w+)": Unable to load config [\'"](.*?)[\'"]', message)
    if whole:
        return f"{whole[1]} must be a mapping, not '{whole[2]}'; set --{whole[1]}.KEY VALUE instead"
    unknown = re.search(r"[Uu]nrecognized arguments: (\S+)|accept option '(.+?)'", message)
    if unknown:
        word = unknown[1] or unknown[2]
        # By the key alone first: a key is more often put into the wrong section than mistyped.
        keys = {option.lstrip("-").rpartition(".")[2]: option for option in options}
        near = difflib.get_close_matches(word.lstrip("-").rpartition(".")[2], keys, n=1)
        hint = f"; did you mean '{keys[near[0]]}'?" if near else "; --help lists what there is"
        return f"unknown argument '{word}'{hint}"
    return " ".join(message.split())


def _describe(annotation: Any) -> str:
    names = {
        dict: "a mapping",
        int: "a whole number",
        Size: "a whole number such as 80M or 80_000_000",
        float: "a number",
        bool: "true or false",
        str: "text",
    }
    if annotation in names:
        return names[annotation]
    if annotation is type(None):
        return "null"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin is tuple:
        return f"a list of {len(arguments)} (each {_describe(arguments[0])})"
    if origin is list:
        return f"a list (each {_describe(arguments[0])})"
    if origin is dict:
        return "a mapping of names to values"
    return " or ".join(_describe(part) for part in arguments) or str(annotation)


def _choices(annotation: Any) -> list[str]:
    if typing.get_origin(annotation) is Literal:
        return [str(value) for value in typing.get_args(annotation)]
    return [choice for part in typing.get_args(annotation) for choice in _choices(part)]
