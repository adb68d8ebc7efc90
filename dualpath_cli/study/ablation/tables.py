"""The numbers of an ablation, and its tables: screen, CSV, JSON, Markdown.

Passes are set against that of the learned router, window by window.

Shapes: W windows, C columns, P passes, R 1 + resamples.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dualpath_cli.base.system import format_csv, without_nan, write_texts
from dualpath_cli.data.windows import Windows
from dualpath_cli.flops.paper import inference_ablation, token_class_excess
from dualpath_cli.report import bootstrap
from dualpath_cli.report.bootstrap import Floats, clusters_of, resampled_sums
from dualpath_cli.report.table import Column, Columns, Table, interval, markdown
from dualpath_cli.spec.intervention import LEARNED, Intervention
from dualpath_cli.study.ablation.options import BASELINE, GATES, REPORT, SHORTER, Row
from dualpath_cli.study.controls import Match
from dualpath_cli.study.parts_of_speech import ARITHMETIC, FUNCTION, ForcedClass

Numbers = npt.NDArray[np.integer]
LAST_LAYER = (
    "The final RMSNorm takes the scale out of the last layer's output: only g_d : g_w counts "
    "there, so that what depends on the size of its gates cannot be set beside other layers."
)
"""The caption of the table of layers, where the last one has gates."""
AUTHORS = (ARITHMETIC.to("wide"), FUNCTION.to("deep"))
"""The classes of the authors' revision, each forced to the path that it is said not to lean to."""


@dataclass(frozen=True)
class Scores:
    """The results of one pass; W windows, the longest first. Without loops theirs are nan."""

    nats: Floats  # sum of the losses of each window's tokens, (W,)
    loops: Floats  # sum of the expected loops of its tokens, of each the mean over layers, (W,)
    passes: Floats  # sum of the sublayers that they passed, of each the mean over layers, (W,)
    loops_run: npt.NDArray[np.float64]  # mean steps that a batch really ran in a layer, ()


@dataclass(frozen=True)
class Result:
    """One intervention on one source; losses are nats per token. Without loops theirs are nan."""

    suite: str
    intervention: Intervention
    source: str
    loss: float
    difference: float  # loss less that of the learned router on the same windows
    low: float  # of the difference's 95 % interval; nan where the clusters of text are too few
    high: float
    expected_loops: float  # mean over tokens and layers of the step number under the step weights
    passes: float  # mean over tokens and layers of the sublayers passed; of a dual layer K + 1
    loops_run: float  # mean steps that a batch really ran in a layer


@dataclass(frozen=True)
class Excess:
    """The cost of overriding a class of tokens beyond that of as many random others.

    Spread over all tokens of the source it is what the source's loss shows, and is small where the
    class is rare; over the tokens that are forced it can be compared between sources.
    """

    token_class: ForcedClass
    source: str
    tokens: int  # of the class
    share: float  # of all tokens of the source
    difference: float  # loss with the class overridden less that of the learned router
    random_difference: float  # the same for random others, the mean over seeds
    excess: float  # the difference of the two
    low: float  # of the excess's 95 % interval, given the random draws
    high: float
    per_forced: float  # the excess over the tokens of the class alone
    per_forced_low: float
    per_forced_high: float
    match: Match  # how closely the random tokens match the class

    @property
    def name(self) -> str:
        return f"{self.token_class.name} {self.token_class.path}"


def compare(
    source: str, rows: Sequence[Row], scores: Sequence[Scores], windows: Windows
) -> list[Result]:
    """A result per row: its loss, and the difference to the first one's."""
    nats_WP = np.stack([scored.nats for scored in scores], axis=1)
    mean_P, low_P, high_P = _ratios(
        source, nats_WP - nats_WP[:, :1], windows.tokens[:, None], windows
    )
    count = windows.n_tokens
    return [
        Result(
            row.suite, row.intervention, source, float(nats_WP[:, p].sum() / count),
            float(mean_P[p]), float(low_P[p]), float(high_P[p]),
            float(scored.loops.sum() / count), float(scored.passes.sum() / count),
            float(scored.loops_run),
        )
        for p, (row, scored) in enumerate(zip(rows, scores, strict=True))
    ]  # fmt: skip


