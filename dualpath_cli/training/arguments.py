"""The arguments of a recipe, for both parsers: the quick one and LightningCLI's. Torch-free."""

import dataclasses
import re
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import jsonargparse

from dualpath_cli.config import ModelConfig
from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.recipes import Recipe
from dualpath_cli.training.settings import DataSettings, OptimSettings, RunSettings

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


def add_sections(parser: jsonargparse.ArgumentParser) -> None:
    """Adds the recipe's own sections; their help is the text under each field."""
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    for name, section in SECTIONS.items():
        parser.add_class_arguments(section, name)


def settings_from(values: dict[str, Any]) -> Settings:
    """Builds the checked settings from parsed sections.

    Raises:
        UserError: if the model's fields contradict each other.
    """
    try:
        return Settings(**{name: cls(**values[name]) for name, cls in SECTIONS.items()})
    except ValueError as error:
        raise UserError(f"model: {error}") from error


def check_keys(recipe: Recipe) -> None:
    """Refuses keys that no section has, with the nearest one that exists.

    Raises:
        UserError: naming the first unknown key.
    """
    known_top = [*SECTIONS, *OTHER_KEYS]
    for key, value in recipe.items():
        if key not in known_top:
            hint = did_you_mean(key, known_top) or f"; sections are {', '.join(known_top)}"
            raise UserError(f"unknown key '{key}' in the recipe{hint}")
        if key not in SECTIONS:
            continue
        if not isinstance(value, dict):
            raise UserError(f"'{key}' in the recipe must be a mapping, not {value!r:.40}")
        fields = [field.name for field in dataclasses.fields(SECTIONS[key])]
        for name in value:
            if name not in fields:
                hint = did_you_mean(name, fields) or f"; {key} has {', '.join(fields)}"
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
    key = re.search(r'[Kk]ey "(?:fit\.|validate\.|ablate\.)?([\w.]+)"', message)
    value = re.search(r"(?:Got value|Given value): (.*)", message)
    if key and value:
        section, _, name = key[1].partition(".")
        hints = typing.get_type_hints(SECTIONS[section]) if section in SECTIONS else {}
        if name in hints:
            given = value[1].strip()
            choices = _choices(hints[name])
            return (
                f"{key[1]} must be {_describe(hints[name])}, not '{given}'"
                f"{did_you_mean(given, choices)}"
            )
    unknown = re.search(r"Unrecognized arguments: (\S+)|accept option '(.+?)'", message)
    if unknown:
        word = unknown[1] or unknown[2]
        hint = did_you_mean("--" + word.lstrip("-"), options)
        return f"unknown argument '{word}'{hint or '; --help lists what there is'}"
    return " ".join(message.split())


def _describe(annotation: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if annotation in names:
        return names[annotation]
    if annotation is type(None):
        return "null"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (list, tuple):
        return f"a list (each {_describe(arguments[0])})"
    if origin is dict:
        return "a mapping of names to values"
    return " or ".join(_describe(part) for part in arguments) or str(annotation)


def _choices(annotation: Any) -> list[str]:
    if typing.get_origin(annotation) is Literal:
        return [str(value) for value in typing.get_args(annotation)]
    return [choice for part in typing.get_args(annotation) for choice in _choices(part)]
