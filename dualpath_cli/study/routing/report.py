"""What `dualpath routing` shows, from rows and sums: summary.json, three figures, the page, tables.

Shapes: N tokens of a text, L layers with gates, K loops.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import to_hex
from rich.console import Console
from rich.text import Text

from dualpath_cli.base.system import write_text
from dualpath_cli.data.tokenizer import TOKENIZER, Tokenizer
from dualpath_cli.report import bootstrap
from dualpath_cli.report.bootstrap import LEAST_CLUSTERS, clusters_text
from dualpath_cli.report.figures import INK, save, share_colormap
from dualpath_cli.report.table import Column, Table, show, with_interval
from dualpath_cli.study.routing import figures, page
from dualpath_cli.study.routing.options import SUMMARY
from dualpath_cli.study.routing.page.passes import read_page
from dualpath_cli.study.routing.readouts import Sums, gated_layers, most_steps
from dualpath_cli.study.routing.summary import Summary, expert_loads, plain
from dualpath_cli.study.routing.tokens import TOKENS, Example, Floats
from dualpath_cli.training.launch import StudyLaunch

PAGE = "index.html"
COLUMNS = {
    "deep share": "deep_share", "g_d": "gate_deep", "g_w": "gate_wide", "‖Δ_d‖": "update_deep",
    "‖Δ_w‖": "update_wide", "cosine": "cosine", "loops": "expected_loops",
}  # fmt: skip
CAPTION = (
    "deep share = g_d ‖Δ_d‖ / (g_d ‖Δ_d‖ + g_w ‖Δ_w‖) of a token, then averaged; of each step its "
    "weight, its size = ‖h_k - h_{k-1}‖ / ‖h_{k-1}‖ with h_0 = x, and the cosine of "
    "h_k - h_{k-1} and h_{k-1} - h_{k-2}"
)
STEPS = {"weights": "step_weights", "sizes": "step_sizes", "cosines": "step_cosines"}


def write(
    launch: StudyLaunch,
    facts: dict[str, Any],
    sources: dict[str, dict[str, Any]],
    sums: Mapping[str, Sums],
    console: Console,
) -> None:
    """Writes summary, figures and page of a run; prints the means of sources, and the files."""
    options, model = launch.options, launch.settings.model
    out, layers = options.folder, gated_layers(model)
    summaries = {name: Summary.from_sums(sums[name], layers, most_steps(model)) for name in sources}
    average = Summary.average(list(summaries.values()))
    for name, source_facts in sources.items():
        source_facts |= {"tokens": int(sums[name]["tokens"][0])}
        source_facts |= {key: float(sums[name][key]) for key in ("loss", "bits_per_byte")}
        if sums[name]["experts"].any():
            loads = zip(expert_loads(sums[name])[0], sums[name]["experts"], strict=True)
            source_facts["expert_loads"] = [plain(load[: int(count)]) for load, count in loads]
    content = {
        **facts,
        "text": options.text,
        "layers": layers,
        "bands": {name: [layers[n] for n in band] for name, band in average.bands.items()},
        "bootstrap": bootstrap.FACTS,
        "sources": {name: sources[name] | summaries[name].report() for name in sources},
        "average": average.report(),
    }
    drawings = {
        "depth": figures.depth(summaries, average),
        "gate_density": figures.bands(sums, average),
        "parts_of_speech": figures.heat_maps(summaries, average),
    }
    save(out, drawings)
    shown = read_page(out, list(sources), model)
    values = Tokenizer.load(launch.folder / TOKENIZER).token_values()
    page.write(out / PAGE, _title(launch), page_facts(content), layers, shown, values)
    write_text(out / SUMMARY, json.dumps(content, indent=2, allow_nan=False) + "\n")
    if options.text is None:
        show(console, means(_title(launch), summaries, average), box=False)
        few = [f"{name} has {clusters_text(**facts['clusters'])}"
               for name, facts in sources.items()
               if facts["clusters"]["count"] < LEAST_CLUSTERS]  # fmt: skip
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
    """A row a source, the mean over its layers; a row a band of layers, the mean over sources."""
    columns = [
        Column("mean over tokens"), Column("deep share, 95 % interval", with_interval(".3f")),
        *(Column(name, ".3f") for name in ("g_d", "g_w", "cosine", "loops")),
    ]  # fmt: skip
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
    """Terms and facts about a page's numbers; `report` is the content of summary.json."""
    model, tagger, checkpoint = (report[name] for name in ("model", "tagger", "checkpoint"))
    tagged = ", ".join(f"{k} {v}" for k, v in tagger.items()) if tagger else "not tagged"
    facts = [
        ("checkpoint", f"{Path(checkpoint['path']).name}, sha256 {checkpoint['sha256']}"),
        ("model", f"{model['n_layers']} layers, width {model['d_model']}, K = {model['loops']}"),
        ("computed with", f"torch {report['torch']}, {report['device']}, {report['precision']}"),
        ("parts of speech", tagged),
    ]
    for name, source in report["sources"].items():
        amount = f"{source['tokens']:,} tokens in {source['sequences']:,} sequences"
        facts.append((name, f"{Path(source['path']).name}, sha256 {source['sha256']}, {amount}"))
    return facts


