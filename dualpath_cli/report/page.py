"""A page of tables and figures: one HTML file that needs no network, in light and
dark."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from dualpath_cli.report.table import Entry, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDE = 8  # inches; wider figures have a whole row of the page
SPANNING = ' class="wide" tabindex="0"'  # keys scroll it, as a table


def page(title: str, sections: Iterable[str]) -> str:
    folder = Path(__file__).parent
    script = (folder / "sorting.js").read_text(encoding="utf-8")
    style = (folder / "style.css").read_text(encoding="utf-8")
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


def lead(text: str) -> str:
    """The first paragraph, which says what the page is."""
    return f"<p>{escape(text)}</p>"


def terms(facts: Sequence[tuple[str, str]]) -> str:
    if not facts:
        return ""
    items = [
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts
    ]
    return "\n".join(["<dl>", *items, "</dl>"])


def tables(shown: Sequence[Table]) -> str:
    """Returns a section for each table; headings are buttons that sort by
    `data-order`."""
    return "\n".join(map(_section, shown))


def _section(table: Table) -> str:
    sides = [
        "" if column.format is None else ' class="number"' for column in table.columns
    ]
    heads = "".join(
        f'<th scope="col"{side}><button>{escape(column.line)}</button></th>'
        for column, side in zip(table.columns, sides, strict=True)
    )

    def text(cell: Entry, side: str) -> str:
        # JSON writes infinity as JavaScript reads it.
        number = cell.number
        order = "" if number is None else f' data-order="{json.dumps(number)}"'
        words = escape(cell.text)
        if cell.lowest:
            words = f"<strong>{words}</strong>"
        return f"<td{side}{order}>{words}</td>"

    # An empty row is a line of the table in a terminal.
    rows = "\n".join(
        f"<tr>{''.join(map(text, row, sides))}</tr>" for row in table.cells() if row
    )
    return f"""<section>
<h2>{escape(table.title)}</h2>
<div class="scroll" tabindex="0"><table>
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody>
</table></div>
<p>{escape(table.caption)}</p>
</section>"""


def pictures(
    figures: Mapping[str, "Figure | None"], captions: Mapping[str, str]
) -> str:
    """Returns all figures that are not None, in the order of their captions."""
    from dualpath_cli.report.figures import svg

    shown = []
    for name, words in captions.items():
        figure = figures.get(name)
        if figure is None:
            continue
        width, _ = figure.get_size_inches()
        spanning = SPANNING if width > WIDE else ""
        caption = f"<figcaption>{escape(words)}</figcaption>"
        shown.append(f"<figure{spanning}>\n{svg(figure, words)}{caption}\n</figure>")
    return '<div class="figures">\n' + "\n".join(shown) + "\n</div>"
