"""`dualpath ablate`: the cost of interventions on one checkpoint, paired on identical
windows.

1. every source is cut into the same windows as in `validate`;
2. each source is scored under the learned router, then under each intervention of the
   suites (`options.py`); finished passes of an earlier call are not scored again
   (`bench.py`);
3. each intervention is compared with the learned router window by window, with a
   bootstrap interval over documents (`scores.py`);
4. tables are printed, and written as Markdown, CSV and JSON; figures are drawn.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure

from dualpath_cli.base.files import write_texts
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.windows import Windows
from dualpath_cli.report import bootstrap
from dualpath_cli.report.bootstrap import clusters_of
from dualpath_cli.report.figures import MUTED, SOURCES, panels, plain, save
from dualpath_cli.report.table import (
    Column,
    Columns,
    Table,
    format_csv,
    interval,
    markdown,
    show,
    without_nan,
)
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.study import bench
from dualpath_cli.study.ablation.options import (
    BASELINE,
    GATES,
    REPORT,
    SHORTER,
    Ablate,
    Row,
)
from dualpath_cli.study.ablation.scores import (
    Excess,
    Result,
    Scoring,
    compare,
    excesses,
)
from dualpath_cli.study.controls import Masks, Match, members_of, random_others, tag
from dualpath_cli.study.parts_of_speech import Tagger
from dualpath_cli.training.launch import StudyLaunch
from dualpath_cli.training.session import Session


def run(session: Session[StudyLaunch]) -> None:
    options: Ablate = session.launch.options
    model = session.launch.settings.model
    rows, skipped = options.rows(model)
    for reason in dict.fromkeys(skipped.values()):
        names = ", ".join(name for name, why in skipped.items() if why == reason)
        session.say(f"left out {names}: {reason}")
    classes = dict.fromkeys(row.token_class for row in rows if row.token_class)
    tagger = Tagger(options.tagger) if classes else None
    ablation = Ablation(session, rows, tagger)
    module = bench.run(ablation, session)
    if not session.trainer.is_global_zero:
        return
    report = {
        **module.facts,
        "suites": options.suites,
        "sources": module.sources,
        "bootstrap": bootstrap.FACTS,
        "tagger": tagger and tagger.facts,
        "classes": [asdict(forced) for forced in classes],
        "interventions": {
            row.intervention.name: asdict(row.intervention)
            | {"random_seed": row.random_seed}
            for row in rows
        },
        "skipped": skipped,
    }
    found = zip(*(ablation.finished[source] for source in module.sources), strict=True)
    results, of_classes, tables = (list(chain.from_iterable(each)) for each in found)
    written = write(options.folder, report, results, of_classes, tables)
    written += draw(options.folder, results, model.same_loops)
    session.say("\n".join(map(str, written)))


class Ablation(bench.Study[Scoring]):
    semantics = 4

    def __init__(
        self, session: Session[StudyLaunch], rows: Sequence[Row], tagger: Tagger | None
    ) -> None:
        """`rows` are scored, the learned router first."""
        self._options: Ablate = session.launch.options
        self._model, self._console = session.launch.settings.model, session.console
        self._rows, self._tagger = rows, tagger
        self.folder = self._options.folder / "scores"
        self.finished: dict[str, tuple[list[Result], list[Excess], list[Table]]] = {}

    def passes(
        self, source: str, windows: Windows, tokenizer: Tokenizer
    ) -> list[Scoring]:
        passes = [Scoring(source, windows, row) for row in self._rows]
        if self._tagger is not None:
            self._console.print(f"tagging {source}", highlight=False)
            inputs = [window[:-1] for window in windows.windows[: windows.n_filled]]
            tags = tag(inputs, tokenizer, self._tagger)
            # Both paths are forced on the same tokens, also on the same random tokens.
            masks: dict[tuple[str, int | None], tuple[Masks, Match | None]] = {}
            for pass_ in passes:
                forced, seed = pass_.row.token_class, pass_.row.random_seed
                if forced is None:
                    continue
                key = (forced.name, seed)
                if key not in masks:
                    members = members_of(tags, forced.upos)
                    masks[key] = members, None
                    if seed is not None:
                        masks[key] = random_others(tags, members, seed, forced.name)
                pass_.masks, pass_.match = masks[key]
        return passes

    def finish(self, source: str, passes: Sequence[Scoring]) -> None:
        results, of_classes, tables = self.finished[source] = (
            compare(passes),
            excesses(passes),
            [],
        )
        windows = passes[0].windows
        title = (
            f"{source}: nats per token over {windows.n_tokens:,} tokens, "
            f"{clusters_of(windows)}"
        )
        for suite in self._options.suites:
            rows = [row for row in results if row.suite in (suite, BASELINE)]
            if suite in ("paper", "experts", "kv-slots", *SHORTER):
                tables.append(source_table(title, rows, self._model.same_loops))
            elif suite == "layers" and len(rows) > 1:
                is_dual = self._model.block_kinds[-1] == "dual"
                tables.append(layer_table(title, rows[1:], is_dual))
            elif suite == "token-classes" and of_classes:
                tables.append(excess_table(title, of_classes))
        for table in tables:
            show(self._console, table)


LAST_LAYER = (
    "The final RMSNorm removes the scale of the last layer's output: only g_d : g_w "
    "counts there. Differences that depend on the size of its gates cannot be compared "
    "with other layers."
)


def source_table(title: str, results: Sequence[Result], loops: int | None) -> Table:
    """A table of one source's rows; `loops` is the trained K, if all layers have
    one."""
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
    return Table.of(results, columns, title)


def excess_table(title: str, rows: Sequence[Excess]) -> Table:
    columns: Columns[Excess] = [
        (Column("forced"), lambda row: f"{row['token_class']} {row['path']}"),
        (Column("tokens", ","), lambda row: row["tokens"]),
        (Column("share", "{:.1f} %".format), lambda row: 100 * row["share"]),
        (Column("class", "+.4f"), lambda row: row["difference"]),
        (Column("random", "+.4f"), lambda row: row["random_difference"]),
        (Column("excess", "+.4f"), lambda row: row["excess"]),
        (
            Column("95 % interval", interval("+.4f")),
            lambda row: (row["low"], row["high"]),
        ),
        (Column("per forced", "+.3f"), lambda row: row["per_forced"]),
        (
            Column("95 % interval", interval("+.3f")),
            lambda row: (row["per_forced_low"], row["per_forced_high"]),
        ),
    ]
    return Table.of(rows, columns, title, _matched(rows))


def layer_table(title: str, results: Sequence[Result], last_is_dual: bool) -> Table:
    """A table of one source's differences, an override a row and a layer a column.

    `last_is_dual`: whether the model's last layer has gates; only their ratio counts.
    """
    overrides, layers, differences = by_layer(results)
    rows = [
        [override.name, *(differences.get((override, layer)) for layer in layers)]
        for override in overrides
    ]
    columns = [
        Column("in one layer"),
        *(Column(str(layer), "+.4f") for layer in layers),
    ]
    return Table(columns, rows, title, LAST_LAYER if last_is_dual else "")


def by_layer(
    results: Iterable[Result],
) -> tuple[list[Intervention], list[int], Mapping[tuple[Intervention, int], float]]:
    """The overrides and the layers of the suite `layers`, and the differences by
    both."""
    differences = {}
    for row in results:
        override = replace(row.intervention, layers=None)
        for layer in row.intervention.layers or ():
            differences[override, layer] = row.difference
    overrides = list(dict.fromkeys(override for override, _ in differences))
    return overrides, sorted({layer for _, layer in differences}), differences


def label(intervention: Intervention, loops: int | None) -> str:
    """An intervention's name and, in brackets, its meaning; `loops` is the trained
    K."""
    meaning = meaning_of(intervention)
    if loops is not None and intervention == Intervention(loops=loops):
        meaning = "as trained"
    return f"{intervention.name} ({meaning})" if meaning else intervention.name


def meaning_of(intervention: Intervention) -> str | None:
    """The paper's name of constant gates in all layers; None for other
    interventions."""
    gates = intervention.gates
    if not isinstance(gates, tuple) or intervention != Intervention(gates=gates):
        return None
    return GATES.get(gates)


def _matched(rows: Sequence[Excess]) -> str:
    """How closely the random tokens match the classes, for a caption."""
    texts = {
        row[
            "token_class"
        ]: f"{row['token_class']}: {100 * row['match_same_position']:.0f} % at "
        f"the same position, runs of {row['match_random_run']:.2f} tokens for "
        f"{row['match_run']:.2f}"
        for row in rows
        if row["tokens"]
    }
    return f"random tokens: {'; '.join(texts.values())}" if texts else ""


def write(
    folder: Path,
    report: dict[str, Any],
    results: Sequence[Result],
    excesses: Sequence[Excess],
    tables: Sequence[Table],
) -> list[Path]:
    """Writes ablations.json (the report and all rows), .csv and .md; returns their
    paths.

    A missing number is null in JSON and empty in CSV; `tables` are those on the screen.
    """
    rows = [
        without_nan({**asdict(row), "intervention": row.intervention.name})
        for row in results
    ]
    excess_rows = list(map(without_nan, excesses))
    texts = {
        REPORT: json.dumps({**report, "rows": rows, "excess": excess_rows}, indent=2)
        + "\n",
        "ablations.csv": format_csv(rows),
        "ablations.md": "\n".join(map(markdown, tables)),
    }
    if excesses:
        texts["token_classes.csv"] = format_csv(excess_rows)
    else:  # left from an earlier study with other suites
        (folder / "token_classes.csv").unlink(missing_ok=True)
    return write_texts(folder, texts)


TITLE = "loss less that of the learned router (nats per token)"


def draw(folder: Path, results: Sequence[Result], loops: int | None) -> list[Path]:
    """Writes each figure with rows in the results, as PNG and PDF; returns their
    paths."""
    return save(
        folder,
        {
            "forced_loops": _forced_loops(results, loops),
            "layers": _layers(results),
            "passes": _passes(results),
        },
    )


def _forced_loops(results: Sequence[Result], trained: int | None) -> Figure | None:
    """Difference to the learned router by forced K, a line a source; marks the trained
    K."""
    points = [
        (loops, r)
        for r in results
        if (loops := r.intervention.loops)
        and r.intervention == Intervention(loops=loops)
    ]
    if len({loops for loops, _ in points}) < 2:
        return None
    figure, axes = panels(5.2, 3.6)
    ax = axes[0, 0]
    sources = dict.fromkeys(r.source for _, r in points)
    for source, color in zip(sources, cycle(SOURCES), strict=False):
        line = [r for _, r in points if r.source == source]
        x = [loops for loops, r in points if r.source == source]
        ax.fill_between(
            x,
            [r.low for r in line],
            [r.high for r in line],
            color=color,
            alpha=0.2,
            linewidth=0,
        )
        ax.plot(
            x,
            [r.difference for r in line],
            color=color,
            marker="o",
            markersize=4,
            label=source,
        )
    if trained is not None:
        ax.axvline(trained, color=MUTED, linewidth=0.8, linestyle=":")
        ax.annotate(
            f"trained K = {trained}",
            (trained, 0.97),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            va="top",
            color=MUTED,
        )
    ax.set(
        xlabel="forced loops",
        ylabel=TITLE,
        xticks=sorted({loops for loops, _ in points}),
    )
    _finish(ax)
    ax.legend(frameon=False)
    return figure


def _passes(results: Sequence[Result]) -> Figure | None:
    """Difference by the sublayers that a token passes: a panel a source, a line a
    suite."""
    rows = [r for r in results if r.suite in SHORTER]
    if not rows:
        return None
    sources = list(dict.fromkeys(r.source for r in rows))
    figure, axes = panels(1.2 + 3.4 * len(sources), 3.4, 1, len(sources), sharey=True)

    for ax, source in zip(axes[0], sources, strict=True):
        learned = [r for r in results if r.source == source and r.suite == BASELINE]
        for suite, color in zip(
            dict.fromkeys(r.suite for r in rows), SOURCES, strict=False
        ):
            line = [r for r in rows if r.source == source and r.suite == suite]
            line = sorted([*line, *learned], key=lambda r: r.passes)
            ax.plot(
                [r.passes for r in line],
                [r.difference for r in line],
                color=color,
                marker="o",
                markersize=4,
                label=suite,
            )
        ax.set(title=source, xlabel="sublayers that a token passes in a layer")
        ax.set_yscale("symlog", linthresh=1e-3)
        _finish(ax)
    axes[0, 0].set_ylabel(TITLE, fontsize=8)
    axes[0, 0].legend(frameon=False)
    return figure


def _layers(results: Sequence[Result]) -> Figure | None:
    """A heat map for each source: an override a row, its layer a column."""
    rows = [r for r in results if r.suite == "layers"]
    if not rows:
        return None
    sources = list(dict.fromkeys(r.source for r in rows))
    overrides, layers, _ = by_layer(rows)
    width, height = 1.9 + 0.42 * len(layers), 1.1 + 0.24 * len(overrides)
    figure, axes = panels(
        1.2 + width * len(sources), height, 1, len(sources), sharey=True
    )
    finite = (abs(r.difference) for r in rows if math.isfinite(r.difference))
    largest = max(finite, default=0) or 1.0
    # Differences span decades: linear below a thousandth of the largest, logarithmic
    # above.
    norm = SymLogNorm(linthresh=largest / 1000, vmin=-largest, vmax=largest)
    for ax, source in zip(axes[0], sources, strict=True):
        _, _, differences = by_layer(r for r in rows if r.source == source)
        grid = [
            [differences.get((o, layer), np.nan) for layer in layers] for o in overrides
        ]
        image = ax.imshow(grid, cmap="RdBu_r", norm=norm, aspect="auto")
        ax.set(title=source, xlabel="only this layer", xticks=range(len(layers)))
        ax.set_xticklabels([str(layer) for layer in layers])
        ax.set_yticks(
            range(len(overrides)), [meaning_of(o) or o.name for o in overrides]
        )
    powers = [10.0**n for n in range(-9, 9) if largest / 1000 < 10.0**n <= largest]
    ticks = [*(-value for value in reversed(powers)), 0.0, *powers]
    label = "difference (nats per token)"
    figure.colorbar(image, ax=axes[0].tolist(), label=label, ticks=ticks)
    return figure


def _finish(ax: Axes) -> None:
    ax.axhline(0, color=MUTED, linewidth=0.8)
    plain(ax)
    ax.yaxis.label.set_fontsize(8)
