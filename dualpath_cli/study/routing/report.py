"""What `dualpath routing` shows of rows and sums: summary.json, three figures, the page, a table."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from dualpath_cli.base.system import write_text
from dualpath_cli.data.tokenizer import TOKENIZER, Tokenizer
from dualpath_cli.report import bootstrap
from dualpath_cli.report.bootstrap import LEAST_CLUSTERS, clusters_text
from dualpath_cli.report.figures import save
from dualpath_cli.report.table import Column, Table, show, with_interval
from dualpath_cli.study.routing import figures, page
from dualpath_cli.study.routing.page.passes import read_page
from dualpath_cli.study.routing.readouts import Sums, gated_layers, most_steps
from dualpath_cli.study.routing.summary import Summary, expert_loads, plain
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
