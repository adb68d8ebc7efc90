"""A page of tables and figures: one HTML file that needs no network, in light and dark."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from dualpath_cli.output.table import Table, html

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def page(title: str, sections: Iterable[str]) -> str:
    """Returns the page; `sections` are HTML."""
    script, style = (
        Path(__file__).with_name(name).read_text(encoding="utf-8")
        for name in ("sorting.js", "style.css")
    )
    body = "\n".join(sections)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{style}</style>
<main>
<h1>{escape(title)}</h1>
{body}
</main>
<script type="module">{script}</script>
</html>
"""


def terms(facts: Sequence[tuple[str, str]]) -> str:
    """Returns a list of terms, each with a text beside it."""
    items = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    return "\n".join(["<dl>", *items, "</dl>"])


def tables(shown: Sequence[Table]) -> str:
    """Returns tables, whose headings sort them."""
    return "\n".join(map(html, shown))


def pictures(figures: Mapping[str, "Figure | None"], captions: Mapping[str, str]) -> str:
    """Returns those of the figures that are there, in the order of their captions."""
    from dualpath_cli.output.figures import svg

    shown = "\n".join(
        f"<figure>\n{svg(figure, words)}<figcaption>{escape(words)}</figcaption>\n</figure>"
        for name, words in captions.items()
        if (figure := figures.get(name)) is not None
    )
    return f'<div class="figures">\n{shown}\n</div>'
