"""What `dualpath routing` shows: summary.json, three figures, the page, a table."""

import json
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from rich.console import Console

from dualpath_cli.base.files import write_text
from dualpath_cli.data.tokenizer import TOKENIZER, Tokenizer
from dualpath_cli.recipe.settings import ValidationSet
from dualpath_cli.report import bootstrap
from dualpath_cli.report.bootstrap import LEAST_CLUSTERS, Floats, clusters_text
from dualpath_cli.report.figures import (
    INK,
    MUTED,
    SOURCES,
    heat_map,
    layer_ticks,
    panels,
    plain,
    save,
)
from dualpath_cli.report.table import Column, Table, show, with_interval
from dualpath_cli.study.parts_of_speech import UPOS
from dualpath_cli.study.routing import page
from dualpath_cli.study.routing.page.passes import read_page
from dualpath_cli.study.routing.readouts import (
    CONTRIBUTION_BINS,
    CONTRIBUTION_END,
    Summary,
    Sums,
    expert_loads,
    for_json,
    gated_layers,
    most_steps,
)
from dualpath_cli.study.routing.tokens import TOKENS
from dualpath_cli.training.launch import StudyLaunch

PAGE = "index.html"
SUMMARY = "summary.json"
"""The file with the means of all sources."""


def write(
    launch: StudyLaunch,
    facts: dict[str, Any],
    sources: dict[str, dict[str, Any]],
    sums: Mapping[str, Sums],
    console: Console,
) -> None:
    """Writes summary, figures and page of a run; prints the means of sources, and the
    files."""
    options, model = launch.options, launch.settings.model
    out, layers = options.folder, gated_layers(model)
    summaries = {
        name: Summary.from_sums(sums[name], layers, most_steps(model))
        for name in sources
    }
    average = Summary.average(list(summaries.values()))
    for name, source_facts in sources.items():
        source_facts |= {"tokens": int(sums[name]["tokens"][0])}
        source_facts |= {
            key: float(sums[name][key]) for key in ("loss", "bits_per_byte")
        }
        if sums[name]["experts"].any():
            loads = zip(expert_loads(sums[name])[0], sums[name]["experts"], strict=True)
            source_facts["expert_loads"] = [
                for_json(load[: int(count)]) for load, count in loads
            ]
    content = {
        **facts,
        "layers": layers,
        "bands": {
            name: [layers[n] for n in band] for name, band in average.bands.items()
        },
        "bootstrap": bootstrap.FACTS,
        "sources": {name: sources[name] | summaries[name].report() for name in sources},
        "average": average.report(),
    }
    drawings = {
        "depth": depth(summaries, average),
        "gate_density": bands(sums, average),
        "parts_of_speech": heat_maps(summaries, average),
    }
    save(out, drawings)
    shown = read_page(out, list(sources), model)
    values = Tokenizer.load(launch.folder / TOKENIZER).token_values()
    page.write(out / PAGE, _title(launch), page_facts(content), layers, shown, values)
    write_text(out / SUMMARY, json.dumps(content, indent=2, allow_nan=False) + "\n")
    show(console, means(_title(launch), summaries, average), box=False)
    few = [
        f"{name} has {clusters_text(**facts['clusters'])}"
        for name, facts in sources.items()
        if facts["clusters"]["count"] < LEAST_CLUSTERS
    ]
    if few:
        text = f"{', '.join(few)}: fewer than {LEAST_CLUSTERS} have no interval"
        console.print(text, highlight=False, soft_wrap=True)
    names = ", ".join(name for name, figure in drawings.items() if figure is not None)
    lines = (
        f"written to {out}",
        f"  {PAGE:17}the page, to read token by token",
        f"  {SUMMARY:17}means by layer and part of speech, with intervals",
        f"  {TOKENS:17}a row a token",
        f"  {names} (PNG, PDF)",
    )
    console.print("\n".join(lines), highlight=False, soft_wrap=True)


