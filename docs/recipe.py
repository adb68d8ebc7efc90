"""Writes docs/recipe.md, every key of a recipe: python docs/recipe.py"""

from itertools import groupby
from pathlib import Path

from dualpath_cli.recipe.keys import documented

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
    parts = [HEAD]
    for section, keys in groupby(documented(), key=lambda key: key.section):
        parts.append(f"\n## {section or 'Without a section'}\n\n{TABLE}")
        for key in keys:
            cells = (f"`{key.name}`", key.kind, f"`{key.default}`", key.sentence)
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
