"""The page of several runs: their figures, a link to the page of each, their claims."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from dualpath_cli.output import page
from dualpath_cli.output.table import Table
from dualpath_cli.study.routing.report import CLAIMS

CAPTIONS = {
    "depth": "Deep share and cosine per layer, a line a run.",
    "steps": "What each step does per layer, a row of panels a run; dashed before training.",
    "polarisation": "Difference of the gates per layer, a line a run.",
}


def text(
    pages: Mapping[str, str],
    claims: Table,
    both: Sequence[Path],
    figures: Mapping[str, Figure],
) -> str:
    """Returns the page as HTML.

    `pages` are the runs' pages by the runs' names, `both` are pages of two of them.
    """
    links = [
        *pages.items(),
        *(("both, side by side", path.name) for path in both),
        ("the claims with their intervals", CLAIMS),
    ]
    items = "".join(
        f'<li><a href="{html.escape(target)}">{html.escape(name)}</a></li>\n'
        for name, target in links
    )
    sections = [
        "<p>Each run has a page of its own, to read token by token:</p>",
        f"<ul>\n{items}</ul>",
        page.pictures(figures, CAPTIONS),
        page.tables([claims]),
    ]
    return page.page(f"Routing of {len(pages)} runs", sections)