def means(run: str, sources: Mapping[str, Summary], average: Summary) -> Table:
    """A row a source, the mean over its layers; a row a band of layers, the mean over
    sources."""
    columns = [
        Column("mean over tokens"),
        Column("deep share, 95 % interval", with_interval(".3f")),
        *(Column(name, ".3f") for name in ("g_d", "g_w", "cosine", "loops")),
    ]
    every = list(range(len(average.layers)))
    lines = [(name, summary, every) for name, summary in sources.items()]
    if len(every) > 1:
        lines += [
            (f"{band}: {average.named(places)}", average, places)
            for band, places in average.bands.items()
        ]
    rows: list[Sequence[Any]] = []
    for name, summary, places in lines:
        values = {key: of[:, places].mean(1) for key, of in summary.means.items()}
        low, high = summary.interval(values["deep_share"])
        shown = ("gate_deep", "gate_wide", "cosine", "expected_loops")
        share = (float(values["deep_share"][0]), float(low), float(high))
        rows.append([name, share, *(values[key][0] for key in shown)])
    return Table(columns, rows, f"routing of {run}")


def _title(launch: StudyLaunch) -> str:
    return f"{'/'.join(launch.folder.resolve().parts[-2:])}, step {launch.run.step:,}"


def page_facts(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Terms and facts about a page's numbers; `report` is the content of
    summary.json."""
    model, tagger, checkpoint = (
        report[name] for name in ("model", "tagger", "checkpoint")
    )
    tagged = (
        ", ".join(f"{k} {v}" for k, v in tagger.items()) if tagger else "not tagged"
    )
    facts = [
        (
            "checkpoint",
            f"{Path(checkpoint['path']).name}, sha256 {checkpoint['sha256']}",
        ),
        (
            "model",
            f"{model['n_layers']} layers, width {model['d_model']}, K = "
            f"{model['loops']}",
        ),
        (
            "computed with",
            f"torch {report['torch']}, {report['device']}, {report['precision']}",
        ),
        ("parts of speech", tagged),
    ]
    for name, source in report["sources"].items():
        amount = f"{source['tokens']:,} tokens in {source['sequences']:,} sequences"
        text = ValidationSet(source["path"], source["field"]).public_name
        facts.append((name, f"{text}, sha256 {source['sha256']}, {amount}"))
    return facts


def depth(sources: Mapping[str, Summary], mean: Summary) -> Figure:
    """Deep share and cosine per layer: a line a source, and their mean.

    The paper's figure `path_alignment`, there with a line a checkpoint.
    """
    figure, axes = panels(8.2, 3.0, 1, 2)
    for ax, name, title, even in (
        (axes[0, 0], "deep_share", "deep share", 0.5),
        (axes[0, 1], "cosine", "cosine of the paths' updates", 0),
    ):
        for color, (label, line) in zip(cycle(SOURCES), sources.items(), strict=False):
            values = line.means[name]
            low, high = line.interval(values)
            ax.fill_between(
                line.layers, low, high, color=color, alpha=0.18, linewidth=0
            )
            ax.plot(
                line.layers,
                values[0],
                color=color,
                marker="o",
                markersize=3,
                linewidth=1.2,
                label=label,
            )
        if len(sources) > 1:
            ax.plot(
                mean.layers, mean.means[name][0], color=INK, linewidth=2.2, label="mean"
            )
        plain(ax)
        ax.set(xlabel="layer", xticks=mean.layers[:: 1 if len(mean.layers) <= 8 else 2])
        ax.set_title(title, fontsize=9)
        ax.axhline(even, color=MUTED, linewidth=0.8, linestyle=":")
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(),
        loc="outside right center",
        frameon=False,
        fontsize=8,
    )
    return figure


def bands(sums: Mapping[str, Sums], average: Summary) -> Figure:
    """Joint densities of gates and of gated updates, in bands of layers, averaged over
    sources.

    The paper's figure `gate_density`: (g_w, g_d) above, log(1 + g ‖Δ‖) below.
    """
    names = average.bands
    figure, axes = panels(2.3 * len(names) + 0.8, 4.6, 2, len(names), square=True)
    gates, contributions = (
        {
            name: np.mean(
                [_density(source[kind][places].sum(0)) for source in sums.values()], 0
            )
            for name, places in names.items()
        }
        for kind in ("gate_density", "contribution_density")
    )
    for row, densities, extent, end, label in (
        (axes[0], gates, 1.0, 1.0, "$g_w$"),
        (
            axes[1],
            contributions,
            CONTRIBUTION_END,
            _end_of(contributions.values()),
            r"$\log(1 + g_w \|\Delta_w\|)$",
        ),
    ):
        for ax, name in zip(row, names, strict=True):
            most = max(float(density.max()) for density in densities.values()) or 1.0
            image = _square(ax, densities[name], extent, end, most)
            ax.set(xlabel=label)
        bar = figure.colorbar(image, ax=row.ravel().tolist(), fraction=0.03)
        bar.set_label("share of tokens in a bin", fontsize=8)
        bar.ax.tick_params(labelsize=7)
    for ax, (name, places) in zip(axes[0], names.items(), strict=True):
        ax.set(title=f"{name}: {average.named(places)}")
    axes[0, 0].set_ylabel("$g_d$")
    axes[1, 0].set_ylabel(r"$\log(1 + g_d \|\Delta_d\|)$")
    for ax in axes.flat:
        ax.title.set_fontsize(9)
    return figure


def _density(counts: Floats) -> Floats:
    return np.asarray(counts / max(1.0, counts.sum()))


def _end_of(densities: Any) -> float:
    """The end of the axes of contributions, just past the last bin with a token."""
    used = [np.flatnonzero(density.sum(0) + density.sum(1)) for density in densities]
    last = max((int(bins[-1]) for bins in used if len(bins)), default=0)
    return (
        CONTRIBUTION_END
        * min(CONTRIBUTION_BINS, int(1.05 * last) + 2)
        / CONTRIBUTION_BINS
    )


def _square(
    ax: Axes, density: Floats, extent: float, end: float, most: float
) -> AxesImage:
    """A density (deep, wide) with equal axes and the diagonal of equal weights."""
    image = ax.imshow(
        density,
        origin="lower",
        extent=(0, extent, 0, extent),
        cmap="cividis",
        norm=LogNorm(most / 1000, most, clip=True),
        interpolation="nearest",
    )
    ax.plot([0, end], [0, end], color="white", linewidth=0.7, linestyle="--")
    ax.set(xlim=(0, end), ylim=(0, end), aspect="equal")
    return image


def heat_maps(sources: Mapping[str, Summary], average: Summary) -> Figure | None:
    """Mean deep share by part of speech and layer: a map a source, and one of their
    mean.

    The paper's figure `pos_main`, panels a to d. Tags are sorted by the mean over
    sources and layers, the deepest at the bottom; one with fewer than ten tokens in a
    source is grey there.
    """
    tags = average.known_tags
    if not tags:
        return None
    maps = dict(sources) | (
        {"mean of the sources": average} if len(sources) > 1 else {}
    )
    across = 2 if len(maps) in (2, 4) else min(3, len(maps))
    down = -(-len(maps) // across)
    width = min(2.4, max(1.5, 0.3 * len(average.layers))) * across + 1.8
    figure, axes = panels(
        width, (0.17 * len(tags) + 0.7) * down, down, across, sharex=True, sharey=True
    )
    shown = [summary.tag_means[0, tags] for summary in maps.values()]
    reach = max(float(np.nanmax(np.abs(values - 0.5))) for values in shown)
    for ax in axes.flat[len(maps) :]:
        ax.axis("off")
    for number, (ax, name, values) in enumerate(
        zip(axes.flat, maps, shown, strict=False)
    ):
        image = heat_map(ax, values, 0.5, reach)
        ax.set_facecolor("#B9BDC7")  # where a source has too few tokens
        ax.set_title(name, fontsize=8)
        ax.set_yticks(range(len(tags)), [UPOS[tag] for tag in tags], fontsize=7)
        layer_ticks(ax.xaxis, average.layers, fontsize=7)
        if number + across >= len(maps):
            ax.set_xlabel("layer", fontsize=8)
            ax.tick_params(labelbottom=True)
    figure.colorbar(image, ax=axes.ravel().tolist(), label="deep share", fraction=0.04)
    return figure