def excess(
    source: str,
    token_class: ForcedClass,
    chosen_W: Numbers,
    learned_W: Floats,
    class_W: Floats,
    random_W: Sequence[Floats],
    windows: Windows,
    match: Match,
) -> Excess:
    """The cost of overriding a class beyond the mean over seeds of random others.

    `chosen_W` is the number of the class's tokens in each window; the others are nats of each
    window, of the random ones for each seed. The intervals are over the text: what another random
    draw would change is not in them. A class without tokens has no excess: nan.
    """
    chosen = int(chosen_W.sum())
    mean_random_W = np.mean(random_W, axis=0) if chosen else np.full(windows.n_filled, np.nan)
    tokens_W2 = np.column_stack([windows.tokens, chosen_W])
    excess_W2 = np.repeat((class_W - mean_random_W)[:, None], 2, axis=1)
    mean, low, high = _ratios(source, excess_W2, tokens_W2, windows)
    count = windows.n_tokens
    return Excess(
        token_class, source, chosen, chosen / count,
        float((class_W - learned_W).sum() / count),
        float((mean_random_W - learned_W).sum() / count),
        float(mean[0]), float(low[0]), float(high[0]),
        float(mean[1]), float(low[1]), float(high[1]), match,
    )  # fmt: skip


def _ratios(
    source: str, nats_WC: Floats, tokens_WC: Numbers, windows: Windows
) -> tuple[Floats, Floats, Floats]:
    """The nats of all windows over the tokens of all, and the ends of 95 % intervals, (C,) each.

    `tokens_WC` may be one column for all.
    """
    clusters = clusters_of(windows)
    nats_RC = resampled_sums(source, clusters.of_window, nats_WC)
    tokens_RC = resampled_sums(source, clusters.of_window, tokens_WC.astype(float))
    with np.errstate(invalid="ignore", divide="ignore"):  # a resample may have no such token
        means_RC = nats_RC / tokens_RC
    return means_RC[0], *bootstrap.interval(means_RC, clusters.count)


def source_table(title: str, results: Sequence[Result], loops: int | None, paper: bool) -> Table:
    """A table of one source's rows; `loops` is the trained K, if all layers have one."""
    columns: Columns[Result] = [
        (Column("intervention"), lambda row: label(row.intervention, loops)),
        (Column("loss", ".4f"), lambda row: row.loss),
        (Column("difference", "+.4f"), lambda row: row.difference),
        (Column("95 % interval", interval("+.4f")), lambda row: (row.low, row.high)),
    ]
    if results[-1].suite in SHORTER:
        columns += [
            (Column("loops", ".2f"), lambda row: row.expected_loops),
            (Column("run", ".2f"), lambda row: row.loops_run),
            (Column("passes", ".2f"), lambda row: row.passes),
        ]
    if paper:
        columns += [
            (Column("paper's loss", ".3f"), lambda row: _paper(row)[0]),
            (Column("difference", "+.3f"), lambda row: _paper(row)[1]),
        ]
    return Table.of(results, columns, title)


def excess_table(title: str, rows: Sequence[Excess], paper: bool) -> Table:
    columns = [_FORCED, *_EXCESS]
    if paper:
        columns.append((
            Column("paper's excess", "+.2f"),
            lambda row: (
                token_class_excess(row.name, row.source) if row.token_class in AUTHORS else None
            ),
        ))  # fmt: skip
    return Table.of(rows, columns, title, _matched(rows))


_FORCED: tuple[Column, Callable[[Excess], Any]] = (Column("forced"), lambda row: row.name)
_EXCESS: Columns[Excess] = [
    (Column("tokens", ","), lambda row: row.tokens),
    (Column("share", "{:.1f} %".format), lambda row: 100 * row.share),
    (Column("class", "+.4f"), lambda row: row.difference),
    (Column("random", "+.4f"), lambda row: row.random_difference),
    (Column("excess", "+.4f"), lambda row: row.excess),
    (Column("95 % interval", interval("+.4f")), lambda row: (row.low, row.high)),
    (Column("per forced", "+.3f"), lambda row: row.per_forced),
    (Column("95 % interval", interval("+.3f")),
     lambda row: (row.per_forced_low, row.per_forced_high)),
]  # fmt: skip


def layer_table(title: str, results: Sequence[Result], last_is_dual: bool) -> Table:
    """A table of one source's differences, an override a row and a layer a column.

    `last_is_dual` tells whether the model's last layer has gates, of which only the ratio counts.
    """
    overrides, layers, differences = by_layer(results)
    rows = [
        [override.name, *(differences.get((override, layer)) for layer in layers)]
        for override in overrides
    ]
    columns = [Column("in one layer"), *(Column(str(layer), "+.4f") for layer in layers)]
    return Table(columns, rows, title, LAST_LAYER if last_is_dual else "")


