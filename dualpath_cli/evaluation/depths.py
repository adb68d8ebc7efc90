"""Scores against depth: one model under several numbers of loops, on the same requests.

OUT/<model>/results.json      the report of the model's own depth, as of any evaluation
OUT/<model>/R=2/results.json  that of another depth; K=2 of a model without a core
OUT/<model>/loops.json        all depths side by side, with differences to the own depth
OUT/<model>/loops.png, .pdf   the scores over depth

Differences are paired by document, with intervals by the bootstrap over documents.

Shapes: W documents of a task, R 1 + resamples.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dualpath_cli.base.files import write_text
from dualpath_cli.base.output import amount
from dualpath_cli.evaluation.benchmarks import (
    HARNESS,
    ROLLING,
    Benchmark,
    Report,
    benchmarks_in,
    means_of,
    scores_of,
)
from dualpath_cli.evaluation.harness_report import harness_scores
from dualpath_cli.report import bootstrap
from dualpath_cli.report.bootstrap import Floats, resampled_sums
from dualpath_cli.report.figures import SOURCES, mark_count, panels, plain, save
from dualpath_cli.report.table import (
    Column,
    Table,
    with_interval,
    without_nan,
)
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

LOOPS = "loops"  # the name of the file of all depths, and of the figure
ACCURACY = "accuracy"
BITS = "bits per byte"
# Metrics of the harness that share an axis with the paper's
HARNESS_PANELS = {"acc": ACCURACY, "exact_match": ACCURACY, "bits_per_byte": BITS}


@dataclass(frozen=True)
class Depth:
    """A number of loops to score: R of a model with a core, else K."""

    symbol: str  # R or K
    loops: int | None  # None: the model's own, where layers differ in K
    is_own: bool
    change: Intervention | None

    @property
    def name(self) -> str:
        return "as trained" if self.loops is None else f"{self.symbol}={self.loops}"

    @property
    def heading(self) -> str:
        """The name in tables, where the own depth is marked."""
        return f"{self.name}, own" if self.is_own and self.loops else self.name


def symbol_of(model: ModelConfig) -> str:
    """What `Intervention.of_loops` forces: R of a model with a core, else K."""
    return "K" if model.core is None else "R"


def own_loops(model: ModelConfig) -> int | None:
    """The trained R or K; None where layers differ in K."""
    return model.same_loops if model.core is None else model.core_loops


class Documents(NamedTuple):
    """The score of each document of a task: a score is sum(values) / sum(weights)."""

    values: Floats  # (W,)
    weights: Floats


@dataclass(frozen=True)
class Measure:
    """A score of a task at one depth."""

    benchmark: str  # with `harness:` before a name of the harness
    metric: str
    score: float
    documents: Documents | None
    """None of a score that is no mean over documents, such as a mean of benchmarks."""


def measures_of(report: Report) -> Iterator[Measure]:
    """Yields the scores in a report: of the benchmarks, of the paper's means, then of
    the harness's tasks."""
    for task in benchmarks_in(report):
        rows = report["samples"][task]
        primary = Benchmark(task).primary
        if primary.startswith("acc"):
            documents = _plain(rows, primary)
            yield Measure(task, ACCURACY, _ratio(documents), documents)
        if primary == ROLLING:
            documents = _of_texts(rows)
            yield Measure(task, BITS, _ratio(documents), documents)
        elif "bpb" in rows[0]:
            documents = _plain(rows, "bpb")
            yield Measure(task, BITS, _ratio(documents), documents)

    for name, value in means_of(scores_of(report)).items():
        yield Measure(name, ACCURACY if name.endswith("Acc.") else BITS, value, None)

    harness = report.get(HARNESS, {})
    for score in harness_scores(report):
        rows = harness["samples"].get(score.task, [])
        of_filter = [row for row in rows if row["filter"] == score.filter]
        averaged = _of_harness(of_filter, score.metric, score.value)
        yield Measure(f"{HARNESS}:{score.task}", score.name, score.value, averaged)


