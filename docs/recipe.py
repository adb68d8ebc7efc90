"""Writes docs/recipe.md, every key of a recipe: python docs/recipe.py"""

import dataclasses
import json
import typing
from pathlib import Path

from docstring_parser import parse_from_object

from dualpath_cli.recipe.parser import describe
from dualpath_cli.recipe.settings import SECTIONS

PAGE = Path(__file__).with_name("recipe.md")
HEAD = """\
# Every key of a recipe

Written by `python docs/recipe.py` from the settings; `dualpath fit --help-recipe` prints the same.
A recipe is a YAML file of these sections; `base: NAME` starts from another one. On a command line a
key is `--SECTION.KEY VALUE`. Lists and mappings are written as in YAML, numbers of tokens and FLOPs
also as 80M or 38.5B.
"""
TABLE = "| key | is | default | |\n| --- | --- | --- | --- |\n"


def page() -> str:
    """The page, as the settings are now."""
    seed = (
        "| `seed_everything` | a whole number | `0` | Seed of the weights and of the data order. |"
    )
    parts = [HEAD, f"\n## Without a section\n\n{TABLE}{seed}\n"]
    for section, settings in SECTIONS.items():
        parts.append(f"\n## {section}\n\n{TABLE}")
        kinds = typing.get_type_hints(settings)
        texts = {text.arg_name: text.description for text in parse_from_object(settings).params}
        for field in dataclasses.fields(settings):
            factory = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            shown = default if isinstance(default, str) else json.dumps(default)
            sentence = " ".join((texts[field.name] or "").split())
            cells = (f"`{field.name}`", describe(kinds[field.name]), f"`{shown}`", sentence)
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
