"""Writes docs/recipe.md, every key of a recipe: python docs/recipe.py"""

import dataclasses
import json
import re
import typing
from pathlib import Path

from docstring_parser import parse_from_object

from dualpath_cli.base.ranges import PATH_FORM, SIZE_FORM
from dualpath_cli.recipe.elsewhere import TABLE as ELSEWHERE
from dualpath_cli.recipe.elsewhere import TRAINERS
from dualpath_cli.recipe.parser import describe
from dualpath_cli.recipe.settings import SECTIONS, Settings

PAGE = Path(__file__).with_name("recipe.md")
HEAD = """\
# Every key of a recipe

Written by `python docs/recipe.py` from the settings; `dualpath fit --help-recipe`
prints the same keys. A recipe is a YAML file of these sections; `base: NAME` starts
from another one. On a command line a key is `--SECTION.KEY VALUE`, with lists and
mappings as in YAML. A size is a whole number from 1 to 10^18, also written 80M, 38.5B
or 80e6. A path may begin with `~`; shell variables are not expanded. A key whose
default is null accepts null. Where no type is named, the default shows the type.
"""
ELSEWHERE_HEAD = """
## Words of other trainers

These options of other trainers are refused, and the message names their counterpart.

"""
SHORT = {
    PATH_FORM: "path",
    SIZE_FORM: "size",
    "a mapping of names to values": "mapping",
    " (each mapping)": "",
    "a whole number": "whole number",
    "a number": "number",
    "a list": "list",
    "one of ": "",
}
TABLE = "| key | default | |\n| --- | --- | --- |\n"


def page() -> str:
    """The page, as the settings are now."""
    parts = [HEAD]
    for section, settings in {"Without a section": Settings, **SECTIONS}.items():
        parts.append(f"\n## {section}\n\n{TABLE}")
        kinds = typing.get_type_hints(settings)
        texts = {
            text.arg_name: text.description
            for text in parse_from_object(settings).params
        }
        for field in dataclasses.fields(settings):
            if field.name in SECTIONS:
                continue
            factory = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            shown = default if isinstance(default, str) else json.dumps(default)
            sentence = " ".join((texts[field.name] or "").split())
            kind = describe(kinds[field.name])
            for words, short in SHORT.items():
                kind = kind.replace(words, short)
            kind = re.sub(r"^(.*) or list \(each \1( or null)?\)", r"\1 or list", kind)
            if default is None:
                kind = kind.removesuffix(" or null")
            elif kind in ("whole number", "number", "text", "true or false"):
                kind = ""
            cells = (
                f"`{field.name}`",
                f"`{shown}`",
                f"*{kind}*. {sentence}" if kind else sentence,
            )
            parts.append(
                "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
            )
    return "".join(parts) + elsewhere()


def elsewhere() -> str:
    """The table of other trainers' words, which messages of unknown options read,
    too."""
    titles = ["here", *TRAINERS.values(), ""]
    lines = [f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|"]
    for row in ELSEWHERE:
        names = [getattr(row, trainer).split() for trainer in TRAINERS]
        key = (
            row.key if "." in row.key or "_" in row.key else row.key and f"--{row.key}"
        )
        cells = [
            f"`{key}`" if key else "",
            *(", ".join(f"`{n}`" for n in one) for one in names),
        ]
        lines.append(f"| {' | '.join([*cells, row.note])} |")
    return ELSEWHERE_HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
