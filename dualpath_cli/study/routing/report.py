"""The report of `dualpath routing`: summary.json, figures, the page, a table."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from dualpath_cli.base.files import write_text
from dualpath_cli.base.output import amount, printable
from dualpath_cli.data.tokenizer import TOKENIZER, Tokenizer
from dualpath_cli.recipe.settings import ValidationSet
from dualpath_cli.report import bootstrap
from dualpath_cli.report.bootstrap import LEAST_CLUSTERS, Floats
from dualpath_cli.report.console import print_line
from dualpath_cli.report.figures import save
from dualpath_cli.report.table import Column, Table, show, with_interval
from dualpath_cli.study.routing.figures import (
    core_figure,
    density_by_layer_figure,
    density_figure,
    depth_figure,
    part_of_speech_figure,
)
from dualpath_cli.study.routing.page import write_page
from dualpath_cli.study.routing.page.examples import read_page
from dualpath_cli.study.routing.readouts import (
    CORE_READOUTS,
    Sums,
    facts_of_places,
    gated_places,
    most_steps,
)
from dualpath_cli.study.routing.summary import Summary, expert_loads, for_json
from dualpath_cli.study.routing.tokens import TOKENS
from dualpath_cli.training.launch import RunLaunch

PAGE = "index.html"
SUMMARY = "summary.json"
"""The file with the means of all sources."""


def write_report(
    launch: RunLaunch,
    facts: dict[str, Any],
    sources: dict[str, dict[str, Any]],
    sums: Mapping[str, Sums],
    console: Console,
) -> None:
    """Writes summary, figures and page of a run; prints the means of sources, and the
    files."""
    model = launch.settings.model
    out = launch.options.folder
    layers = [place.label for place in gated_places(model)]

    loops = most_steps(model)
    summaries = {name: Summary.from_sums(sums[name], layers, loops) for name in sources}
    average = Summary.average(list(summaries.values()))
    shared = {**facts, **facts_of_places(model)}
    content = _content(shared, sources, sums, summaries, average)

    figures = {
        "depth": depth_figure(summaries, average),
        "gate_density": density_figure(sums, average),
        "gate_density_layers": density_by_layer_figure(sums, average),
        "parts_of_speech": part_of_speech_figure(summaries, average),
        "core": core_figure(summaries, average),
    }
    save(out, figures)

    title = _title(launch)
    token_values = Tokenizer.load(launch.folder / TOKENIZER).token_values()
    data = read_page(out, list(sources), model)
    write_page(out / PAGE, title, page_facts(content), layers, data, token_values)
    write_text(out / SUMMARY, json.dumps(content, indent=2, allow_nan=False) + "\n")

    drawn = [name for name, figure in figures.items() if figure is not None]
    _say_results(launch, sources, summaries, average, drawn, console)


def _content(
    facts: Mapping[str, Any],
    sources: Mapping[str, dict[str, Any]],
    sums: Mapping[str, Sums],
    summaries: Mapping[str, Summary],
    average: Summary,
) -> dict[str, Any]:
    """The content of `SUMMARY`; `facts` are those that all sources share."""
    return {
        **facts,
        "bands": {
            name: [average.layers[place] for place in places]
            for name, places in average.bands.items()
        },
        "bootstrap": bootstrap.FACTS,
        "sources": {
            name: source_facts | _facts_of_sums(sums[name]) | summaries[name].report()
            for name, source_facts in sources.items()
        },
        "average": average.report(),
    }


def _say_results(
    launch: RunLaunch,
    sources: Mapping[str, dict[str, Any]],
    summaries: Mapping[str, Summary],
    average: Summary,
    drawn: Sequence[str],
    console: Console,
) -> None:
    """Prints the means of sources, and the files; `drawn` are the names of figures."""
    title = _title(launch)
    show(console, means_table(title, summaries, average), box=False)
    if average.core:
        show(console, core_table(title, average), box=False)
    few_text = _few_clusters(sources)
    if few_text:
        print_line(console, few_text)

    lines = (
        f"written to {launch.options.folder}",
        f"  {PAGE:17}the page, to read token by token",
        f"  {SUMMARY:17}means by layer and part of speech, with intervals",
        f"  {TOKENS:17}a row a token",
        f"  {', '.join(drawn)} (PNG, PDF)",
    )
    print_line(console, "\n".join(lines))


def _facts_of_sums(sums: Sums) -> dict[str, Any]:
    """Tokens, losses and loads of experts of a source, for its section of
    `SUMMARY`."""
    facts: dict[str, Any] = {
        "tokens": int(sums["tokens"][0]),
        "loss": float(sums["loss"]),
        "bits_per_byte": float(sums["bits_per_byte"]),
    }
    experts_L = sums["experts"]
    if experts_L.any():
        load_LE = expert_loads(sums)[0]
        facts["expert_loads"] = [
            for_json(load_E[: int(count)])
            for load_E, count in zip(load_LE, experts_L, strict=True)
        ]

    return facts


def _few_clusters(sources: Mapping[str, dict[str, Any]]) -> str:
    """A line about the sources that have too few clusters for intervals, or ""."""
    few = [
        f"{name} has {amount(**facts['clusters'])}"
        for name, facts in sources.items()
        if facts["clusters"]["count"] < LEAST_CLUSTERS
    ]
    if not few:
        return ""
    return f"{', '.join(few)}: fewer than {LEAST_CLUSTERS} have no interval"


def means_table(run: str, sources: Mapping[str, Summary], average: Summary) -> Table:
    """A row a source, the mean over its layers; a row a band of layers, the mean over
    sources."""
    columns = [
        Column("mean over tokens"),
        Column("deep share, 95 % interval", with_interval(".3f")),
        *(Column(name, ".3f") for name in ("g_d", "g_w", "cosine", "loops")),
    ]
    all_places = list(range(len(average.layers)))
    rows = [_means_row(name, summary, all_places) for name, summary in sources.items()]
    if len(all_places) > 1:
        for band, places in average.bands.items():
            name = f"{band}: {average.layers_text(places)}"
            rows.append(_means_row(name, average, places))

    return Table(columns, rows, f"routing of {run}")


def core_table(run: str, average: Summary) -> Table:
    """A row a repetition of the core, the mean over sources."""
    columns = [
        Column("repetition"),
        *(Column(name, ".3f") for name in ("weight", "size", "cosine")),
    ]
    means_CN = np.stack([average.core[name][0] for name in CORE_READOUTS])
    rows = [[f"r {r}", *means_C.tolist()] for r, means_C in enumerate(means_CN.T, 1)]

    expected = float(average.expected_core_loops[0])
    return Table(columns, rows, f"core of {run}", f"mean repetition: {expected:.3f}")


def _means_row(name: str, summary: Summary, places: Sequence[int]) -> list[Any]:
    """A row of `means_table`: means over the layers at these places."""

    def mean(readout: str) -> Floats:
        return np.asarray(summary.means[readout][:, places].mean(1))

    share_R = mean("deep_share")
    low, high = summary.interval(share_R)
    share = (float(share_R[0]), float(low), float(high))
    others = ("gate_deep", "gate_wide", "cosine", "expected_loops")
    return [name, share, *(mean(readout)[0] for readout in others)]


def _title(launch: RunLaunch) -> str:
    recipe_and_name = "/".join(launch.folder.resolve().parts[-2:])
    return f"{recipe_and_name}, step {launch.run.step:,}"


def page_facts(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Terms and facts about a page's numbers; `report` is the content of
    summary.json."""
    model = report["model"]
    core = ""
    if model["core"] is not None:
        first, last = model["core"]
        core = f", layers {first} to {last} {model['core_loops']} times"
    checkpoint = report["checkpoint"]
    path = Path(checkpoint["path"])
    tagger = report["tagger"] or {}
    tagged = ", ".join(f"{name} {value}" for name, value in tagger.items())

    facts = [
        ("checkpoint", f"{path.name}, sha256 {checkpoint['sha256']}"),
        (
            "model",
            f"{model['n_layers']} layers, width {model['d_model']}, "
            f"K = {model['loops']}{core}",
        ),
        (
            "computed with",
            f"torch {report['torch']}, {report['device']}, {report['precision']}",
        ),
        ("parts of speech", tagged or "not tagged"),
    ]
    for name, source in report["sources"].items():
        size = f"{source['tokens']:,} tokens in "
        size += amount("sequences", source["sequences"])
        text = printable(ValidationSet(source["path"], source["field"]).public_name)
        facts.append((name, f"{text}, sha256 {source['sha256']}, {size}"))

    return facts
