"""The numbers of an ablation, and the tables made of them: screen, CSV, JSON, Markdown, LaTeX."""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from dualpath_cli.atomic import write_text
from dualpath_cli.flops.paper import inference_ablation, token_class_excess
from dualpath_cli.study.ablation.options import TOKEN_CLASSES
from dualpath_cli.study.ablation.suites import BASELINE

MEANINGS = {
    "gates=1,0": "deep only",
    "gates=0,1": "wide only",
    "gates=0.5,0.5": "uniform",
    "gates=1,1": "fully open",
}
"""What the paper calls its gate overrides (table `ablations`)."""


@dataclass(frozen=True)
class Result:
    """One intervention on one source; losses are nats per token."""

    suite: str
    intervention: str
    """Its name (`Intervention.name`)."""
    source: str
    loss: float
    """Mean next-token cross-entropy."""
    difference: float
    """Loss less that of the learned router on the same windows."""
    low: float
    """Lower end of the difference's 95 % interval; nan where the source is a single window."""
    high: float
    """Upper end of the difference's 95 % interval."""
    expected_loops: float
    """Mean over tokens and layers of the step number under the step weights; nan without loops."""
    loops_run: float
    """Mean steps that a batch really ran in a layer; nan without loops."""


@dataclass(frozen=True)
class Excess:
    """What overriding a class of tokens costs beyond overriding as many random others."""

    token_class: str
    upos: str
    """Its parts of speech, with commas between."""
    path: str
    """wide or deep: what its tokens are forced to."""
    source: str
    tokens: int
    """Tokens of the class."""
    share: float
    """Of all tokens of the source."""
    difference: float
    """Loss with the class overridden less that of the learned router, over all tokens."""
    random_difference: float
    """The same for random others, the mean over seeds."""
    excess: float
    """The difference of the two."""
    low: float
    high: float
    """Ends of the excess's 95 % interval over windows, given the random draws."""

    @property
    def as_paper(self) -> bool:
        """Whether the class is one of the authors'."""
        named = (self.token_class, tuple(self.upos.split(",")), self.path)
        return named in [(each.name, each.upos, each.path) for each in TOKEN_CLASSES]


def source_table(title: str, results: Sequence[Result], loops: int, paper: bool) -> Table:
    """A table of one source's rows; `loops` is the trained K, whose row says so."""
    halting = results[-1].suite == "halting"
    columns = ["loss", "difference", "95 % interval"]
    columns += ["loops", "run"] if halting else []
    columns += ["paper's loss", "difference"] if paper else []
    table = _table(title, "intervention", columns)
    for row in results:
        cells = [f"{row.loss:.4f}", f"{row.difference:+.4f}", interval(row.low, row.high)]
        if halting:
            cells += [f"{row.expected_loops:.2f}", f"{row.loops_run:.2f}"]
        if paper:
            cells += _of_paper(row)
        table.add_row(label(row.intervention, loops), *cells)
    return table


def excess_table(title: str, rows: Sequence[Excess], paper: bool) -> Table:
    """A table of one source's classes of tokens beside random ones."""
    columns = ["tokens", "class", "random", "excess", "95 % interval"]
    table = _table(title, "forced", [*columns, *(["paper's"] if paper else [])])
    for row in rows:
        name = f"{row.token_class} {row.path}"
        of_paper = token_class_excess(name, row.source) if row.as_paper else None
        table.add_row(
            name,
            f"{row.tokens:,}",
            f"{row.difference:+.4f}",
            f"{row.random_difference:+.4f}",
            f"{row.excess:+.4f}",
            interval(row.low, row.high),
            *(["" if of_paper is None else f"{of_paper:+.2f}"] if paper else []),
        )
    return table


def layer_table(title: str, results: Sequence[Result]) -> Table:
    """A table of one source's differences, an override a row and a layer a column."""
    names, layers, differences = by_layer(results)
    table = _table(title, "in one layer", [str(layer) for layer in layers])
    for name in names:
        found = [differences.get((name, layer)) for layer in layers]
        table.add_row(name, *("" if value is None else f"{value:+.4f}" for value in found))
    return table


def _table(title: str, first: str, others: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first, no_wrap=True)
    for column in others:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def by_layer(
    results: Iterable[Result],
) -> tuple[list[str], list[int], dict[tuple[str, int], float]]:
    """Splits the names of rows of the suite `layers`: overrides, layers, and the differences."""
    differences = {}
    for row in results:
        name, _, layer = row.intervention.partition(" layers=")
        differences[name, int(layer)] = row.difference
    names = list(dict.fromkeys(name for name, _ in differences))
    return names, sorted({layer for _, layer in differences}), differences


