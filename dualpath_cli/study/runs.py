"""Several runs together: the costs of a row or a class of tokens in all of them; their claims.

Of their routing there is a page with figures and claims, and of two a page side by side, token by
token.
"""

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from dualpath_cli.config import ModelConfig
from dualpath_cli.errors import UserError
from dualpath_cli.files import format_csv, without_nan, write_texts
from dualpath_cli.output import page as output_page
from dualpath_cli.output.figures import save
from dualpath_cli.output.table import Column, Table, show
from dualpath_cli.run.run_folder import TOKENIZER
from dualpath_cli.run.trained import find_run
from dualpath_cli.statistics.significance import holm, signed_rank_p
from dualpath_cli.study.ablation.tables import REPORT
from dualpath_cli.study.parts_of_speech import PAPER
from dualpath_cli.study.passes import read_arrays
from dualpath_cli.study.routing import figures
from dualpath_cli.study.routing.claims import (
    as_row,
    claim_table,
    decided,
    runs_table,
    same_profile,
    verdicts,
)
from dualpath_cli.study.routing.page import page
from dualpath_cli.study.routing.page.passes import models
from dualpath_cli.study.routing.readouts import most_steps
from dualpath_cli.study.routing.report import CLAIMS, PAGE, SUMMARY, page_facts
from dualpath_cli.study.routing.study import PASSES
from dualpath_cli.study.routing.summary import Summary
from dualpath_cli.study.routing.tokens import Example
from dualpath_cli.text.tokenizer import Tokenizer

Record = dict[str, Any]


def _reports(folders: Sequence[Path], name: str) -> list[Record]:
    return [json.loads((folder / name).read_text()) for folder in folders]


# Ablations


def ablations(folders: Sequence[Path], out: Path, console: Console) -> list[Path]:
    """Reads the tables of each run's folder, writes those of all together; returns the paths.

    runs.csv has the mean difference and its standard deviation over the runs for each row that all
    have; runs_token_classes.csv the mean excess of each class over random tokens, in how many runs
    it is above zero, and the p-value of Wilcoxon's signed-rank test on the runs' excesses, as it is
    and corrected for their number (Holm).
    """
    reports = _reports(folders, REPORT)
    for folder, report in zip(folders, reports, strict=True):
        if any(row["loss"] is None for row in report["rows"]):
            raise UserError(f"the losses in '{folder}' are no numbers: leave that run out")
    rows = differences_over_runs([report["rows"] for report in reports])
    if not rows:
        raise UserError(
            "the runs have no row in common: give --sources and --suite for all of them"
        )
    classes = excess_over_runs([report["excess"] for report in reports])
    if classes:
        _show(classes, len(folders), console)
    checkpoints = [report["checkpoint"] for report in reports]
    content = {"runs": checkpoints, "rows": rows, "token_classes": classes}
    texts = {"runs.json": json.dumps(content, indent=2) + "\n", "runs.csv": format_csv(rows)}
    if classes:
        texts["runs_token_classes.csv"] = format_csv(classes)
    return write_texts(out, texts)


def differences_over_runs(runs: Sequence[Sequence[Record]]) -> list[Record]:
    """A row for each row that all runs have: mean and standard deviation over them."""
    keys = ("suite", "intervention", "source")
    return [
        {
            **dict(zip(keys, names, strict=True)),
            "runs": len(rows),
            "loss": mean(row["loss"] for row in rows),
            "difference": mean(row["difference"] for row in rows),
            "difference_sd": stdev(row["difference"] for row in rows),
        }
        for names, rows in _in_all(runs, keys).items()
    ]


def excess_over_runs(runs: Sequence[Sequence[Record]]) -> list[Record]:
    """A row for each class and source that all runs have, from their `excess` rows.

    The tests of the paper's classes are corrected together, those of all other classes apart.
    """
    groups = _in_all(runs, ("token_class", "path", "source"))
    records = [
        {
            "forced": f"{token_class} {path}",
            "source": source,
            "runs": len(values),
            "mean": mean(values),
            "least": min(values),
            "most": max(values),
            "per_forced": mean(row["per_forced"] for row in rows),
            "above": sum(value > 0 for value in values),
            "p": signed_rank_p(values),
        }
        for (token_class, path, source), rows in groups.items()
        if None not in (values := [row["excess"] for row in rows])  # a class without tokens
    ]
    paper = {token_class.name for token_class in PAPER}
    for of_paper in (True, False):
        family = [r for r in records if (r["forced"].rpartition(" ")[0] in paper) is of_paper]
        for record, p in zip(family, holm([r["p"] for r in family]), strict=True):
            record["p_holm"] = p
    return [without_nan(record) for record in records]


def _show(rows: Sequence[Record], runs: int, console: Console) -> None:
    columns = [
        Column("forced"), Column("source"), Column("mean", "+.4f"),
        Column("least", "+.4f"), Column("most", "+.4f"), Column("per forced", "+.3f"),
        Column("above 0", ""), Column("Wilcoxon p", ".3g"), Column("Holm", ".3g"),
    ]  # fmt: skip
    cells = [
        (row["forced"], row["source"], row["mean"], row["least"], row["most"], row["per_forced"],
         f"{row['above']} of {row['runs']}", row["p"], row["p_holm"])
        for row in rows
    ]  # fmt: skip
    title = f"excess over random tokens, {runs} runs, {len(rows)} tests"
    show(console, Table(columns, cells, title, names=2))
    if runs < 6:
        console.print("with fewer than six runs the test cannot give p < 0.05", highlight=False)