def show_text(console: Console, text: Sequence[Example], layers: Sequence[int]) -> None:
    """Prints a text coloured by deep share, a table of its tokens, and a table of the layers.

    `text` are all sequences of the text; its colours are the mean over layers.
    """
    texts = [token for part in text for token in part.tokens]
    shares_NL = _of(text, "deep_share")
    legend = Text("deep share, mean over layers")
    if console.color_system is not None:
        legend.append(": wide ")
        for share in np.linspace(0, 1, 21):
            legend.append(" ", _style(share))
        legend.append(" deep")
    console.print(legend)
    console.print(Text.assemble(*zip(texts, map(_style, shares_NL.mean(1)), strict=True)))
    names = map(_visible, texts)
    rows = [[name, own.mean(), *own] for name, own in zip(names, shares_NL, strict=True)]
    shown = [Column(name, " {:.2f} ".format, style=_style) for name in ("mean", *map(str, layers))]
    tokens = Table([Column("token"), *shown], rows, "deep share by token and layer")
    show(console, tokens, box=False)
    show(console, _layers(text, layers))


def _layers(text: Sequence[Example], layers: Sequence[int]) -> Table:
    means_L = [_of(text, name).mean(0) for name in COLUMNS.values()]
    means_LK = {name: _of(text, name).mean(0) for name in STEPS.values()}
    formats = ("{:.2f}".format, lambda size: f"{size:#.2g}".rstrip("."), "{:.2f}".format)
    columns = [
        Column("layer", "d"), *(Column(heading, ".3f") for heading in COLUMNS),
        *(Column(heading, "") for heading in STEPS),
    ]  # fmt: skip
    rows = []
    for place, layer in enumerate(layers):
        exist_K = ~np.isnan(means_LK["step_sizes"][place])  # a layer may have fewer than K steps
        of_steps = (
            " ".join(form(mean) for mean in means[place][exist_K] if not np.isnan(mean))
            for form, means in zip(formats, means_LK.values(), strict=True)
        )
        rows.append([layer, *(means[place] for means in means_L), *of_steps])
    return Table(columns, rows, "means over tokens", CAPTION)


def _of(text: Sequence[Example], name: str) -> Floats:
    """A read-out of all tokens, (N, L) or (N, L, K)."""
    return np.concatenate([part.values[name] for part in text], dtype=np.float64)


def _visible(text: str) -> str:
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text.replace("\n", "↵"))
    return shown or "∅"  # a part of a character that a later token completes


def _style(share: float) -> str:
    return f"{INK} on {to_hex(share_colormap()(float(share)))}"
