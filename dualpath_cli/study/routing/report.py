"""From rows and sums to what one looks at: tables, summary.json, claims, figures, the page."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from dualpath_cli.cli.launch import Launch
from dualpath_cli.config import by_layer
from dualpath_cli.files import format_csv, write_texts
from dualpath_cli.output.figures import save
from dualpath_cli.output.table import Column, Table, show, with_interval
from dualpath_cli.statistics import bootstrap
from dualpath_cli.statistics.bootstrap import LEAST_CLUSTERS, clusters_text
from dualpath_cli.study import parts_of_speech
from dualpath_cli.study.passes import LAST_LAYER
from dualpath_cli.study.routing import figures
from dualpath_cli.study.routing.claims import Claim, as_row, claim_table, claims, number_of_tests
from dualpath_cli.study.routing.options import SUMMARY
from dualpath_cli.study.routing.page import page
from dualpath_cli.study.routing.page.passes import models
from dualpath_cli.study.routing.readouts import (
    DEFINITION,
    STEP_DEFINITION,
    Sums,
    gated_layers,
    most_steps,
    two_digits,
)
from dualpath_cli.study.routing.summary import BY_SHARE, Summary, expert_loads, experts_table, plain
from dualpath_cli.study.routing.tokens import TOKENS, read_examples
from dualpath_cli.text.tokenizer import TOKENIZER, Tokenizer

CLAIMS, PAGE = "claims.csv", "index.html"


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
    out = options.folder
    layers = gated_layers(model)
    summaries, untrained = (
        {
            name: Summary.from_sums(read[name], layers, most_steps(model), model.n_layers)
            for name in sources
        }
        for read in (sums, untrained_sums)
    )
    average, null = (Summary.average(list(read.values())) for read in (summaries, untrained))
    statements = claims(summaries, untrained)
    for name, source_facts in sources.items():
        source_facts |= {"tokens": int(sums[name]["tokens"][0])}
        source_facts |= {key: float(sums[name][key]) for key in ("loss", "bits_per_byte")}
        if sums[name]["experts"].any():
            source_facts["expert_loads"] = plain(expert_loads(sums[name]))
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
    _show(summaries, sources, average, null, statements, console)
    if len(sources) > 1 and not any(source["anchored"] for source in sources.values()):
        console.print(f"no sequence has the anchor '{options.anchor}': nothing is aligned")
    drawn = [
        example
        for name in sources
        for example in read_examples(out / TOKENS, name, options.drawn(name))
    ]
    drawings = save(out, {
        "depth": figures.depth(summaries, null),
        "steps": figures.steps(summaries, null),
        "polarisation": figures.polarisation(summaries),
        "classes": figures.classes(summaries, parts_of_speech.OTHERS),
        "gate_density": figures.bands(sums, average),
        "gate_density_layers": figures.grid(sums, layers),
        "tokens": figures.coloured_text(drawn),
        "layers_by_token": figures.layer_grid(drawn, layers),
        "aligned": figures.aligned(summaries, options.anchor),
        "experts": figures.loads(sums, layers),
        "parts_of_speech": figures.heat_maps(summaries, average),
        "parts_of_speech_box": figures.boxes(sums, average),
    })  # fmt: skip
    path = write_page(launch, list(sources), page_facts(content))
    write_texts(out, {
        CLAIMS: format_csv(content["claims"]) if statements else "",
        SUMMARY: json.dumps(content, indent=2, allow_nan=False) + "\n",
    })  # fmt: skip
    drawn_names = dict.fromkeys(path.stem for path in drawings)
    for name, place in (
        ("tokens", out / TOKENS),
        ("numbers", f"{out / SUMMARY}, {CLAIMS}"),
        ("figures", f"{out}: {', '.join(drawn_names)} (PNG, PDF)"),
        ("page", path.resolve().as_uri()),
    ):
        console.print(f"{name:9}{place}", highlight=False, soft_wrap=True)


def write_page(launch: Launch, sources: Sequence[str], terms: Sequence[tuple[str, str]]) -> Path:
    options, model = launch.options, launch.settings.model
    title = f"{'/'.join(launch.run_folder.resolve().parts[-2:])}, step {launch.step:,}"
    names = (f"K = {by_layer(model.loops)}, as trained", f"K = {options.beside_loops}, forced")
    read = models(options.folder, sources, *names)
    values = Tokenizer.load(launch.run_folder / TOKENIZER).token_values()
    return page.write(options.folder / PAGE, title, terms, gated_layers(model), read, values)


def _show(
    summaries: Mapping[str, Summary],
    sources: Mapping[str, dict[str, Any]],
    average: Summary,
    untrained: Summary,
    statements: Sequence[Claim],
    console: Console,
) -> None:
    columns = [
        Column("source"), Column("layer", "d"),
        Column("deep share,\n95 % interval", with_interval(".3f")),
        Column("g_d", ".3f"), Column("g_w", ".3f"), Column("cosine", ".3f"),
        Column("|g_d\n- g_w|", ".3f"), Column("loops", ".3f"),
    ]  # fmt: skip
    names = ("gate_deep", "gate_wide", "cosine", "gate_difference", "expected_loops")
    rows: list[Sequence[Any]] = []
    for source, summary in summaries.items():
        shares = summary.means["deep_share"]
        low, high = summary.interval(shares)
        for place, layer in enumerate(summary.layers):
            means = (summary.means[name][0, place] for name in names)
            estimate = (shares[0, place], low[place], high[place])
            rows.append(["" if place else source, layer, estimate, *means])
        rows.append(())
    amounts = "; ".join(
        f"{source}: {facts['tokens']:,} tokens, {clusters_text(**facts['clusters'])}"
        for source, facts in sources.items()
    )
    note = f"{amounts}; {DEFINITION}" + (f". {LAST_LAYER}" if average.is_last(-1) else "")
    show(console, Table(columns, rows, "routing by layer", note, names=2))
    show(console, _steps({**summaries, "untrained": untrained}))
    if BY_SHARE in average.means:
        show(console, experts_table({**summaries, "untrained": untrained}))
    bands = ", ".join(
        f"{name} {band[0]}" + (f" to {band[-1]}" if len(band) > 1 else "")
        for name, band in average.layers_of_bands.items()
    )
    show(console, claim_table(statements, f"bands of layers: {bands}; "))
    if parts_of_speech.OTHERS:
        show(console, _classes(summaries))
    for source, facts in sources.items():
        if facts["clusters"]["count"] < LEAST_CLUSTERS:
            counted = clusters_text(**facts["clusters"])
            text = f"fewer than {LEAST_CLUSTERS} have no intervals and no tests"
            console.print(f"{source} has {counted}: {text}", highlight=False, soft_wrap=True)


def _steps(lines: Mapping[str, Summary]) -> Table:
    """What each step does: a row a layer of each source, and of the untrained model's mean."""
    steps = range(1, 1 + max(line.loops for line in lines.values()))
    columns = [
        Column("source"), Column("layer", "d"),
        *(Column(f"size\nk = {k}", two_digits) for k in steps),
        *(Column(f"cosine\nk = {k}", ".3f") for k in steps[1:]),
    ]  # fmt: skip
    names = [*(f"step_size_{k}" for k in steps), *(f"step_cosine_{k}" for k in steps[1:])]
    rows: list[Sequence[Any]] = []
    for source, line in lines.items():
        for place, layer in enumerate(line.layers):
            means = (line.means[name][0, place] for name in names)
            rows.append(["" if place else source, layer, *means])
        rows.append(())
    note = f"{STEP_DEFINITION}; untrained: before training, mean of all sources"
    return Table(columns, rows, "what each step does", note, names=2)