def _plain(rows: Sequence[Mapping[str, Any]], metric: str) -> Documents:
    values_W = np.array([row[metric] for row in rows], dtype=float)
    return Documents(values_W, np.ones_like(values_W))


def _of_texts(rows: Sequence[Mapping[str, Any]]) -> Documents:
    """Bits and bytes of texts."""
    nats_W, bytes_W = np.array([row[ROLLING] for row in rows], dtype=float).T
    return Documents(-nats_W / math.log(2), bytes_W)


def _of_harness(
    rows: Sequence[Mapping[str, Any]], metric: str, score: float
) -> Documents | None:
    """The documents' scores where the harness's score is their mean."""
    values = [row.get(metric) for row in rows]
    are_numbers = all(isinstance(value, int | float) for value in values)
    if not values or not are_numbers:
        return None
    documents = _plain(rows, metric)
    return documents if math.isclose(_ratio(documents), score) else None


def _ratio(documents: Documents) -> float:
    return float(documents.values.sum() / documents.weights.sum())


@dataclass(frozen=True)
class DepthScore:
    """A score at a depth, and its difference to the score at the model's own depth."""

    benchmark: str
    metric: str
    documents: int | None  # None of a mean of benchmarks
    depth: str
    loops: int | None
    score: float
    difference: float
    low: float  # of the difference's 95 % interval; nan with too few documents
    high: float


def compare_depths(
    depths: Sequence[Depth], reports: Sequence[Report]
) -> list[DepthScore]:
    """The scores of all depths, the own depth first, whose report is the first."""
    own = {
        (measure.benchmark, measure.metric): measure
        for measure in measures_of(reports[0])
    }
    scores = []
    for depth, report in zip(depths, reports, strict=True):
        for measure in measures_of(report):
            baseline = own[measure.benchmark, measure.metric]
            low, high = _interval(measure, baseline)
            documents = measure.documents
            scores.append(
                DepthScore(
                    measure.benchmark,
                    measure.metric,
                    None if documents is None else len(documents.values),
                    depth.name,
                    depth.loops,
                    measure.score,
                    measure.score - baseline.score,
                    low,
                    high,
                )
            )

    return scores


def _interval(measure: Measure, own: Measure) -> tuple[float, float]:
    """The 95 % interval of a measure's difference to the same measure at the own
    depth."""
    if measure.documents is None or own.documents is None:
        return math.nan, math.nan

    differences_W = measure.documents.values - own.documents.values
    columns_W2 = np.column_stack([differences_W, own.documents.weights])
    count = len(differences_W)
    sums_R2 = resampled_sums(measure.benchmark, range(count), columns_W2)

    # A resample may have no document of a short task.
    with np.errstate(invalid="ignore", divide="ignore"):
        means_R = sums_R2[:, 0] / sums_R2[:, 1]
    low, high = bootstrap.interval(means_R, count)
    return float(low), float(high)


Rows = dict[tuple[str, str], dict[str, DepthScore]]


def _by_measure(scores: Sequence[DepthScore]) -> Rows:
    """The scores of each benchmark and metric by the name of their depth."""
    rows: Rows = {}
    for score in scores:
        rows.setdefault((score.benchmark, score.metric), {})[score.depth] = score
    return rows


def in_order(depths: Sequence[Depth]) -> list[Depth]:
    """The depths by their loops; one without a number first."""
    return sorted(depths, key=lambda depth: depth.loops or 0)


def depth_tables(
    model: str, depths: Sequence[Depth], scores: Sequence[DepthScore]
) -> tuple[Table, Table]:
    """The scores by depth, and their differences to the own depth, which is the
    first."""
    own = depths[0]
    ordered = in_order(depths)
    others = in_order(depths[1:])
    labels = [Column("benchmark"), Column("metric"), Column("documents", ",")]
    score_columns = [Column(depth.heading, ".4f") for depth in ordered]
    difference_columns = [Column(d.name, with_interval("+.3f")) for d in others]

    score_rows: list[list[Any]] = []
    difference_rows: list[list[Any]] = []
    for (benchmark, metric), by_depth in _by_measure(scores).items():
        first = next(iter(by_depth.values()))
        label = [benchmark, metric, first.documents]
        score_rows.append(label + [by_depth[d.name].score for d in ordered])
        found = [by_depth[d.name] for d in others]
        difference_rows.append(
            label + [(each.difference, each.low, each.high) for each in found]
        )

    score_table = Table(labels + score_columns, score_rows, f"{model}: scores by depth")
    least = amount("documents", bootstrap.LEAST_CLUSTERS)
    caption = (
        "paired by document; 95 % intervals by the bootstrap over documents, none with "
        f"fewer than {least}, or of means of benchmarks"
    )
    difference_table = Table(
        labels + difference_columns, difference_rows, f"minus {own.name}", caption
    )
    return score_table, difference_table


