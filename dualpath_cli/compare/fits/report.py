"""The scaling laws of a comparison as tables, CSV records and a figure of profiles."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dualpath_cli.base.errors import UserError
from dualpath_cli.compare.configurations import Group
from dualpath_cli.compare.fits.families import (
    CountedParameters,
    families_of,
)
from dualpath_cli.compare.fits.fits import (
    NextRun,
    Rollout,
    ScalingFit,
    fit_family,
    profile,
)
from dualpath_cli.compare.fits.law import HIGHEST, LOWEST, NAMES
from dualpath_cli.compare.fits.multipliers import Multiplier, multipliers_of
from dualpath_cli.report.bootstrap import Floats
from dualpath_cli.report.figures import FAMILY_COLORS, MUTED, panels, plain
from dualpath_cli.report.table import Column, Table, interval, without_nan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

UNITS = {
    "E": "bits per byte",
    "A": "bits per byte · (10⁶ parameters)^a",
    "a": "",
    "B": "bits per byte · (10⁹ tokens)^b",
    "b": "",
    "phi": "",
}
"""The values in the order of tables, with their units."""
COUNTED = {
    "all": "N: all parameters",
    "non_embedding": "N: parameters without embedding and head",
}
PROFILED = ("a", "b", "phi")
POINTS = 41  # of a profile
MARGIN = 0.5  # of an interval's width, to each side of a profile
WIDEST = 0.3  # half the width of a profile without an interval


@dataclass(frozen=True)
class ScalingLaws:
    """The laws of all families that have one."""

    counted: CountedParameters
    fits: Sequence[ScalingFit]
    multipliers: Sequence[Multiplier]
    notes: Sequence[str]  # a line for each family without a law, and each next run

    @classmethod
    def of(cls, groups: Sequence[Group], counted: CountedParameters) -> "ScalingLaws":
        """Raises UserError if no family has a law."""
        fits = []
        notes = []
        for family in families_of(groups, counted):
            found = fit_family(family)
            if isinstance(found, ScalingFit):
                fits.append(found)
                notes += _notes_of(found)
            else:
                notes.append(f"no law for {family.name}: {found}")

        if not fits:
            raise UserError(_no_law(notes))
        return cls(counted, fits, multipliers_of(fits), notes)

    def tables(self) -> list[Table]:
        tables = [_table_of_values(self), _table_of_runs(self.fits)]
        if self.multipliers:
            tables.append(_table_of_multipliers(self.multipliers))
        return tables

    def records(self) -> list[dict[str, Any]]:
        """A row a family, with all digits."""
        return [_record(fit, self.counted) for fit in self.fits]

    def records_of_multipliers(self) -> list[dict[str, Any]]:
        return [without_nan(asdict(row)) for row in self.multipliers]

    def draw(self) -> "Figure":
        """The profile of each exponent of each family."""
        figure, axes = panels(
            3.2 * len(PROFILED), 2.6 * len(self.fits), len(self.fits), 3
        )
        for row, fit in zip(axes, self.fits, strict=True):
            for ax, name in zip(row, PROFILED, strict=True):
                if name in fit.family.fitted:
                    _draw_profile(ax, fit, name)
                else:
                    ax.set_axis_off()
        return figure


CAPTION = (
    "Profiles of scaling laws: the lowest loss of a fit with the exponent fixed, "
    "over that of the fit. Band: 95 % interval over seeds. If a profile is flat, the "
    "runs do not determine the exponent."
)


def _no_law(notes: Sequence[str]) -> str:
    if not notes:
        return "--fit: the best learning rate of every configuration is at an edge"
    first, *others = notes
    more = len(others)
    if more:
        first += f" (nor for {more} more {'family' if more == 1 else 'families'})"
    return f"--fit: {first}"


def _notes_of(fit: ScalingFit) -> list[str]:
    name = fit.family.name
    notes = []
    if not len(fit.resampled):
        single = sum(len(c.seeds) == 1 for c in fit.family.configurations)
        notes.append(
            f"the law of {name} has no intervals: configurations with one seed, "
            f"{single} of {len(fit.family.configurations)}"
        )
    times = fit.family.cells.times.max()
    if times > 1 and "phi" not in fit.family.fitted:
        notes.append(
            f"the law of {name} has no phi, and counts each parameter once: its "
            f"configurations all apply the same share of them {times:.0f} times"
        )
    if isinstance(fit.rollout, str):
        notes.append(f"the law of {name} has no rollout: {fit.rollout}")
    if fit.next_run is not None:
        notes.append(f"next run of {name}: {_next_words(fit.next_run)}")
    return notes


def _next_words(run: NextRun) -> str:
    # Each budget may have a model of this name.
    model = f"{run.like.name} ({run.like.parameters / 1e6:.3g}M parameters)"
    what = f"another seed of {model}" if run.repeats else f"the model of {model}"
    return (
        f"{what} on {run.tokens:,} tokens would narrow phi most, by {run.narrower:.1%}"
    )


def _table_of_values(laws: ScalingLaws) -> Table:
    columns = [
        Column("family"),
        Column("value"),
        Column("fit", "#.4g"),
        Column("95 % interval", interval("#.3g")),
        Column("unit"),
    ]
    rows: list[Sequence[Any]] = []
    for fit in laws.fits:
        if rows:
            rows.append([])
        for name, unit in UNITS.items():
            if name in fit.family.fitted:
                value = float(fit.values[NAMES.index(name)])
                rows.append([fit.family.name, name, value, fit.interval(name), unit])

    looped = any("phi" in fit.family.fitted for fit in laws.fits)
    law = (
        "E + A / M^a + B / D^b, M = Σ t^phi N_t" if looped else "E + A / N^a + B / D^b"
    )
    caption = [f"bits per byte = {law}", "D: training tokens", COUNTED[laws.counted]]
    if looped:
        caption.append("N_t: those that a pass applies t times")
    caption.append(
        "Huber loss of 1e-3 on the log, by variable projection; intervals over seeds, "
        "not over laws of another form"
    )
    return Table(columns, rows, "scaling laws", "; ".join(caption))


def _table_of_runs(fits: Sequence[ScalingFit]) -> Table:
    columns = [
        Column("family"),
        Column("configurations", "d"),
        Column("runs", "d"),
        Column("times applied", _times_words),
        Column("M params", interval(".3g")),
        Column("M tokens", interval(".3g")),
        Column("training FLOPs", interval(".2g")),
        Column("RMS error", ".2%"),
        Column("rollout", _rollout_words),
    ]
    rows = [_row_of_runs(fit) for fit in fits]
    caption = (
        "times applied: of the parameter that a pass repeats most; RMS error: of the "
        "log of fitted / measured; rollout: a law fitted to runs below half of the "
        "largest FLOPs, its predicted minus measured bits per byte on the others, mean "
        "and largest (without sign)"
    )
    return Table(columns, rows, "scaling laws: runs and errors", caption)


def _row_of_runs(fit: ScalingFit) -> list[Any]:
    family = fit.family
    times = sorted(set(family.cells.most_times))
    sizes_C = family.cells.sizes.sum(1)
    tokens_C = 1e3 * family.cells.tokens
    return [
        family.name,
        len(family.configurations),
        family.runs,
        tuple(times),
        _ends(sizes_C),
        _ends(tokens_C),
        _ends(family.flops),
        fit.off,
        (fit.rollout.error, fit.rollout.largest)
        if isinstance(fit.rollout, Rollout)
        else None,
    ]


def _ends(numbers: Floats) -> tuple[float, float]:
    return float(numbers.min()), float(numbers.max())


def _times_words(times: tuple[int, ...]) -> str:
    return ", ".join(map(str, times))


def _rollout_words(errors: tuple[float, float]) -> str:
    mean, largest = errors
    return f"{mean:+.4f}, {largest:.4f}"


def _table_of_multipliers(rows: Sequence[Multiplier]) -> Table:
    columns = [
        Column("models"),
        Column("budget", ".2g"),
        Column("budget\n/ largest", "g"),
        Column("multiplier", _multiplier_words),
        Column("95 % interval", lambda ends: " to ".join(map(_multiplier_words, ends))),
    ]
    shown = [
        [row.variant, row.budget, row.ahead, row.value, (row.low, row.high)]
        for row in rows
    ]
    caption = (
        f"multiplier: training FLOPs that {rows[0].over} needs for the same loss, "
        "divided by those that the models need, each at its law's optimal N and D; "
        "budget: training FLOPs, proportional to N per token"
    )
    return Table(columns, shown, f"compute multipliers over {rows[0].over}", caption)


def _multiplier_words(value: float) -> str:
    if value == 0:
        return "< 0.001"
    return f"{value:.2f}" if value < np.inf else "> 1000"


def _record(fit: ScalingFit, counted: CountedParameters) -> dict[str, Any]:
    family = fit.family
    record: dict[str, Any] = {
        "family": family.name,
        "parameters": counted,
        "configurations": len(family.configurations),
        "runs": family.runs,
    }
    for name in UNITS:
        fitted = name in family.fitted
        value = float(fit.values[NAMES.index(name)])
        low, high = fit.interval(name)
        record[name] = value if fitted else None
        record[f"{name}_low"] = low if fitted else None
        record[f"{name}_high"] = high if fitted else None

    record["off"] = fit.off
    rollout = fit.rollout if isinstance(fit.rollout, Rollout) else None
    record["rollout_error"] = rollout and rollout.error
    record["rollout_largest"] = rollout and rollout.largest
    record["rollout_beyond"] = rollout and rollout.beyond
    return without_nan(record)


def _draw_profile(ax: "Axes", fit: ScalingFit, name: str) -> None:
    place = NAMES.index(name)
    best = float(fit.values[place])
    low, high = fit.interval(name)
    if low != low:  # without resamples
        low, high = best - WIDEST, best + WIDEST
    else:
        ax.axvspan(low, high, color=MUTED, alpha=0.12, linewidth=0)

    room = MARGIN * (high - low)
    first = max(low - room, float(LOWEST[place]))
    last = min(high + room, float(HIGHEST[place]))
    held_Q = np.unique([*np.linspace(first, last, POINTS), best])
    color = FAMILY_COLORS[fit.family.configurations[-1].family]
    ax.plot(held_Q, profile(fit, name, held_Q), color=color, linewidth=1.2)
    ax.axvline(best, color=MUTED, linewidth=0.8)
    ax.set_title(fit.family.name, loc="left", fontsize=9)
    ax.set_xlabel(name)
    ax.set_ylabel("loss / lowest loss")
    plain(ax)
