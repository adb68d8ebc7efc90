"""Every key of a recipe with its type, default and sentence, as the settings have them."""

import dataclasses
import json
import typing
from collections.abc import Iterator

from dualpath_cli.recipe.settings import SECTIONS
from dualpath_cli.recipe.validation import describe


class Key(typing.NamedTuple):
    """A key of a recipe, in words."""

    section: str
    """Empty for `seed_everything`."""
    name: str
    sentence: str
    """The text under its field."""
    kind: str
    """What a value is, as in "must be a whole number"."""
    default: str
    """As a recipe writes it."""


def documented() -> Iterator[Key]:
    """All keys, in the order of the settings."""
    from docstring_parser import parse_from_object  # slow, and only help needs it

    seed = "Seed of the weights and of the data order."
    yield Key("", "seed_everything", seed, "a whole number", "0")
    for section, settings in SECTIONS.items():
        kinds = typing.get_type_hints(settings)
        texts = {text.arg_name: text.description for text in parse_from_object(settings).params}
        for field in dataclasses.fields(settings):
            factory = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            shown = default if isinstance(default, str) else json.dumps(default)
            sentence = " ".join((texts[field.name] or "").split())
            yield Key(section, field.name, sentence, describe(kinds[field.name]), shown)