def label(name: str, loops: int) -> str:
    """Returns an intervention's name with what it means behind it."""
    meaning = {**MEANINGS, f"K={loops}": "as trained"}.get(name)
    return f"{name} ({meaning})" if meaning else name


def interval(low: float, high: float) -> str:
    """Returns an interval, empty where there is none."""
    return "" if math.isnan(low) else f"{low:+.4f} to {high:+.4f}"


def _of_paper(row: Result) -> list[str]:
    loss = inference_ablation(row.intervention, row.source)
    learned = inference_ablation("learned", row.source)
    if loss is None or learned is None:
        return ["", ""]
    return [f"{loss:.3f}", f"{loss - learned:+.3f}"]


def write(
    folder: Path, report: dict[str, Any], results: Sequence[Result], excesses: Sequence[Excess]
) -> list[Path]:
    """Writes ablations.json (the report and all rows), .csv, .md and .tex; returns their paths.

    A number that there is none of is null in JSON and empty in CSV.
    """
    rows, excess_rows = [_record(row) for row in results], [_record(row) for row in excesses]
    loops = int(report["model"]["loops"])
    texts = {
        "ablations.json": json.dumps({**report, "rows": rows, "excess": excess_rows}, indent=2)
        + "\n",
        "ablations.csv": as_csv(rows),
        "ablations.md": _tables(results, excesses, loops, _markdown),
        "ablations.tex": _tables(results, excesses, loops, _latex),
    }
    if excesses:
        texts["token_classes.csv"] = as_csv(excess_rows)
    else:  # of an earlier study, with other suites
        (folder / "token_classes.csv").unlink(missing_ok=True)
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def _record(row: Result | Excess) -> dict[str, Any]:
    values = dataclasses.asdict(row).items()
    return {key: None if value != value else value for key, value in values}


def as_csv(records: Sequence[dict[str, Any]]) -> str:
    """Returns records of the same keys as CSV, None as nothing."""
    table = io.StringIO()
    writer = csv.DictWriter(table, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return table.getvalue()


Cells = list[list[str]]


def _tables(
    results: Sequence[Result],
    excesses: Sequence[Excess],
    loops: int,
    draw: Callable[[str, Cells], str],
) -> str:
    """Every suite as a table: a row an intervention, a column a source, as in the paper."""
    sources = list(dict.fromkeys(row.source for row in results))
    parts = []
    for suite in dict.fromkeys(row.suite for row in results if row.suite != BASELINE):
        cells: Cells = [["intervention", *sources]]
        own = {(r.intervention, r.source): r for r in results if r.suite in (suite, BASELINE)}
        for name in dict.fromkeys(name for name, _ in own):
            found = [own.get((name, source)) for source in sources]
            cells.append([label(name, loops), *(_cell(row) if row else "" for row in found)])
        title = f"{suite}: nats per token (difference to the learned router)"
        parts.append(draw(title, cells))
    if excesses:
        cells = [
            ["tokens forced", "source", "tokens", "class", "random", "excess", "95 % interval"]
        ]
        cells += [
            [
                f"{row.token_class} {row.path}", row.source, f"{row.tokens:,}",
                f"{row.difference:+.4f}", f"{row.random_difference:+.4f}", f"{row.excess:+.4f}",
                interval(row.low, row.high),
            ]
            for row in excesses
        ]  # fmt: skip
        parts.append(draw("excess of a class over as many random tokens, nats per token", cells))
    return "\n".join(parts)


def _cell(row: Result) -> str:
    loops = f", {row.expected_loops:.2f} loops" if row.suite == "halting" else ""
    return f"{row.loss:.4f} ({row.difference:+.4f}{loops})"


def _markdown(title: str, cells: Cells) -> str:
    head, *rest = (f"| {' | '.join(row)} |" for row in cells)
    rule = f"| --- |{' ---: |' * (len(cells[0]) - 1)}"
    return "\n".join([f"**{title}**", "", head, rule, *rest, ""])


def _latex(title: str, cells: Cells) -> str:
    """A booktabs table; what LaTeX would read as a command is escaped."""
    head, *rest = (" & ".join(map(_escaped, row)) + r" \\" for row in cells)
    return "\n".join(
        [
            f"% {title}",
            rf"\begin{{tabular}}{{l{'r' * (len(cells[0]) - 1)}}}",
            r"\toprule", head, r"\midrule", *rest, r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )  # fmt: skip


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in "&%$#_{}" else c for c in text)
