"""From rows and sums to what one looks at: tables, summary.json, claims, figures, the page."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from dualpath_cli.command.launch import Launch
from dualpath_cli.output.atomic import write_text
from dualpath_cli.output.csv_text import format_csv
from dualpath_cli.study import bootstrap
from dualpath_cli.study.figures import save
from dualpath_cli.study.routing.claims import Claim, claims
from dualpath_cli.study.routing.figures import layers as layer_figures
from dualpath_cli.study.routing.figures import speech as speech_figures
from dualpath_cli.study.routing.figures import tokens as token_figures
from dualpath_cli.study.routing.options import AVERAGE, RoutingOptions
from dualpath_cli.study.routing.page import page
from dualpath_cli.study.routing.page.examples import Example
from dualpath_cli.study.routing.readouts import DEFINITION
from dualpath_cli.study.routing.summary import LEAST_SEQUENCES, Summary
from dualpath_cli.study.routing.sums import Sums
from dualpath_cli.study.routing.tokens import TOKENS, read_examples
from dualpath_cli.study.tables import interval_text, print_table, table_of, without_nan

SUMMARY, CLAIMS, PAGE = "summary.json", "claims.csv", "index.html"
VERDICTS = "holds, fails: the whole 95 % interval does; the tests are our reading of the paper"


def write(
    launch: Launch,
    facts: dict[str, Any],
    sources: dict[str, dict[str, Any]],
    sums: Mapping[str, Sums],
    console: Console,
) -> None:
    """Writes everything of one run to its folder and prints the tables."""
    options, model = launch.options, launch.settings.model
    out = options.out
    layers = tuple(n for n, kind in enumerate(model.block_kinds) if kind == "dual")
    summaries = {name: Summary.from_sums(sums[name], layers, model.loops) for name in sources}
    average = Summary.average(list(summaries.values()))
    statements = claims(summaries, average)
    for name, source_facts in sources.items():
        source_facts |= {"tokens": int(sums[name]["tokens"][0])}
        source_facts |= {key: float(sums[name][key]) for key in ("loss", "bits_per_byte")}
    content = {
        **facts,
        "layers": layers,
        "bands": average.layers_of_bands,
        "bootstrap": bootstrap.FACTS,
        "sources": {name: sources[name] | summaries[name].report() for name in sources},
        "average": average.report(),
        "claims": [as_row(claim) for claim in statements],
    }
    show(summaries, sums, average, statements, console)
    if len(sources) > 1 and not any(source["anchored"] for source in sources.values()):
        console.print(f"no sequence has the anchor '{options.anchor}': nothing is aligned")
    drawn, shown = examples(out / TOKENS, options, list(sources))
    figures = save(
        out,
        {
            "depth": layer_figures.depth(summaries),
            "polarisation": layer_figures.polarisation(summaries),
            "gate_density": layer_figures.bands(sums, average),
            "gate_density_layers": layer_figures.grid(sums, layers),
            "tokens": token_figures.coloured_text(drawn),
            "layers_by_token": token_figures.layer_grid(drawn, layers),
            "aligned": token_figures.aligned(summaries, options.anchor),
            "parts_of_speech": speech_figures.heat_maps(summaries, average),
            "parts_of_speech_box": speech_figures.boxes(sums, average),
        },
    )
    title = (
        f"{'/'.join(launch.run_folder.resolve().parts[-2:])}, step {facts['checkpoint']['step']:,}"
    )
    page.write(out / PAGE, title, _facts(facts, sources), layers, shown)
    write_text(out / CLAIMS, format_csv(content["claims"]) if statements else "")
    write_text(out / SUMMARY, json.dumps(content, indent=2, allow_nan=False) + "\n")
    names = dict.fromkeys(path.stem for path in figures)
    for name, place in {
        "tokens": out / TOKENS,
        "numbers": f"{out / SUMMARY}, {CLAIMS}",
        "figures": f"{out}: {', '.join(names)} (PNG, PDF)",
        "page": (out / PAGE).resolve().as_uri(),
    }.items():
        console.print(f"{name:9}{place}", highlight=False, soft_wrap=True)


def as_row(claim: Claim) -> dict[str, Any]:
    """A claim as JSON and CSV have it; None where there is no interval."""
    return without_nan(asdict(claim) | {"verdict": claim.verdict})


def examples(
    tokens: Path, options: RoutingOptions, sources: Sequence[str]
) -> tuple[list[Example], list[Example]]:
    """Reads the sequences that are drawn, and those that are on the page."""
    drawn, shown = [], []
    for name in sources:
        chosen = [number for source, number in options.examples if source == name]
        sequences = read_examples(tokens, name, chosen, options.sequences)
        drawn += sequences[: max(1, len(chosen))]
        shown += sequences
    return drawn, shown


def show(
    sources: Mapping[str, Summary],
    sums: Mapping[str, Sums],
    average: Summary,
    statements: Sequence[Claim],
    console: Console,
) -> None:
    """Prints a row a layer and source, and a row a claim."""
    numbers = ("layer", "deep share", "95 % interval", "g_d", "g_w", "cosine", "|g_d - g_w|",
               "loops")  # fmt: skip
    table = table_of("routing by layer", "source", numbers, DEFINITION)
    columns = ("gate_deep", "gate_wide", "cosine", "gate_difference", "expected_loops")
    for source, summary in sources.items():
        shares = summary.means["deep_share"]
        low, high = summary.interval(shares)
        tokens = int(sums[source]["tokens"][0])
        names = [source, f"  {tokens:,} tokens", f"  {summary.sequences:,} sequences"]
        for place, layer in enumerate(summary.layers):
            table.add_row(
                names[place] if place < len(names) else "", str(layer),
                "" if np.isnan(shares[0, place]) else f"{shares[0, place]:.3f}",
                interval_text(low[place], high[place], ".3f"),
                *(f"{summary.means[name][0, place]:.3f}" for name in columns),
                end_section=place == len(summary.layers) - 1,
            )  # fmt: skip
    print_table(console, table)
    bands = ", ".join(f"{name} {_range(band)}" for name, band in average.layers_of_bands.items())
    table = claim_table(statements, list(sources))
    table.caption = f"bands of layers: {bands}; {VERDICTS}"
    print_table(console, table)
    for source, summary in sources.items():
        if summary.sequences < LEAST_SEQUENCES:
            console.print(
                f"{source} has fewer than {LEAST_SEQUENCES} sequences: no intervals of it, nor of "
                "averages with it",
                highlight=False, soft_wrap=True,
            )  # fmt: skip


def claim_table(statements: Sequence[Claim], sources: Sequence[str]) -> Table:
    """The claims as a table.

    Where there are several sources, their average has the row, and their verdicts stand in it.
    """
    table = table_of("the paper's claims", (), (), VERDICTS)
    table.add_column("claim")
    for name in ("value", "95 % interval", "test"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("source by source")
    for claim in statements:
        if claim.source in sources and len(sources) > 1:
            continue
        key = (claim.claim, claim.number)
        single = [c for c in statements if c.source in sources and (c.claim, c.number) == key]
        verdicts = {verdict: [c.source for c in single if c.verdict == verdict]
                    for verdict in ("holds", "fails", "open")}  # fmt: skip
        by_source = "; ".join(f"{v}: {', '.join(names)}" for v, names in verdicts.items() if names)
        table.add_row(
            f"{claim.claim}: {claim.number}", f"{claim.value:+.3f}",
            interval_text(claim.low, claim.high, "+.3f"),
            f"{'>' if claim.above else '<'} {claim.bound:g}", claim.verdict,
            by_source if claim.source == AVERAGE else claim.source,
        )  # fmt: skip
    return table


def _range(layers: Sequence[int]) -> str:
    return f"{layers[0]}" if len(layers) == 1 else f"{layers[0]} to {layers[-1]}"


def _facts(facts: dict[str, Any], sources: dict[str, dict[str, Any]]) -> list[tuple[str, str]]:
    model, tagger = facts["model"], facts["tagger"]
    return [
        ("checkpoint", f"{facts['checkpoint']['path']}, sha256 {facts['checkpoint']['sha256']}"),
        ("model", f"{model['n_layers']} layers, width {model['d_model']}, K = {model['loops']}"),
        ("computed with", f"torch {facts['torch']}, {facts['device']}, {facts['precision']}"),
        (
            "parts of speech",
            "not tagged" if tagger is None else ", ".join(f"{k} {v}" for k, v in tagger.items()),
        ),
        *(
            (
                name,
                f"{source['path']}, sha256 {source['sha256']}, {source['tokens']:,} tokens in "
                f"{source['sequences']:,} sequences",
            )
            for name, source in sources.items()
        ),
    ]
