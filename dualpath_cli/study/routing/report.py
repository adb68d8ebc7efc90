"""From rows and sums to what one looks at: tables, summary.json, claims, figures, the page."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from dualpath_cli.command.launch import Launch
from dualpath_cli.output.atomic import write_text
from dualpath_cli.output.csv_text import format_csv
from dualpath_cli.study import bootstrap
from dualpath_cli.study.bootstrap import LEAST_CLUSTERS, clusters_text
from dualpath_cli.study.figures import save
from dualpath_cli.study.routing import page_details
from dualpath_cli.study.routing.claim_table import as_row, claim_table
from dualpath_cli.study.routing.claims import Claim, claims, number_of_tests
from dualpath_cli.study.routing.figures import layers as layer_figures
from dualpath_cli.study.routing.figures import speech as speech_figures
from dualpath_cli.study.routing.figures import tokens as token_figures
from dualpath_cli.study.routing.page import page
from dualpath_cli.study.routing.readouts import DEFINITION
from dualpath_cli.study.routing.summary import Summary
from dualpath_cli.study.routing.sums import Sums
from dualpath_cli.study.routing.tokens import TOKENS, read_examples
from dualpath_cli.study.tables import (
    LAST_LAYER,
    interval_text,
    print_table,
    table_of,
)
from dualpath_cli.text.tokenizer import TOKENIZER, Tokenizer

SUMMARY, CLAIMS, PAGE = "summary.json", "claims.csv", "index.html"


def write(
    launch: Launch,
    facts: dict[str, Any],
    sources: dict[str, dict[str, Any]],
    sums: Mapping[str, Sums],
    untrained_sums: Mapping[str, Sums],
    console: Console,
) -> None:
    """Writes everything of one run to its folder and prints the tables.

    `untrained_sums` are those of the model as it was before training.
    """
    options, model = launch.options, launch.settings.model
    out = options.out
    layers = tuple(n for n, kind in enumerate(model.block_kinds) if kind == "dual")
    summaries, untrained = (
        {
            name: Summary.from_sums(read[name], layers, model.loops, model.n_layers)
            for name in sources
        }
        for read in (sums, untrained_sums)
    )
    average = Summary.average(list(summaries.values()))
    statements = claims(summaries, untrained)
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
        "untrained": {name: summary.report() for name, summary in untrained.items()},
        "tests": number_of_tests(statements),
        "claims": [as_row(claim) for claim in statements],
    }
    show(summaries, sources, average, statements, console)
    if len(sources) > 1 and not any(source["anchored"] for source in sources.values()):
        console.print(f"no sequence has the anchor '{options.anchor}': nothing is aligned")
    drawn = [
        example
        for name in sources
        for example in read_examples(out / TOKENS, name, options.drawn(name))
    ]
    figures = save(
        out,
        {
            "depth": layer_figures.depth(summaries, Summary.average(list(untrained.values()))),
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
    names = (f"K = {model.loops}, as trained", f"K = {options.beside_loops}, forced")
    read = page_details.models(out, list(sources), *names)
    tokenizer = Tokenizer.load(launch.run_folder / TOKENIZER)
    page.write(
        out / PAGE, title, page_facts(facts, sources), layers, read, tokenizer.token_values()
    )
    write_text(out / CLAIMS, format_csv(content["claims"]) if statements else "")
    write_text(out / SUMMARY, json.dumps(content, indent=2, allow_nan=False) + "\n")
    drawn_names = dict.fromkeys(path.stem for path in figures)
    for name, place in {
        "tokens": out / TOKENS,
        "numbers": f"{out / SUMMARY}, {CLAIMS}",
        "figures": f"{out}: {', '.join(drawn_names)} (PNG, PDF)",
        "page": (out / PAGE).resolve().as_uri(),
    }.items():
        console.print(f"{name:9}{place}", highlight=False, soft_wrap=True)


def show(
    summaries: Mapping[str, Summary],
    sources: Mapping[str, dict[str, Any]],
    average: Summary,
    statements: Sequence[Claim],
    console: Console,
) -> None:
    """Prints a row a layer and source, and a row a claim."""
    numbers = ("layer", "deep share", "95 % interval", "g_d", "g_w", "cosine", "|g_d - g_w|",
               "loops")  # fmt: skip
    note = f"{DEFINITION}. {LAST_LAYER}" if average.is_last(-1) else DEFINITION
    table = table_of("routing by layer", "source", numbers, note)
    columns = ("gate_deep", "gate_wide", "cosine", "gate_difference", "expected_loops")
    for source, summary in summaries.items():
        shares = summary.means["deep_share"]
        low, high = summary.interval(shares)
        facts = sources[source]
        clusters = clusters_text(**facts["clusters"])
        names = [source, f"  {facts['tokens']:,} tokens, {clusters}"]
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
    table = claim_table(statements)
    table.caption = f"bands of layers: {bands}; {table.caption}"
    print_table(console, table)
    for source, facts in sources.items():
        if facts["clusters"]["count"] < LEAST_CLUSTERS:
            counted = clusters_text(**facts["clusters"])
            text = f"fewer than {LEAST_CLUSTERS} have no intervals and no tests"
            console.print(f"{source} has {counted}: {text}", highlight=False, soft_wrap=True)


def _range(layers: Sequence[int]) -> str:
    return f"{layers[0]}" if len(layers) == 1 else f"{layers[0]} to {layers[-1]}"


def page_facts(
    facts: Mapping[str, Any], sources: Mapping[str, dict[str, Any]]
) -> list[tuple[str, str]]:
    """Returns what a page says of its numbers, term by term."""
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
