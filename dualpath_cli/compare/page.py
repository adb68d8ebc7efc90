"""One HTML page of a comparison: tables that can be sorted, and the figures; no network."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from dualpath_cli.files.atomic import write_text
from dualpath_cli.output.table import Table, html

FIGURES = {
    "quality": "Bits per byte against parameters; lower and further left is better.",
    "tokens": "Training loss against tokens: mean over seeds, band from the lowest to the highest.",
    "hours": "Training loss against measured hours, which are those of the machine that trained.",
}


def write(
    path: Path, facts: Sequence[tuple[str, str]], main: Sequence[Table], tests: Sequence[Table]
) -> Path:
    """Writes the page: tables, and the figures that lie beside it; returns its path."""
    terms = "\n".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    first, second = ("\n".join(map(html, tables)) for tables in (main, tests))
    figures = "\n".join(
        _figure(image, words)
        for name, words in FIGURES.items()
        if (image := path.with_name(f"{name}.png")).is_file()
    )
    script, style = (
        Path(__file__).with_name(name).read_text(encoding="utf-8")
        for name in ("sorting.js", "style.css")
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
{first}
{figures}
{second}
</main>
<script type="module">{script}</script>
</html>
""")  # fmt: skip
    return path


def _figure(path: Path, words: str) -> str:
    image = base64.b64encode(path.read_bytes()).decode()
    return f"""<figure>
<img src="data:image/png;base64,{image}" alt="{escape(words)}">
<figcaption>{escape(words)}</figcaption>
</figure>"""