def by_layer(
    results: Iterable[Result],
) -> tuple[list[Intervention], list[int], Mapping[tuple[Intervention, int], float]]:
    """The overrides and the layers of the suite `layers`, and the differences by both."""
    differences = {}
    for row in results:
        override = replace(row.intervention, layers=None)
        for layer in row.intervention.layers or ():
            differences[override, layer] = row.difference
    overrides = list(dict.fromkeys(override for override, _ in differences))
    return overrides, sorted({layer for _, layer in differences}), differences


def label(intervention: Intervention, loops: int | None) -> str:
    """An intervention's name with its meaning behind it; `loops` is the trained K."""
    meaning = meaning_of(intervention)
    if loops is not None and intervention == Intervention(loops=loops):
        meaning = "as trained"
    return f"{intervention.name} ({meaning})" if meaning else intervention.name


def meaning_of(intervention: Intervention) -> str | None:
    """The paper's name of constant gates in all layers; None for all else."""
    gates = intervention.gates
    if not isinstance(gates, tuple) or intervention != Intervention(gates=gates):
        return None
    return GATES.get(gates)


def _paper(row: Result) -> tuple[float | None, float | None]:
    """The paper's loss and its difference to that of the learned router, if it has them."""
    loss = inference_ablation(row.intervention.name, row.source)
    learned = inference_ablation(LEARNED, row.source)
    return (None, None) if loss is None or learned is None else (loss, loss - learned)


def _matched(rows: Sequence[Excess]) -> str:
    """How closely the random tokens match the classes, for a caption."""
    texts = {
        row.token_class.name: f"{row.token_class.name}: {100 * row.match.same_position:.0f} % at "
        f"the same position, runs of {row.match.random_run:.2f} tokens for {row.match.run:.2f}"
        for row in rows
        if row.tokens
    }
    return f"random tokens: {'; '.join(texts.values())}" if texts else ""


def write(
    folder: Path,
    report: dict[str, Any],
    results: Sequence[Result],
    excesses: Sequence[Excess],
    loops: int | None,
) -> list[Path]:
    """Writes ablations.json (the report and all rows), .csv and .md; returns their paths.

    A missing number is null in JSON and empty in CSV; `loops` is as in `source_table`.
    """
    rows = [without_nan({**asdict(row), "intervention": row.intervention.name}) for row in results]
    excess_rows = [_excess_record(row) for row in excesses]
    texts = {
        REPORT: json.dumps({**report, "rows": rows, "excess": excess_rows}, indent=2) + "\n",
        "ablations.csv": format_csv(rows),
        "ablations.md": "\n".join(map(markdown, _tables(results, excesses, loops))),
    }
    if excesses:
        texts["token_classes.csv"] = format_csv(excess_rows)
    else:  # of an earlier study, with other suites
        (folder / "token_classes.csv").unlink(missing_ok=True)
    return write_texts(folder, texts)


def _excess_record(row: Excess) -> dict[str, Any]:
    numbers = asdict(row)
    chosen, match = numbers.pop("token_class"), numbers.pop("match")
    names = {"token_class": chosen["name"], "upos": ",".join(chosen["upos"])}
    matched = {f"match_{key}": value for key, value in match.items()}
    return without_nan({**names, "path": chosen["path"], **numbers, **matched})


def _tables(
    results: Sequence[Result], excesses: Sequence[Excess], loops: int | None
) -> list[Table]:
    """Every suite as a table: a row an intervention, a column a source, as in the paper."""
    sources = list(dict.fromkeys(row.source for row in results))
    columns = [Column("intervention"), *(Column(source, _cell) for source in sources)]
    tables = []
    for suite in dict.fromkeys(row.suite for row in results if row.suite != BASELINE):
        found = {(r.intervention, r.source): r for r in results if r.suite in (suite, BASELINE)}
        rows = [
            [label(intervention, loops), *(found.get((intervention, source)) for source in sources)]
            for intervention in dict.fromkeys(intervention for intervention, _ in found)
        ]
        title = f"{suite}: nats per token (difference to the learned router)"
        tables.append(Table(columns, rows, title))
    if excesses:
        title = "excess of a class over as many random tokens, nats over all tokens and per forced"
        source: Columns[Excess] = [(Column("source"), lambda row: row.source)]
        tables.append(Table.of(excesses, [_FORCED, *source, *_EXCESS], title))
    return tables


def _cell(row: Result) -> str:
    shorter = f", {row.passes:.2f} passes" if row.suite in SHORTER else ""
    return f"{row.loss:.4f} ({row.difference:+.4f}{shorter})"
