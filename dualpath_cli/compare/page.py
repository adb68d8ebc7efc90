"""One HTML page of a comparison: tables that can be sorted, and the figures; no network."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path

from dualpath_cli.compare.sheet import Cell, Sheet
from dualpath_cli.output.atomic import write_text

FIGURES = {
    "quality": "Bits per byte against parameters; lower and further left is better.",
    "tokens": "Training loss against tokens: mean over seeds, band from the lowest to the highest.",
    "hours": "Training loss against measured hours, which are those of the machine that trained.",
}


def write(
    path: Path,
    facts: Sequence[tuple[str, str]],
    main: Sequence[Sheet],
    tests: Sequence[Sheet],
) -> Path:
    """Writes the page, with the figures that lie beside it; returns its path."""
    here = Path(__file__).parent
    terms = "\n".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts)
    figures = "\n".join(
        _figure(path.with_name(f"{name}.png"), words)
        for name, words in FIGURES.items()
        if path.with_name(f"{name}.png").is_file()
    )
    script, style = (
        (here / name).read_text(encoding="utf-8") for name in ("sorting.js", "style.css")
    )
    write_text(path, f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>Comparison of runs</title>
<style>{style}</style>
<main>
<h1>Comparison of runs</h1>
<dl>
{terms}
</dl>
{_tables(main)}
{figures}
{_tables(tests)}
</main>
<script type="module">{script}</script>
</html>
""")  # fmt: skip
    return path


def _tables(sheets: Sequence[Sheet]) -> str:
    return "\n".join(map(_table, sheets))


def _table(sheet: Sheet) -> str:
    words = len(sheet.names)
    heads = "".join(
        f'<th scope="col"{_side(n < words)}><button>{_text(heading)}</button></th>'
        for n, heading in enumerate(sheet.headings)
    )
    rows = "\n".join(
        f"<tr>{''.join(_cell(cell, n < words) for n, cell in enumerate(row))}</tr>"
        for row in sheet.rows
    )
    return f"""<section>
<h2>{_text(sheet.title)}</h2>
<div class="scroll" tabindex="0"><table>
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody>
</table></div>
<p>{_text(sheet.caption)}</p>
</section>"""


def _cell(cell: Cell, words: bool) -> str:
    order = "" if cell.order is None else f' data-order="{cell.order!r}"'
    text = f"<strong>{_text(cell.text)}</strong>" if cell.best else _text(cell.text)
    return f"<td{_side(words)}{order}>{text}</td>"


def _side(words: bool) -> str:
    return "" if words else ' class="number"'


def _figure(path: Path, words: str) -> str:
    image = base64.b64encode(path.read_bytes()).decode()
    return f"""<figure>
<img src="data:image/png;base64,{image}" alt="{_text(words)}">
<figcaption>{_text(words)}</figcaption>
</figure>"""


def _text(text: str) -> str:
    return html.escape(text)
