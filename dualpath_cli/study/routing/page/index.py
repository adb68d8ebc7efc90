"""The page of several runs: their figures, a link to the page of each, their claims."""

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dualpath_cli.output.colors import INK
from dualpath_cli.study.routing.claim_table import VERDICTS, Verdicts

FIGURES = {
    "depth.png": "Deep share and cosine per layer, a line a run",
    "polarisation.png": "Difference of the gates per layer, a line a run",
}


def page(
    out: Path,
    pages: Mapping[str, str],
    by_claim: Verdicts,
    both: Sequence[Path],
    files: Sequence[str],
) -> str:
    """Returns the page as HTML, with the figures that are in `out`.

    `pages` are the runs' pages by the runs' names, `both` are pages of two of them, and `files`
    have the claims with their intervals.
    """
    links = [*pages.items(), *(("both, side by side", path.name) for path in both)]
    items = "\n".join(
        f'<li><a href="{html.escape(target)}">{html.escape(name)}</a></li>'
        for name, target in links
    )
    pictures = "\n".join(
        f'<img alt="{alt}" src="data:image/png;base64,'
        f'{base64.b64encode((out / file).read_bytes()).decode()}">'
        for file, alt in FIGURES.items()
    )
    head = _row("th", ("claim", "source", "test", *pages))
    body = "\n".join(
        _row("td", (*key, *(cells.get(run, "") for run in pages)))
        for key, cells in by_claim.items()
    )
    title = f"Routing of {len(pages)} runs"
    numbers = ",\n".join(f'<a href="{file}">{file}</a>' for file in files)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light">
<title>{title}</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto;
padding: 0 1rem; color: {INK} }} img {{ max-width: 100% }} .wide {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums }}
td, th {{ padding: 0.2rem 0.7rem 0.2rem 0; text-align: left; vertical-align: top;
border-bottom: 1px solid #dedbd4 }} td:nth-child(n + 3) {{ white-space: nowrap }}</style>
<h1>{title}</h1>
<p>Each run has a page of its own, to read token by token:</p>
<ul>
{items}
</ul>
{pictures}
<h2>The paper's claims, run by run</h2>
<div class="wide"><table>{head}
{body}
</table></div>
<p>{VERDICTS}. With intervals: {numbers}.</p>
</html>
"""


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"
