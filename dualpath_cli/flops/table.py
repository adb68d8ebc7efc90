"""The plain-text tables of `dualpath flops`."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, groupby
from statistics import fmean
from textwrap import wrap
from typing import Any

from dualpath_cli.config import by_layer
from dualpath_cli.flops import count
from dualpath_cli.flops.report import Description, Hardware
from dualpath_cli.flops.widths import TOLERANCE
from dualpath_cli.output.table import Column, Table
from dualpath_cli.output.terminal import aligned, fits
from dualpath_cli.sizes import format_size

Groups = Sequence[Sequence[Description]]
"""The readings of each configuration."""

WIDTH = 100
"""Columns that paragraphs are wrapped to."""

ASSUMED = (
    "This hardware is assumed; name yours with --tokens, --gpus and --tflops. The paper's runs "
    "took 12.8 to 21.4 hours, which implies 42 to 122 TFLOP/s for each of its A100s."
)
"""Follows training hours that no option asked for."""


def as_text(descriptions: Sequence[Description], width: int | None) -> str:
    """One model under one or two readings, side by side, with units and what differs.

    `width` is the terminal's; None where the output is no terminal.
    """
    first = descriptions[0]
    paragraphs = [_training(first.hardware)] if _shows_hours(first) else []
    notes = [*map(_clamp_notes, descriptions), *map(_distance_notes, descriptions)]
    paragraphs += dict.fromkeys(chain(*notes))
    if len(descriptions) == 2:
        paragraphs.append(what_differs(*descriptions))
    table = _readings(_table_of_one, [descriptions], width)
    return "\n".join([*title(first, width), *table, *wrapped(paragraphs, width)])


def _table_of_one(groups: Groups) -> Table:
    """A line a number, a column a reading."""
    (descriptions,) = groups
    columns = [Column(""), *(Column(_heading(d), _number) for d in descriptions)]
    lines = zip(*map(_numbers, descriptions), strict=True)
    return Table(columns, [[line[0][0], *(number for _, number in line)] for line in lines])


def wrapped(paragraphs: Iterable[str], width: int | None) -> list[str]:
    """Lines of at most WIDTH columns, or of the terminal's, and an empty one before a paragraph."""
    most = min(WIDTH, width or WIDTH)
    return [line for paragraph in paragraphs for line in ("", *wrap(paragraph, most))]


def title(description: Description, width: int | None) -> list[str]:
    """Two lines or more that name the model, on a terminal no wider than it."""
    config, target = description.config, description.target
    kinds = " + ".join(f"{len(list(run))} {kind}" for kind, run in groupby(config.block_kinds))
    deep = "" if set(config.block_kinds) == {"wide"} else f", K = {by_layer(config.loops)}"
    what = f"{kinds} blocks{deep}"
    if len(description.solved) > 1 and description.budget is not None:
        what += f", each layer for {format_size(description.budget)} linear FLOPs per token"
    if target is not None:
        split = f", alpha {target.alpha:g} %" if target.block == "dual" else ""
        what = (
            f"{target.block} block{deep}{split}, "
            f"budget {format_size(target.budget)} linear FLOPs per token and layer"
        )
        if _in_total(description):
            what += (
                f"\nmatched in total: linear + attention scores = {target.matched_budget:,} "
                f"(budget + {target.reference_passes} passes)"
            )
    backbone = (
        f"{config.n_layers} layers, width {config.d_model}, {config.n_heads} heads, "
        f"{config.n_kv_heads} key/value heads, vocabulary {config.vocab_size}, "
        f"{description.seq_len} tokens a sequence"
    )
    lines = [*what.splitlines(), backbone]
    return lines if width is None else [part for line in lines for part in wrap(line, width)]


