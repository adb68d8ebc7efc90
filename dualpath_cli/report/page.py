"""A page of tables and figures: one HTML file that needs no network, in light and
dark."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from dualpath_cli.report.table import Entry, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# inches; wider figures have a row of the page alone
WIDE, SPANNING = 8, ' class="wide"'


def page(title: str, sections: Iterable[str]) -> str:
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


def lead(text: str) -> str:
    """The first paragraph, which says what the page is."""
    return f"<p>{escape(text)}</p>"


def terms(facts: Sequence[tuple[str, str]]) -> str:
    items = [
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts
    ]
    return "\n".join(["<dl>", *items, "</dl>"]) if items else ""


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
        order = "" if cell.number is None else f' data-order="{cell.number!r}"'
        words = (
            f"<strong>{escape(cell.text)}</strong>"
            if cell.lowest
            else escape(cell.text)
        )
        return f"<td{side}{order}>{words}</td>"

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
    """Returns all figures that are not None, in the order of their captions; wide ones
    alone."""
    from dualpath_cli.report.figures import svg

    shown = "\n".join(
        f"<figure{SPANNING if figure.get_size_inches()[0] > WIDE else ''}>\n"
        f"{svg(figure, words)}<figcaption>{escape(words)}</figcaption>\n</figure>"
        for name, words in captions.items()
        if (figure := figures.get(name)) is not None
    )
    return f'<div class="figures">\n{shown}\n</div>'
