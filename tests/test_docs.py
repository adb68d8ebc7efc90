"""The pages of the repository: links lead somewhere, and README lists the commands there are."""

import re
import runpy
from pathlib import Path

import pytest

from dualpath_cli.cli.commands import COMMANDS

ROOT = Path(__file__).parents[1]
FOLDERS = ("*.md", "docs/**/*.md", "docs/*.ipynb", "benchmarks/*.md")
PAGES = sorted(page for pattern in FOLDERS for page in ROOT.glob(pattern))


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_inside_the_repository_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        if path.startswith(("https:", "http:")):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_readme_lists_the_commands_as_help_does():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[`dualpath (\w+(?: \w+)?)`\]\(.*?\) \| (.*) \|$", text, re.MULTILINE)
    assert rows == [(command.name, command.purpose) for command in COMMANDS.values()]


def test_the_page_of_a_recipe_has_every_key_as_it_is():
    written = (ROOT / "docs" / "recipe.md").read_text(encoding="utf-8")
    assert written == runpy.run_path(str(ROOT / "docs" / "recipe.py"))["page"](), "docs/recipe.py"