def _numbers(description: Description) -> list[tuple[str, Any]]:
    """The lines of the table: a label and its number, None for a heading."""
    config, layer = description.config, description.layer
    kinds, k, ratio = set(config.block_kinds), description.loops, description.budget_ratio
    passes = fmean(count.passes(layer.block, layer.loops) for layer in config.layers)
    looped = _times(k) if isinstance(k, int) else f"K = {by_layer(k)}"
    has_deep, has_wide, in_total = kinds != {"wide"}, kinds != {"loop"}, _in_total(description)
    sparse = any(own.n_experts for own in config.layers)
    mixed = " (mean of layers)" if len(set(config.layers)) > 1 else ""
    spent = "linear + attention" if in_total else "linear total"
    mean = ", mean of steps" if description.step_loops else ""
    lines: list[tuple[bool, str, Any]] = [
        (has_deep, "d_ffn, deep path", description.width("d_ffn")),
        (has_deep, "  effective width", description.effective("d_ffn")),
        (has_wide, "d_ffn_wide, wide path", description.width("d_ffn_wide")),
        (has_wide, "  effective width", description.effective("d_ffn_wide")),
        (sparse, f"  experts, {config.top_k} active", config.n_experts),
        (sparse, "  width of an expert", _one_or_all([own.expert_width for own in config.layers])),
        (in_total, "multiple of widths, ffn_multiple_of", config.ffn_multiple_of),
        (True, "parameters", count.parameters(config)),
        (sparse, "  active for a token", count.active_parameters(config)),
        (True, "  outside embedding and head", count.parameters_non_embedding(config)),
        (True, f"FLOPs per token and layer{mixed}", None),
        (has_deep, f"  deep path, {looped}", layer["deep"]),
        (has_wide, "  wide path", layer["wide"]),
        ("dual" in kinds, "  gate", layer["gate"]),
        (True, "  linear total", layer["linear_total"]),
        (has_deep, "  router", layer["router"]),
        (True, f"  attention scores, {_times(passes)}", layer["attention_scores"]),
        (True, "  total", layer["total"]),
        (ratio is not None, f"ratio to the budget, {spent}", ratio and f"{ratio:.4f}"),
        (True, f"training FLOPs per token{mean}", description.training_flops),
        (_shows_hours(description), "training hours", _hours(description.hours)),
    ]
    return [(label, number) for shown, label, number in lines if shown]


def _one_or_all(values: list[int]) -> int | list[int]:
    return values[0] if len(set(values)) == 1 else values


def _in_total(description: Description) -> bool:
    """Whether widths were solved, in each reading's own multiple, for equal sums with attention."""
    return description.target is not None and description.target.match == "total"


def _times(n: float) -> str:
    return f"{n:g} pass" if n == 1 else f"{n:g} passes"


def _heading(description: Description) -> str:
    return (description.reading or "recipe").replace("_", " ")


def _number(value: float | list[int | None]) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else by_layer(value)


def _hours(hours: float) -> str:
    if hours < 0.01:
        return "< 0.01"
    return f"{hours:.2f}" if hours < 10 else f"{hours:,.1f}"


def _shows_hours(description: Description) -> bool:
    # the paper's GPUs are a fair assumption for a budget like the paper's, not for any recipe
    return description.hardware.asked or bool(description.solved)


def _training(hardware: Hardware) -> str:
    gpus = (
        "1 GPU that sustains" if hardware.gpus == 1 else f"{hardware.gpus} GPUs that each sustain"
    )
    line = (
        f"Training: {hardware.tokens:,} tokens on {gpus} {hardware.tflops:g} TFLOP/s, at three "
        "forward passes a token, head included."
    )
    return line if hardware.asked else f"{line} {ASSUMED}"


def _clamp_notes(description: Description) -> list[str]:
    whose = f"{_heading(description)}, " if _in_total(description) else ""
    above, notes = f"{whose}above its share".capitalize(), []
    for target, widths in description.solved:
        exact = dict(zip(("d_ffn", "d_ffn_wide"), target.exact_widths(), strict=True))
        notes += [
            f"{above}: {name} is raised to {target.multiple_of}, "
            f"the smallest multiple, as the exact effective width is {float(exact[name] or 0):.1f}."
            for name in widths.clamped
        ]
    return notes


def _distance_notes(description: Description) -> list[str]:
    ratio = description.budget_ratio
    if not _in_total(description) or ratio is None or abs(ratio - 1) <= TOLERANCE:
        return []
    return [
        f"{_heading(description)}: in multiples of {description.config.ffn_multiple_of} the "
        f"matched sum is not met to within {float(100 * TOLERANCE):g} %.".capitalize()
    ]


def what_differs(written: Description, trained: Description) -> str:
    """One sentence: the changes by the reading, and their cost in FLOPs and parameters."""
    causes = []
    multiples = (written.config.ffn_multiple_of, trained.config.ffn_multiple_of)
    if multiples[0] != multiples[1]:
        changes = [
            f"{name} {by_layer(before)} to {by_layer(after)}"
            for name, before, after in (
                ("deep", written.effective("d_ffn"), trained.effective("d_ffn")),
                ("wide", written.effective("d_ffn_wide"), trained.effective("d_ffn_wide")),
            )
            if before is not None and after is not None and before != after
        ]
        effect = f" ({', '.join(changes)})" if changes else " (no change here)"
        how = (
            "widths are solved in multiples of"
            if _in_total(trained)
            else "effective widths round up to"
        )
        causes.append(f"{how} {multiples[1]} instead of {multiples[0]}{effect}")
    if written.config.tie_embeddings != trained.config.tie_embeddings:
        head = count.parameters_by_part(trained.config)["head"]
        causes.append(f"the head has its own matrix ({head / 1e6:.1f}M)")
    routed = " and the router's step index differ" if trained.config.routes_steps else " differs"
    more_flops = trained.layer["linear_total"] / written.layer["linear_total"] - 1
    more_params = count.parameters(trained.config) - count.parameters(written.config)
    flops, params = _more(100 * more_flops, ".2f", " %"), _more(more_params / 1e6, ".1f", "M")
    return (
        f"What differs: as trained, {' and '.join(causes)}: {flops} linear FLOPs and {params} "
        f"parameters than as written; the order of RoPE and QK-norm{routed} too, at no cost."
    )