def _in_all(
    runs: Sequence[Sequence[Record]], keys: Sequence[str]
) -> dict[tuple[str, ...], list[Record]]:
    """Groups the rows of runs by the values of some keys; leaves out what a run lacks."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for row in chain.from_iterable(runs):
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return {values: rows for values, rows in groups.items() if len(rows) == len(runs)}


# Routing


def routings(folders: Sequence[Path], out: Path, console: Console) -> list[Path]:
    """Reads what was written of each run and sets the runs side by side; returns the paths.

    A run's line in the figures is the mean over its sources. The claims of all runs go to
    claims.csv, and to a page that leads to each run's page.
    """
    reports = _reports(folders, SUMMARY)
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
    rows = [{"run": name, **row} for name, report in runs.items() for row in report["claims"]]
    profiles = []  # whether runs of the same layers share one, for each pair of them
    for pair in combinations(lines, 2):
        trained, nulls = ([of[name] for name in pair] for of in (lines, untrained))
        if trained[0].layers == trained[1].layers:
            profiles += same_profile(", ".join(pair), trained, nulls)
    profiles = decided(profiles)
    rows += [{"run": claim.source, **as_row(claim)} for claim in profiles]
    if profiles:
        show(console, claim_table(profiles))
    by_claim = verdicts(rows)
    show(console, runs_table(by_claim, names))
    alike = [line for line in untrained.values() if line.layers == lines[names[0]].layers]
    null = Summary.average(alike)
    drawings = {
        "depth": figures.depth(lines, null),
        "steps": figures.steps(lines, null),
        "polarisation": figures.polarisation(lines),
    }
    source_facts = (
        "sha256", "tokens", "sequences", "clusters", "anchored", "loss", "bits_per_byte",
    )  # fmt: skip
    content = {
        "runs": {
            name: {
                "checkpoint": report["checkpoint"],
                "sources": {
                    source: {key: facts[key] for key in source_facts}
                    for source, facts in report["sources"].items()
                },
                **lines[name].report(),
            }
            for name, report in runs.items()
        }
    }
    both = _write_beside(folders, reports, names, out, console)
    pages = {name: f"{folder.name}/{PAGE}" for name, folder in zip(names, folders, strict=True)}
    texts = {
        SUMMARY: json.dumps(content, indent=2, allow_nan=False) + "\n",
        CLAIMS: format_csv(rows) if rows else "",
        PAGE: _several(pages, runs_table(by_claim, names, sortable=True), both, drawings),
    }
    return [*save(out, drawings), *both, *write_texts(out, texts)]


def _average(folder: Path, report: Record, key: str) -> Summary:
    """The mean over a run's sources: of its checkpoint's passes, or of the untrained model's."""
    layers, model = report["layers"], ModelConfig(**report["model"])
    passes = [read_arrays(folder / PASSES / f"{source[key]}.npz")
              for source in report["sources"].values()]  # fmt: skip
    return Summary.average(
        [Summary.from_sums(sums, layers, most_steps(model), model.n_layers) for sums in passes]
    )


def _write_beside(
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
            models(folder, sources, name)[0] for folder, name in zip(folders, names, strict=True)
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
    cut = [
        [example.first(n) for example, n in zip(model.examples, lengths, strict=True)]
        for model in read
    ]
    read = [replace(model, examples=own) for model, own in zip(read, cut, strict=True)]
    facts = [
        (f"{name}: {term}", text)
        for name, report in zip(names, reports, strict=True)
        for term, text in page_facts(report)
    ]
    folder = find_run(reports[0]["checkpoint"]["path"]).folder
    values = Tokenizer.load(folder / TOKENIZER).token_values()
    path = out / "beside.html"
    return [page.write(path, title, facts, reports[0]["layers"], read, values)]


def _several(
    pages: Mapping[str, str], claims: Table, both: Sequence[Path], drawings: Mapping[str, Figure]
) -> str:
    """The page of several runs, with a link to the page of each.

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
    captions = {
        "depth": "Deep share and cosine per layer, a line a run.",
        "steps": "What each step does per layer, a row of panels a run; dashed before training.",
        "polarisation": "Difference of the gates per layer, a line a run.",
    }
    sections = [
        "<p>Each run has a page of its own, to read token by token:</p>",
        f"<ul>\n{items}</ul>",
        output_page.pictures(drawings, captions),
        output_page.tables([claims]),
    ]
    return output_page.page(f"Routing of {len(pages)} runs", sections)


def _unlike(reports: Sequence[dict[str, Any]]) -> str | None:
    """Why two runs cannot be set side by side; None if they can."""
    tokenizers = [[source["tokenizer"] for source in r["sources"].values()] for r in reports]
    layers = [report["layers"] for report in reports]
    lengths = [report["model"]["max_seq_len"] for report in reports]
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
