"""Several runs together: a line a run, the claims of all, a page that leads to each run's own."""

import base64
import html
import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from dualpath_cli.atomic import write_text
from dualpath_cli.study.ablation_table import as_csv
from dualpath_cli.study.figure_files import save
from dualpath_cli.study.routing import layer_figures
from dualpath_cli.study.routing.claims import same_profile
from dualpath_cli.study.routing.report import CLAIMS, PAGE, SUMMARY, claim_table
from dualpath_cli.study.routing.study import read_sums
from dualpath_cli.study.routing.summary import Statistics
from dualpath_cli.study.tables import print_table


def combine(folders: Sequence[Path], out: Path, console: Console) -> list[Path]:
    """Reads what was written of each run and sets the runs side by side; returns the paths.

    A run's line is the mean over its sources. The claims of all runs go to claims.csv.
    """
    summaries = {folder.name: json.loads((folder / SUMMARY).read_text()) for folder in folders}
    lines = {folder.name: _average(folder, summaries[folder.name]) for folder in folders}
    told = [
        claim
        for one, other in combinations(lines, 2)
        if lines[one].layers == lines[other].layers
        for claim in same_profile(one, other, lines[one], lines[other])
    ]
    rows = [{"run": name, **row} for name, each in summaries.items() for row in each["claims"]]
    if told:
        print_table(console, claim_table(told))
    print_table(console, _verdicts(rows, list(lines)))
    written = save(out, {"depth": layer_figures.depth(lines),
                         "polarisation": layer_figures.polarisation(lines)})  # fmt: skip
    content = {
        "runs": {
            name: {"checkpoint": summaries[name]["checkpoint"], **each.report()}
            for name, each in lines.items()
        }
    }
    texts = {
        SUMMARY: json.dumps(content, indent=2) + "\n",
        CLAIMS: as_csv(rows),
        PAGE: _page(out, lines),
    }
    for name, text in texts.items():
        write_text(out / name, text)
    return [*written, *(out / name for name in texts)]


def _average(folder: Path, summary: dict[str, Any]) -> Statistics:
    """The mean over a run's sources."""
    loops = summary["model"]["loops"]
    return Statistics.average(
        [
            Statistics.of(read_sums(folder, source["key"]), summary["layers"], loops)
            for source in summary["sources"].values()
        ]
    )


def _verdicts(rows: Sequence[dict[str, Any]], runs: Sequence[str]) -> Table:
    """A row a claim and source, a column a run."""
    table = Table(title="the paper's claims, run by run", title_justify="left")
    for name in ("claim", "source", "claimed", *runs):
        table.add_column(name, no_wrap=name in ("claim", "source", "claimed"))
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in rows:
        claimed = f"{'>' if row['above'] else '<'} {row['bound']:g}"
        # What polarises is measured twice: the number tells the two apart.
        name = row["claim"] if "less early" not in row["number"] else row["number"]
        cell = f"{row['value']:+.3f} {row['verdict']}"
        found.setdefault((name, row["source"], claimed), {})[row["run"]] = cell
    for (claim, source, claimed), cells in found.items():
        table.add_row(claim, source, claimed, *(cells.get(run, "") for run in runs))
    return table


def _page(out: Path, runs: Mapping[str, Statistics]) -> str:
    """A page with the runs' figure and a link to the page of each."""
    picture = base64.b64encode((out / "depth.png").read_bytes()).decode()
    links = "\n".join(
        f'<li><a href="{html.escape(name)}/{PAGE}">{html.escape(name)}</a>: mean deep share '
        f"{np.mean(each.means['deep_share'][0]):.3f}</li>"
        for name, each in runs.items()
    )
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light">
<title>Routing of {len(runs)} runs</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
padding: 0 1rem; color: #1f2a44 }} img {{ max-width: 100% }}</style>
<h1>Routing of {len(runs)} runs</h1>
<p>Each run has a page of its own, to read token by token:</p>
<ul>
{links}
</ul>
<img alt="Deep share and cosine per layer, a line a run" src="data:image/png;base64,{picture}">
</html>
"""