def _more(change: float, form: str, unit: str) -> str:
    if change == 0:
        return "no more"
    return f"{abs(change):{form}}{unit} {'fewer' if change < 0 else 'more'}"


def configurations_text(groups: Groups, width: int | None) -> str:
    """Many solved configurations, a row each; every group holds one configuration's readings.

    Under match total each reading has its own widths, and so its own table.
    """
    target = groups[0][0].target
    assert target is not None
    lines = [f"budget {format_size(target.budget)} linear FLOPs per token and layer"]
    notes = [
        "total: linear FLOPs, router and attention scores per token and layer, "
        f"{groups[0][0].seq_len} tokens a sequence"
    ]
    if target.match == "total":
        lines.append(
            f"linear + attention scores matched to {target.matched_budget:,} "
            f"(budget + {target.reference_passes} passes)"
        )
        notes.append("multiple: of both widths and of their effective ones, model.ffn_multiple_of")
        for reading in zip(*groups, strict=True):
            lines += ["", *aligned(_table_in_total(reading), width)]
    else:
        lines += _readings(_table_of_all, groups, width)
    if any(d.clamped for group in groups for d in group):
        notes.append("*: raised to the smallest multiple, above its share of the budget")
    return "\n".join([*lines, "", *(part for note in notes for part in wrapped([note], width)[1:])])


def _readings(table_of: Callable[[Groups], Table], groups: Groups, width: int | None) -> list[str]:
    """Both readings side by side; below each other where a terminal has no room for that."""
    tables = [table_of(groups)]
    if not fits(tables[0], width):
        tables = [table_of([[d] for d in part]) for part in zip(*groups, strict=True)]
    return [line for table in tables for line in ("", *aligned(table, width))]


def _table_of_all(groups: Groups) -> Table:
    """The solved widths, which both readings share, then parameters and FLOPs under each."""
    columns = [Column("\nconfiguration"), *_width_columns("\n")]
    for description in groups[0]:
        columns += _spending_columns("\n", "linear/budget", _heading(description))
    rows = [[_label(g[0]), *_widths(g[0]), *chain(*map(_spending, g))] for g in groups]
    return Table(columns, rows)


def _table_in_total(descriptions: Sequence[Description]) -> Table:
    """All configurations under one reading, each in the multiple that its widths needed."""
    columns = [Column(_heading(descriptions[0])), *_width_columns(), Column("multiple", "d")]
    rows = [[_label(d), *_widths(d), d.config.ffn_multiple_of, *_spending(d)] for d in descriptions]
    return Table([*columns, *_spending_columns("", "spent/matched")], rows)


def _width_columns(above: str = "") -> list[Column]:
    return [Column(f"{above}{name}", "", importance=4) for name in ("d_ffn", "d_ffn_wide")]


def _spending_columns(above: str, ratio: str, reading: str = "") -> list[Column]:
    """Columns of one reading, whose name stands above the middle one."""

    def label(name: str) -> str:
        return f"{name} {reading}".strip()

    heading = f"{reading}\n{ratio}" if reading else ratio
    return [
        Column(f"{above}params", _millions, importance=2, label=label("params")),
        Column(heading, ".4f", importance=3, label=label(ratio)),
        Column(f"{above}total", _millions, label=label("total")),
    ]


def _spending(description: Description) -> tuple[int, float | None, float]:
    parameters = count.parameters(description.config)
    return parameters, description.budget_ratio, description.layer["total"]


def _millions(value: float) -> str:
    return f"{value / 1e6:.1f}M"


def _widths(description: Description) -> list[str]:
    """Both configured widths, with a star where one was raised and a dash where there is none."""
    return [
        f"{description.width(name) or '-'}{'*' if name in description.clamped else ''}"
        for name in ("d_ffn", "d_ffn_wide")
    ]


def _label(description: Description) -> str:
    target = description.target
    assert target is not None
    share = f" a{target.alpha:g}" if target.block == "dual" else ""
    return target.block + share + (f" K{target.loops}" if target.block != "wide" else "")