def write_depths(
    folder: Path,
    facts: Mapping[str, Any],
    depths: Sequence[Depth],
    scores: Sequence[DepthScore],
) -> Path:
    """Writes `loops.json` and the figure; returns the path of the former."""
    content = {
        **facts,
        "own": depths[0].name,
        "depths": [depth.name for depth in in_order(depths)],
        "bootstrap": bootstrap.FACTS,
        "scores": [without_nan(asdict(score)) for score in scores],
    }
    path = folder / f"{LOOPS}.json"
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    save(folder, {LOOPS: draw_depths(depths, scores)})
    return path


def draw_depths(
    depths: Sequence[Depth], scores: Sequence[DepthScore]
) -> "Figure | None":
    """Accuracy and bits per byte over loops, a line a task, with the intervals of
    differences to the own depth."""
    numbered = [depth for depth in in_order(depths) if depth.loops is not None]
    drawn: list[tuple[str, str, str, list[DepthScore]]] = []
    for (benchmark, metric), by_depth in _by_measure(scores).items():
        panel = HARNESS_PANELS.get(metric.partition(",")[0], metric)
        line = [by_depth[depth.name] for depth in numbered]
        if panel in (ACCURACY, BITS) and line[0].documents is not None:
            drawn.append((panel, benchmark, metric, line))

    # A task of the harness may have a metric of several filters in one panel.
    in_panel = Counter((panel, benchmark) for panel, benchmark, _, _ in drawn)
    several = {benchmark for (_, benchmark), count in in_panel.items() if count > 1}
    lines: dict[str, dict[str, list[DepthScore]]] = {}
    for panel, benchmark, metric, line in drawn:
        name = f"{benchmark} {metric}" if benchmark in several else benchmark
        lines.setdefault(panel, {})[name] = line
    if not lines:
        return None

    # A benchmark has one colour in both panels, and one place in the legend.
    names = dict.fromkeys(name for panel in lines.values() for name in panel)
    colors = dict(zip(names, cycle(SOURCES), strict=False))
    figure, axes = panels(2.4 + 3.8 * len(lines), 3.6, 1, len(lines))

    own = depths[0]
    of = "repetitions of the core" if own.symbol == "R" else "loops"
    counts = [depth.loops for depth in numbered]
    handles = {}
    for ax, (panel, by_benchmark) in zip(axes[0], lines.items(), strict=True):
        for benchmark, line in by_benchmark.items():
            handles[benchmark] = _draw_line(ax, line, colors[benchmark])

        if own.loops is not None:
            mark_count(ax, own.loops, own.heading)
        ax.set(xlabel=f"{of}, {own.symbol}", ylabel=panel, xticks=counts)
        plain(ax)

    figure.legend(
        [handles[name] for name in names],
        list(names),
        loc="outside right upper",
        frameon=False,
        fontsize=8,
    )
    return figure


def _draw_line(ax: "Axes", line: Sequence[DepthScore], color: str) -> "Line2D":
    """Draws a benchmark's scores, and intervals around the own score."""
    x = [score.loops for score in line if score.loops is not None]
    y = [score.score for score in line]
    own = [score.score - score.difference for score in line]
    low = [base + score.low for base, score in zip(own, line, strict=True)]
    high = [base + score.high for base, score in zip(own, line, strict=True)]
    ax.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
    (drawn,) = ax.plot(x, y, color=color, marker="o", markersize=4)
    return drawn
