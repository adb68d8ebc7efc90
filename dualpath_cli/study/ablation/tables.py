"""The tables of an ablation: a source's rows, its layers, its classes of tokens."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dualpath_cli.report.table import Column, Table, interval
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.study.ablation.options import GATES, SHORTER
from dualpath_cli.study.ablation.scores import Excess, Result

LAST_LAYER = (
    "The final RMSNorm removes the scale of the last layer's output: only g_d : g_w "
    "counts there. Differences that depend on the size of its gates cannot be compared "
    "with other layers."
)


def source_table(title: str, results: Sequence[Result], model: ModelConfig) -> Table:
    """A table of one source's rows."""
    columns = [
        Column("intervention"),
        Column("loss", ".4f"),
        Column("difference", "+.4f"),
        Column("95 % interval", interval("+.4f")),
    ]
    shows_compute = results[-1].suite in SHORTER
    shows_core = shows_compute and model.core is not None
    if shows_compute:
        columns += [Column(name, ".2f") for name in ("loops", "loops run", "passes")]
    if shows_core:
        columns += [Column(name, ".2f") for name in ("R", "R run")]

    rows = []
    for result in results:
        name = label(result.intervention, model)
        ends = (result.low, result.high)
        row = [name, result.loss, result.difference, ends]
        if shows_compute:
            row += [result.expected_loops, result.loops_run, result.passes]
        if shows_core:
            row += [result.expected_core_loops, result.core_loops_run]
        rows.append(row)

    return Table(columns, rows, title)


def depth_table(title: str, results: Sequence[Result], caption: str) -> Table:
    """A table of one source's fewer steps, each beside the same with fitted
    read-outs."""
    columns = [
        Column("intervention"),
        Column("passes", ".2f"),
        Column("loss", ".4f"),
        Column("difference", "+.4f"),
        Column("95 % interval", interval("+.4f")),
        Column("temperature", "+.4f"),
        Column("affine", "+.4f"),
        Column("repaired", "{:.0%}".format),
        Column("95 % interval", lambda ends: f"{ends[0]:.0%} to {ends[1]:.0%}"),
    ]
    fitted: dict[Intervention, dict[str, Result]] = {}
    for result in results:
        fitted.setdefault(result.intervention, {})[result.read_out] = result

    rows = []
    for of_read_outs in fitted.values():
        if len(of_read_outs) == 1:  # an exit or a schedule
            continue
        trained, temperature, affine = of_read_outs.values()
        row = [
            trained.intervention.name,
            trained.passes,
            trained.loss,
            trained.difference,
            (trained.low, trained.high),
            temperature.difference,
            affine.difference,
            affine.repaired,
            (affine.repaired_low, affine.repaired_high),
        ]
        rows.append(row)

    return Table(columns, rows, title, caption)


def exit_table(title: str, results: Sequence[Result]) -> Table:
    """A table of one source's exits, each above the schedules of its depth."""
    columns = [
        Column("exit, or schedule"),
        Column("passes", ".2f"),
        Column("loss", ".4f"),
        Column("difference", "+.4f"),
        Column("95 % interval", interval("+.4f")),
        Column("minus exit", "+.4f"),
        Column("95 % interval", interval("+.4f")),
    ]
    rows: list[list[Any]] = []
    for result in results:
        change = result.intervention
        if change.halting is None:
            continue
        if change.blind is None and rows:
            rows.append([])
        row = [
            change.name if change.blind is None else f"  blind: {change.blind}",
            result.passes,
            result.loss,
            result.difference,
            (result.low, result.high),
            result.over_exit,
            (result.over_exit_low, result.over_exit_high),
        ]
        rows.append(row)

    return Table(columns, rows, title)


def excess_table(title: str, excesses: Sequence[Excess]) -> Table:
    """A table of one source's classes, each beside its matched random tokens."""
    columns = [
        Column("forced"),
        Column("tokens", ","),
        Column("share", "{:.1f} %".format),
        Column("class", "+.4f"),
        Column("random", "+.4f"),
        Column("excess", "+.4f"),
        Column("95 % interval", interval("+.4f")),
        Column("per forced", "+.3f"),
        Column("95 % interval", interval("+.3f")),
    ]
    rows = [
        [
            f"{excess['token_class']} {excess['path']}",
            excess["tokens"],
            100 * excess["share"],
            excess["difference"],
            excess["random_difference"],
            excess["excess"],
            (excess["low"], excess["high"]),
            excess["per_forced"],
            (excess["per_forced_low"], excess["per_forced_high"]),
        ]
        for excess in excesses
    ]
    return Table(columns, rows, title, _match_caption(excesses))


def _match_caption(excesses: Sequence[Excess]) -> str:
    """How closely the random tokens match the classes, for a caption."""
    text_of_class = {}
    for excess in excesses:
        if not excess["tokens"]:
            continue
        name = excess["token_class"]
        same = 100 * excess["match_same_position"]
        random_run = excess["match_random_run"]
        run = excess["match_run"]
        text_of_class[name] = (
            f"{name}: {same:.0f} % at the same position, "
            f"runs of {random_run:.2f} tokens for {run:.2f}"
        )

    texts = "; ".join(text_of_class.values())
    return f"random tokens: {texts}" if texts else ""


def layer_table(
    title: str, results: Sequence[Result], last_has_no_scale: bool
) -> Table:
    """A table of one source's differences, an override a row and a layer a column.

    `last_has_no_scale`: whether only the ratio of the last layer's gates counts.
    """
    overrides, layers, differences = by_layer(results)
    columns = [
        Column("in one layer"),
        *(Column(str(layer), "+.4f") for layer in layers),
    ]
    rows: list[list[Any]] = []
    for override in overrides:
        of_layers = [differences.get((override, layer)) for layer in layers]
        rows.append([override.name, *of_layers])

    return Table(columns, rows, title, LAST_LAYER if last_has_no_scale else "")


def by_layer(
    results: Iterable[Result],
) -> tuple[list[Intervention], list[int], Mapping[tuple[Intervention, int], float]]:
    """The overrides and the layers of the suite `layers`, and the differences by
    both."""
    differences = {}
    for result in results:
        override = replace(result.intervention, layers=None)
        for layer in result.intervention.layers or ():
            differences[override, layer] = result.difference

    overrides = list(dict.fromkeys(override for override, _ in differences))
    layers = sorted({layer for _, layer in differences})
    return overrides, layers, differences


def label(intervention: Intervention, model: ModelConfig) -> str:
    """An intervention's name and, in brackets, its meaning."""
    as_trained = [Intervention(core_loops=model.core_loops)]
    if model.same_loops is not None:
        as_trained.append(Intervention(loops=model.same_loops))

    meaning = meaning_of(intervention)
    if intervention in as_trained:
        meaning = "as trained"
    return f"{intervention.name} ({meaning})" if meaning else intervention.name


def meaning_of(intervention: Intervention) -> str | None:
    """The paper's name of constant gates in all layers; None for other
    interventions."""
    gates = intervention.gates
    if not isinstance(gates, tuple) or intervention != Intervention(gates=gates):
        return None
    return GATES.get(gates)
