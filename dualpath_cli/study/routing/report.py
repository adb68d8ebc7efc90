"""From rows and sums to what one looks at: tables, summary.json, claims, figures, the page."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dualpath_cli.atomic import write_text
from dualpath_cli.command.launch import Launch
from dualpath_cli.study.ablation.table import as_csv
from dualpath_cli.study.figures import save
from dualpath_cli.study.routing.claims import Claim, claims
from dualpath_cli.study.routing.figures import layers as layer_figures
from dualpath_cli.study.routing.figures import speech as speech_figures
from dualpath_cli.study.routing.figures import tokens as token_figures
from dualpath_cli.study.routing.options import AVERAGE
from dualpath_cli.study.routing.page import page
from dualpath_cli.study.routing.page.examples import Example
from dualpath_cli.study.routing.readouts import DEFINITION
from dualpath_cli.study.routing.statistics import RESAMPLES, SEED, Sums
from dualpath_cli.study.routing.summary import LEAST_SEQUENCES, Statistics
from dualpath_cli.study.routing.tokens import TOKENS, read_examples
from dualpath_cli.study.tables import print_table

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
    options, model, out = launch.options, launch.settings.model, launch.options.out
    layers = tuple(n for n, kind in enumerate(model.block_kinds) if kind == "dual")
    found = {name: Statistics.of(sums[name], layers, model.loops) for name in sources}
    average = Statistics.average(list(found.values()))
    told = claims(found, average)
    for name, each in sources.items():
        each |= {"tokens": int(sums[name]["tokens"][0])}
        each |= {key: float(sums[name][key]) for key in ("loss", "bits_per_byte")}
    content = {
        **facts,
        "layers": layers,
        "bands": {name: [layers[n] for n in own] for name, own in average.bands.items()},
        "bootstrap": {"resamples": RESAMPLES, "seed": SEED, "weights": "Poisson(1)"},
        "sources": {name: sources[name] | found[name].report() for name in sources},
        "average": average.report(),
        "claims": [as_row(claim) for claim in told],
    }
    show(found, sums, average, told, console)
    if len(found) > 1 and not any(each["anchored"] for each in sources.values()):
        console.print(f"no sequence has the anchor '{options.anchor}': nothing is aligned")
    drawn, shown = examples(out / TOKENS, launch)
    figures = save(
        out,
        {
            "depth": layer_figures.depth(found),
            "polarisation": layer_figures.polarisation(found),
            "gate_density": layer_figures.bands(sums, average),
            "gate_density_layers": layer_figures.grid(sums, layers),
            "tokens": token_figures.coloured_text(drawn),
            "layers_by_token": token_figures.layer_grid(drawn, layers),
            "aligned": token_figures.aligned(found, options.anchor),
            "parts_of_speech": speech_figures.heat_maps(found, average),
            "parts_of_speech_box": speech_figures.boxes(sums, average),
        },
    )
    title = (
        f"{'/'.join(launch.run_folder.resolve().parts[-2:])}, step {facts['checkpoint']['step']:,}"
    )
    page.write(out / PAGE, title, _facts(facts, sources), layers, shown)
    write_text(out / CLAIMS, as_csv(content["claims"]) if told else "")
    write_text(out / SUMMARY, json.dumps(content, indent=2, allow_nan=False) + "\n")
    names = dict.fromkeys(path.stem for path in figures)
    for name, what in {
        "tokens": out / TOKENS,
        "numbers": f"{out / SUMMARY}, {CLAIMS}",
        "figures": f"{out}: {', '.join(names)} (PNG, PDF)",
        "page": (out / PAGE).resolve().as_uri(),
    }.items():
        console.print(f"{name:9}{what}", highlight=False, soft_wrap=True)


def as_row(claim: Claim) -> dict[str, Any]:
    """A claim as JSON and CSV have it; None where there is no interval."""
    row = asdict(claim) | {"verdict": claim.verdict}
    return {key: None if value != value else value for key, value in row.items()}


def examples(tokens: Path, launch: Launch) -> tuple[list[Example], list[Example]]:
    """Reads the sequences that are drawn, and those that are on the page."""
    chosen = list(launch.options.examples)
    drawn, shown = [], []
    for name in launch.settings.data.val:
        own = [number for source, number in chosen if source == name]
        found = read_examples(tokens, name, own, launch.options.sequences)
        drawn += found[: max(1, len(own))]
        shown += found
    return drawn, shown


def show(
    sources: Mapping[str, Statistics],
    sums: Mapping[str, Sums],
    average: Statistics,
    told: Sequence[Claim],
    console: Console,
) -> None:
    """Prints a row a layer and source, and a row a claim."""
    table = Table(title="routing by layer", title_justify="left", caption=DEFINITION,
                  caption_justify="left")  # fmt: skip
    table.add_column("source", no_wrap=True)
    for name in ("layer", "deep share", "95 % interval", "g_d", "g_w", "cosine", "|g_d - g_w|",
                 "loops"):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    columns = ("gate_deep", "gate_wide", "cosine", "gate_difference", "expected_loops")
    for source, of in sources.items():
        share = of.estimate(of.means["deep_share"])
        tokens = int(sums[source]["tokens"][0])
        names = [source, f"  {tokens:,} tokens", f"  {of.sequences:,} sequences"]
        for place, layer in enumerate(of.layers):
            table.add_row(
                names[place] if place < len(names) else "", str(layer),
                _number(share["mean"][place]),
                interval(share["low"][place], share["high"][place]),
                *(f"{of.means[name][0, place]:.3f}" for name in columns),
                end_section=place == len(of.layers) - 1,
            )  # fmt: skip
    print_table(console, table)
    bands = ", ".join(f"{name} {_range([average.layers[n] for n in own])}"
                      for name, own in average.bands.items())  # fmt: skip
    table = claim_table(told, list(sources))
    table.caption = f"bands of layers: {bands}; {VERDICTS}"
    print_table(console, table)
    for source, of in sources.items():
        if of.sequences < LEAST_SEQUENCES:
            console.print(
                f"{source} has fewer than {LEAST_SEQUENCES} sequences: no intervals of it, nor of "
                "averages with it",
                highlight=False, soft_wrap=True,
            )  # fmt: skip


def claim_table(told: Sequence[Claim], sources: Sequence[str]) -> Table:
    """The claims as a table.

    Where there are several sources, their average has the row, and their verdicts stand in it.
    """
    table = Table(title="the paper's claims", title_justify="left", caption=VERDICTS,
                  caption_justify="left")  # fmt: skip
    table.add_column("claim")
    for name in ("value", "95 % interval", "test"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("source by source")
    for each in told:
        if each.source in sources and len(sources) > 1:
            continue
        own = [other for other in told if other.source in sources and
               (other.claim, other.number) == (each.claim, each.number)]  # fmt: skip
        verdicts = {verdict: [other.source for other in own if other.verdict == verdict]
                    for verdict in ("holds", "fails", "open")}  # fmt: skip
        by_source = "; ".join(f"{v}: {', '.join(names)}" for v, names in verdicts.items() if names)
        table.add_row(
            f"{each.claim}: {each.number}", f"{each.value:+.3f}",
            interval(each.low, each.high, sign="+"),
            f"{'>' if each.above else '<'} {each.bound:g}", each.verdict,
            by_source if each.source == AVERAGE else each.source,
        )  # fmt: skip
    return table


def interval(low: float | None, high: float | None, sign: str = "") -> str:
    """Both ends of an interval, or nothing."""
    if low is None or high is None or low != low:
        return ""
    return f"{low:{sign}.3f} to {high:{sign}.3f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


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
                f"{each['path']}, sha256 {each['sha256']}, {each['tokens']:,} tokens in "
                f"{each['sequences']:,} sequences",
            )
            for name, each in sources.items()
        ),
    ]
