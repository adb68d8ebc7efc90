"""Several runs together: a line a run, the claims of all, a page that leads to each run's own."""

import base64
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dualpath_cli.errors import UserError
from dualpath_cli.output.atomic import write_text
from dualpath_cli.output.colors import INK
from dualpath_cli.output.csv_text import format_csv
from dualpath_cli.study.figures import save
from dualpath_cli.study.passes import read_arrays
from dualpath_cli.study.routing import beside
from dualpath_cli.study.routing.claim_table import VERDICTS, as_row, claim_table
from dualpath_cli.study.routing.claims import decided, same_profile
from dualpath_cli.study.routing.figures import layers as layer_figures
from dualpath_cli.study.routing.report import CLAIMS, PAGE, SUMMARY
from dualpath_cli.study.routing.study import PASSES
from dualpath_cli.study.routing.summary import Summary
from dualpath_cli.study.tables import print_table, table_of

SOURCE_FACTS = ("sha256", "tokens", "sequences", "clusters", "anchored", "loss", "bits_per_byte")
"""What of each source is in the summary of several runs."""


def combine(folders: Sequence[Path], out: Path, console: Console) -> list[Path]:
    """Reads what was written of each run and sets the runs side by side; returns the paths.

    A run's line is the mean over its sources. The claims of all runs go to claims.csv. Raises
    UserError where the runs were read on different sources.
    """
    reports = [json.loads((folder / SUMMARY).read_text()) for folder in folders]
    sources = [
        {name: source["sha256"] for name, source in report["sources"].items()} for report in reports
    ]
    if any(texts != sources[0] for texts in sources):
        raise UserError("the runs name different validation sets: give --sources for all of them")
    names = [Path(report["checkpoint"]["path"]).parents[1].name for report in reports]
    if len(set(names)) < len(names):
        names = [folder.name for folder in folders]
    runs = dict(zip(names, reports, strict=True))
    lines, untrained = (
        {
            name: _average(folder, report, key)
            for (name, report), folder in zip(runs.items(), folders, strict=True)
        }
        for key in ("key", "untrained_key")
    )
    profiles = decided(
        [
            claim
            for one, other in combinations(lines, 2)
            if lines[one].layers == lines[other].layers
            for claim in same_profile(
                f"{one}, {other}",
                (lines[one], lines[other]),
                (untrained[one], untrained[other]),
            )
        ]
    )
    rows = [{"run": name, **row} for name, report in runs.items() for row in report["claims"]]
    by_claim = verdicts(rows)
    rows += [{"run": claim.source, **as_row(claim)} for claim in profiles]
    if profiles:
        print_table(console, claim_table(profiles))
    print_table(console, _table(by_claim, names))
    nulls = [line for line in untrained.values() if line.layers == lines[names[0]].layers]
    written = save(out, {"depth": layer_figures.depth(lines, Summary.average(nulls)),
                         "polarisation": layer_figures.polarisation(lines)})  # fmt: skip
    content = {
        "runs": {
            name: {
                "checkpoint": report["checkpoint"],
                "sources": {
                    source: {key: facts[key] for key in SOURCE_FACTS}
                    for source, facts in report["sources"].items()
                },
                **lines[name].report(),
            }
            for name, report in runs.items()
        }
    }
    both = beside.write(folders, reports, names, out, console)
    texts = {
        SUMMARY: json.dumps(content, indent=2, allow_nan=False) + "\n",
        CLAIMS: format_csv(rows) if rows else "",
        PAGE: _page(out, dict(zip(names, folders, strict=True)), by_claim, both),
    }
    for name, text in texts.items():
        write_text(out / name, text)
    return [*written, *both, *(out / name for name in texts)]


def _average(folder: Path, report: dict[str, Any], key: str) -> Summary:
    """The mean over a run's sources: of its checkpoint's passes, or of the untrained model's."""
    layers, model = report["layers"], report["model"]
    passes = [read_arrays(folder / PASSES / f"{source[key]}.npz")
              for source in report["sources"].values()]  # fmt: skip
    return Summary.average(
        [Summary.from_sums(sums, layers, model["loops"], model["n_layers"]) for sums in passes]
    )


Verdicts = dict[tuple[str, str, str], dict[str, str]]
"""By claim, source and test: a cell for each run, value and verdict."""


def verdicts(rows: Sequence[dict[str, Any]]) -> Verdicts:
    """Sets the runs' claims side by side, those of all sources one after the other."""
    by_claim: Verdicts = {}
    for row in rows:
        test = f"{'>' if row['above'] else '<'} {row['bound']:g}"
        value = "" if row["value"] is None else f"{row['value']:+.3f} "
        cell = f"{value}{row['verdict']}"
        key = (f"{row['claim']}: {row['number']}", row["source"], test)
        by_claim.setdefault(key, {})[row["run"]] = cell
    claims = list(dict.fromkeys(claim for claim, _, _ in by_claim))
    return {key: by_claim[key] for key in sorted(by_claim, key=lambda key: claims.index(key[0]))}


def _table(by_claim: Verdicts, runs: Sequence[str]) -> Table:
    table = table_of("the paper's claims, run by run", (), (), VERDICTS)
    table.add_column("claim")
    for name in ("source", "test", *runs):
        table.add_column(name, no_wrap=True)
    before = ""
    for (claim, source, test), cells in by_claim.items():
        name = "" if claim == before else claim
        table.add_row(name, source, test, *(cells.get(run, "") for run in runs))
        before = claim
    return table


def _page(out: Path, folders: Mapping[str, Path], by_claim: Verdicts, both: Sequence[Path]) -> str:
    """A page with the runs' figures, a link to the page of each and of both, and the claims."""
    links = "\n".join(
        f'<li><a href="{html.escape(folder.name)}/{PAGE}">{html.escape(name)}</a></li>'
        for name, folder in folders.items()
    )
    links += "".join(
        f'\n<li><a href="{html.escape(path.name)}">both, side by side</a></li>' for path in both
    )
    pictures = "\n".join(
        f'<img alt="{alt}" src="data:image/png;base64,'
        f'{base64.b64encode((out / file).read_bytes()).decode()}">'
        for file, alt in (
            ("depth.png", "Deep share and cosine per layer, a line a run"),
            ("polarisation.png", "Difference of the gates per layer, a line a run"),
        )
    )

    def row(tag: str, cells: Iterable[str]) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

    head = row("th", ("claim", "source", "test", *folders))
    body = "\n".join(
        row("td", (*key, *(cells.get(run, "") for run in folders)))
        for key, cells in by_claim.items()
    )
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light">
<title>Routing of {len(folders)} runs</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto;
padding: 0 1rem; color: {INK} }} img {{ max-width: 100% }} .wide {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums }}
td, th {{ padding: 0.2rem 0.7rem 0.2rem 0; text-align: left; vertical-align: top;
border-bottom: 1px solid #dedbd4 }} td:nth-child(n + 3) {{ white-space: nowrap }}</style>
<h1>Routing of {len(folders)} runs</h1>
<p>Each run has a page of its own, to read token by token:</p>
<ul>
{links}
</ul>
{pictures}
<h2>The paper's claims, run by run</h2>
<div class="wide"><table>{head}
{body}
</table></div>
<p>{VERDICTS}. With intervals: <a href="{CLAIMS}">{CLAIMS}</a>,
<a href="{SUMMARY}">{SUMMARY}</a>.</p>
</html>
"""
