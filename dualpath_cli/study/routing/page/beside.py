"""Pages of several runs: their figures and claims; two of them side by side, token by token."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from dualpath_cli.output import page as output_page
from dualpath_cli.output.table import Table
from dualpath_cli.run import run_file
from dualpath_cli.run.run_folder import TOKENIZER
from dualpath_cli.study.routing.page import details, page
from dualpath_cli.study.routing.page.examples import Example, Model
from dualpath_cli.study.routing.report import CLAIMS, page_facts
from dualpath_cli.text.tokenizer import Tokenizer

BESIDE = "beside.html"
CAPTIONS = {
    "depth": "Deep share and cosine per layer, a line a run.",
    "steps": "What each step does per layer, a row of panels a run; dashed before training.",
    "polarisation": "Difference of the gates per layer, a line a run.",
}


def write(
    folders: Sequence[Path],
    reports: Sequence[dict[str, Any]],
    names: Sequence[str],
    out: Path,
    console: Console,
) -> list[Path]:
    """Writes the page of two runs and returns its path; of more or fewer there is none.

    `reports` are the runs' summaries. Where the runs cannot be set side by side, says why.
    """
    if len(folders) != 2:
        return []
    title = f"{names[0]} beside {names[1]}"
    run, other_run = (folder.name.rpartition("-step-")[0] for folder in folders)
    if run == other_run:  # two checkpoints
        names = [f"step {report['checkpoint']['step']:,}" for report in reports]
        title = f"{run}, {names[0]} beside {names[1]}"
    sources = list(reports[0]["sources"])
    reason = _unlike(reports)
    if reason is None:
        read = [
            details.models(folder, sources, name)[0]
            for folder, name in zip(folders, names, strict=True)
        ]
        counts = {len(model.examples) for model in read}
        pairs = list(zip(read[0].examples, read[1].examples, strict=False))
        if len(counts) > 1 or not all(_same(*pair) for pair in pairs):
            reason = "their sequences differ; give --max-tokens and --data.val_seed for both"
    if reason is not None:
        text = f"no page of both runs side by side: {reason}"
        console.print(text, highlight=False, soft_wrap=True)
        return []
    lengths = [min(len(one.tokens), len(other.tokens)) for one, other in pairs]
    models = [
        Model(
            model.name,
            model.steps,
            [example.first(n) for example, n in zip(model.examples, lengths, strict=True)],
            model.forced,
            model.experts,
        )
        for model in read
    ]
    facts = [
        (f"{name}: {term}", text)
        for name, report in zip(names, reports, strict=True)
        for term, text in page_facts(report)
    ]
    folder = run_file.find(reports[0]["checkpoint"]["path"]).folder
    values = Tokenizer.load(folder / TOKENIZER).token_values()
    return [page.write(out / BESIDE, title, facts, reports[0]["layers"], models, values)]


def several(
    pages: Mapping[str, str],
    claims: Table,
    both: Sequence[Path],
    figures: Mapping[str, Figure],
) -> str:
    """Returns the page of several runs, with a link to the page of each.

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
        output_page.pictures(figures, CAPTIONS),
        output_page.tables([claims]),
    ]
    return output_page.page(f"Routing of {len(pages)} runs", sections)


def _unlike(reports: Sequence[dict[str, Any]]) -> str | None:
    """Why two runs cannot be set side by side; None if they can."""
    tokenizers, layers, lengths = (
        [read(report) for report in reports]
        for read in (
            lambda report: [source["tokenizer"] for source in report["sources"].values()],
            lambda report: report["layers"],
            lambda report: report["model"]["max_seq_len"],
        )
    )
    if tokenizers[0] != tokenizers[1]:
        return "their tokenizers differ"
    if layers[0] != layers[1]:
        return "layers {} of the one have gates, layers {} of the other".format(
            *(", ".join(map(str, its)) for its in layers)
        )
    if lengths[0] != lengths[1]:
        return "their sequences have up to {:,} and {:,} tokens".format(*lengths)
    return None


def _same(one: Example, other: Example) -> bool:
    """Whether two examples are of the same text, as far as both were read."""
    place = (one.source, one.number, one.length) == (other.source, other.number, other.length)
    return place and all(a == b for a, b in zip(one.tokens, other.tokens, strict=False))