def _classes(summaries: Mapping[str, Summary]) -> Table:
    """The classes that no claim is about: a row a class and source."""
    columns = [
        Column("class"), Column("source"),
        Column("difference, 95 % interval", with_interval("+.3f")),
    ]  # fmt: skip
    rows: list[Sequence[Any]] = []
    for chosen in parts_of_speech.OTHERS:
        for source, summary in summaries.items():
            values = summary.class_differences[chosen].mean(1)
            low, high = map(float, summary.interval(values))
            rows.append([chosen.name, source, (float(values[0]), low, high)])
    note = "difference: mean deep share of the class minus that of other tokens; not tested"
    return Table(columns, rows, "further classes of tokens", note, names=2)


def page_facts(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The facts of a page's numbers, term by term; `report` is that of summary.json."""
    model, tagger, checkpoint = (report[name] for name in ("model", "tagger", "checkpoint"))
    tagged = ", ".join(f"{k} {v}" for k, v in tagger.items()) if tagger else "not tagged"
    facts = [
        ("checkpoint", f"{checkpoint['path']}, sha256 {checkpoint['sha256']}"),
        ("model", f"{model['n_layers']} layers, width {model['d_model']}, K = {model['loops']}"),
        ("computed with", f"torch {report['torch']}, {report['device']}, {report['precision']}"),
        ("parts of speech", tagged),
    ]
    for name, source in report["sources"].items():
        amount = f"{source['tokens']:,} tokens in {source['sequences']:,} sequences"
        facts.append((name, f"{source['path']}, sha256 {source['sha256']}, {amount}"))
    for chosen in parts_of_speech.OTHERS:
        texts = ", ".join(
            f"{source['classes'][chosen.name]['difference']['mean']:+.3f} in {name}"
            for name, source in report["sources"].items()
            if chosen.name in source["classes"]
        )
        less = f"deep share minus that of other tokens: {texts or 'too few tokens'}"
        facts.append((f"class {chosen.name}", f"{', '.join(chosen.upos)}: {less}"))
    return facts
