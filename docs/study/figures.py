"""Draws the figures of both studies beside this file: python docs/study/figures.py"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from grid import Grid, grid_of, looped, loops_by_layer, score, without_rate
from kept import read_group, read_runs
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from restore import STUDY
from unpaired import MIX, arm_of, arms_of, contrasts_of

from dualpath_cli.compare.configurations import Group
from dualpath_cli.compare.differences import Difference
from dualpath_cli.compare.quality import quality
from dualpath_cli.compare.runs import AGGREGATE, TrainedRun
from dualpath_cli.files.atomic import replacing
from dualpath_cli.files.csv_text import read_csv
from dualpath_cli.flops.count import training_flops_per_token
from dualpath_cli.output.colors import FAMILY_COLORS, MUTED, SOURCES
from dualpath_cli.output.figures import panels, plain

CONTROLS = ["wide", "loop_k4"]
MATCHED = {"width 32, linear FLOPs": "narrow", "width 64, linear FLOPs": "paper_rate"}
TOTAL = {"width 32, total FLOPs": "narrow_total"}
ALL_TESTS = {"paper_rate"}
"""Corrected for the tests of single sets as well; of others, means were declared primary before."""
CHOICES = {
    "gates, combinations": (
        ["narrow", "narrow_gates", "narrow_combinations"],
        ["a50_k4-gate_convex", "a50_k4-gate_softmax", "a50_k4-gate_fixed",
         "a50_k4-combination_final", "a50_k4-combination_mean"],
    ),
    "loops, layers": (
        ["narrow", "narrow_k1", "narrow_expanded"], ["wide", "a50_k1", "expanded_k4"],
    ),
    "K drawn in training": (
        ["narrow", "narrow_sampled"], ["a50_k4-train_loops_1+2+4+8"],
    ),
}  # fmt: skip
"""Of width 32: folders, and what is tested in them, each panel corrected for its own tests."""
FORCED = {"K = 4 in training": "narrow-a50_k4", "K drawn from 1, 2, 4, 8": "narrow_sampled-a50_k4"}

RATES = ["declared_rates", "declared_rates_k1", "declared_rates_final"]
ARMS = {
    "wide": ("PureWide", FAMILY_COLORS["wide"], "-", "o"),
    "loop_k4": ("PureLoop, K = 4", FAMILY_COLORS["loop"], "-", "o"),
    "a50_k4": ("dual, K = 4", FAMILY_COLORS["dual"], "-", "o"),
    "a50_k4-combination_final": ("dual, K = 4, last loop", FAMILY_COLORS["dual"], ":", "^"),
    "a50_k1": ("dual, K = 1", FAMILY_COLORS["dual"], "--", "x"),
}
"""How the arms of the declared study are drawn: name, colour, line of means, mark of a seed."""
LOOPS = ["declared_loops_0.049", "declared_loops_0.098", "declared_loops_0.196"]
HELD = {
    "a50_k4": ("nothing held", FAMILY_COLORS["dual"], "-", "o"),
    "a50_k4, gains held": ("gains held", SOURCES[0], "--", "x"),
    "a50_k4, router held": ("router held", SOURCES[1], "-", "^"),
    "a50_k4, router held, gains held": ("both held", SOURCES[2], "--", "s"),
}
"""Whose rate stays at 0.0067 where that of all others rises, and how its runs are drawn."""
TABLES = {
    "width 32, tested": ["declared_32", "declared_32_k1"],
    "width 48, described": ["declared_48", "declared_48_k1"],
}
EQUAL = {
    "linear": ["wide", "loop_k4", "a50_k1", "a50_k4"],
    "total": ["wide_total", "loop_k4_total", "a50_k4"],
}
"""The arms of equal FLOPs, which have one variance; the last is compared with the others."""
APART = {"loop_k4_total": 0.988, "wide_total": 1.012}
"""Those of equal total FLOPs are drawn beside each other: times their FLOPs."""
MATTERS = -0.014
"""The lead that docs/study/declared.md calls one that matters."""


def main() -> None:
    matched = {title: compared([name], CONTROLS) for title, name in (MATCHED | TOTAL).items()}
    write("quality", quality([matched[title][0] for title in MATCHED]))
    write("controls", differences(matched, CONTROLS))
    chosen = {title: compared(folders, ["a50_k4"], s) for title, (folders, s) in CHOICES.items()}
    write("choices", differences(chosen, ["a50_k4"]))
    write("forced", forced_loops())
    write("rates", over_rates())
    write("loops", over_held())
    write("compute", over_compute())


def compared(
    folders: Sequence[str], names: Sequence[str], shown: Sequence[str] | None = None
) -> tuple[Group, list[Difference]]:
    primary = ALL_TESTS.isdisjoint(folders)
    group, rows = read_group(folders, names, primary=primary, shown=shown)
    return group, [row for row in rows if row.measure == AGGREGATE]


def write(name: str, figure: Figure) -> None:
    with replacing(STUDY / f"{name}.png") as partial:
        figure.savefig(partial, format="png", dpi=120)


def differences(tested: dict[str, tuple[Group, list[Difference]]], names: Sequence[str]) -> Figure:
    """Difference and 95 % interval: a row of panels for each group, a column for each baseline."""
    lines = [len({row.configuration for row in rows}) + 2 for _, rows in tested.values()]
    figure, axes = panels(4.6 * len(names), 0.28 * sum(lines), len(tested), len(names),
                          sharex=True, height_ratios=lines)  # fmt: skip
    for (title, (group, rows)), line in zip(tested.items(), axes, strict=True):
        for name, ax in zip(names, line, strict=True):
            interval_plot(ax, group, rows, name)
            ax.set_title(f"{title}, minus {name}", fontsize=9)
    for ax in axes[-1]:
        ax.set_xlabel("bits per byte, mean of six sets")
    return figure


def interval_plot(ax: Axes, group: Group, rows: Sequence[Difference], name: str) -> None:
    """A line for each configuration, in the order of the tables; filled after Holm's correction."""
    found = {row.configuration: row for row in rows if row.baseline == name}
    shown = [c for c in group.configurations if c.name in found]
    for place, c in enumerate(shown):
        row, color = found[c.name], FAMILY_COLORS[c.family]
        ax.errorbar(
            row.difference, place, xerr=[[row.difference - row.low], [row.high - row.difference]],
            marker="o", markersize=6, color=color, capsize=3,
            markerfacecolor=color if row.p_holm < 0.05 else "white",
        )  # fmt: skip
    ax.axvline(0, color=MUTED, linewidth=1)
    ax.set_yticks(range(len(shown)), [c.name for c in shown], fontsize=8)
    ax.set_ylim(len(shown) - 0.4, -0.6)
    plain(ax)


def forced_loops() -> Figure:
    """What forced numbers of loops cost: mean over seeds, band from the least to the most."""
    figure, axes = panels(4.4 * len(FORCED), 3.6, 1, len(FORCED), sharey=True)
    for (title, model), ax in zip(FORCED.items(), axes[0], strict=True):
        curves = loop_costs(model)
        for color, source in zip(SOURCES, curves[0], strict=False):
            loops = sorted(curves[0][source])
            values = [[curve[source][k] for curve in curves] for k in loops]
            ax.plot(loops, list(map(fmean, values)), color=color, label=source, linewidth=1.2)
            ax.fill_between(loops, list(map(min, values)), list(map(max, values)), color=color,
                            alpha=0.15, linewidth=0)  # fmt: skip
        ax.axhline(0, color=MUTED, linewidth=1)
        ax.set_title(f"{title}, {len(curves)} seeds", fontsize=9)
        ax.set_xlabel("loops, forced")
        plain(ax)
    axes[0][0].set_ylabel("nats a token, minus those of K = 4")
    axes[0][0].legend(frameon=False, fontsize=8)
    return figure


def over_rates() -> Figure:
    """Loss and expected loops over the peak learning rate: a line through means, a mark a seed."""
    figure, axes = panels(9.2, 3.6, 1, 2, sharex=True)
    runs, of_loops = read_runs(RATES), looped(RATES[:1])  # others expect one or all
    by_rate(axes[0][0], grid_of(runs, map(score, runs)), ARMS)
    by_rate(axes[0][1], grid_of(of_loops, [run.expected_loops for run in of_loops]), ARMS)
    axes[0][0].set_ylabel("bits per byte, mean of four sets")
    axes[0][1].set_ylabel("expected loops, mean over layers")
    axes[0][0].legend(frameon=False, fontsize=8, loc="upper right")
    return figure


def by_rate(ax: Axes, grid: Grid, arms: Mapping[str, tuple[str, str, str, str]]) -> None:
    for arm, (label, color, style, mark) in arms.items():
        if cells := grid.get(arm):
            rates = sorted(cells)
            means = [fmean(cells[rate].values()) for rate in rates]
            ax.plot(rates, means, style, color=color, label=label)
            for rate in rates:
                seeds = list(cells[rate].values())
                ax.plot([rate] * len(seeds), seeds, mark, color=color, markersize=3.5)
    ticks = sorted({rate for cells in grid.values() for rate in cells})
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [f"{rate:g}" for rate in ticks], minor=False)
    ax.set_xlabel("peak learning rate")
    plain(ax)


def over_held() -> Figure:
    """Expected loops where rates are held: over the peak rate, and of the layers of all runs."""
    figure, axes = panels(9.2, 3.6, 1, 2)
    runs = looped(LOOPS)
    by_rate(axes[0][0], grid_of(runs, [run.expected_loops for run in runs]), HELD)
    by_layer(axes[0][1], runs)
    axes[0][0].set_ylabel("expected loops, mean over layers")
    axes[0][1].set_ylabel("expected loops of a layer")
    axes[0][1].legend(frameon=False, fontsize=8)
    return figure


def by_layer(ax: Axes, runs: Sequence[TrainedRun]) -> None:
    """The layers of all runs after the last step, those with the fewest expected loops first."""
    layers: dict[str, list[float]] = {}
    for run in runs:
        layers.setdefault(without_rate(arm_of(run)), []).extend(loops_by_layer(run))
    for arm, (label, color, style, mark) in HELD.items():
        ax.plot(range(1, len(layers[arm]) + 1), sorted(layers[arm]), style, marker=mark,
                color=color, markersize=3.5, label=label)  # fmt: skip
    ax.set_xlabel("layers of all rates and seeds, in order")
    plain(ax)


def over_compute() -> Figure:
    """Scores over all FLOPs of training; how far the dual model's are from those of each arm."""
    figure, axes = panels(9.6, 3.8 * len(TABLES), len(TABLES), 2, width_ratios=[1.2, 1])
    for right in axes[1:, 1]:
        right.sharex(axes[0][1])
    for (title, folders), (left, right) in zip(TABLES.items(), axes, strict=True):
        runs = read_runs(folders)
        by_compute(left, runs)
        leads(right, runs)
        left.set_title(title, fontsize=9)
    return figure


def by_compute(ax: Axes, runs: Sequence[TrainedRun]) -> None:
    """A mark for each seed, a line through the means of an arm's two budgets."""
    scores = arms_of(runs, MIX)
    flops = {}
    for run in runs:
        drawn = APART.get(arm_of(run), 1) * run.tokens / 1e12
        flops[arm_of(run)] = drawn * training_flops_per_token(run.settings.model)
    for arm in EQUAL["linear"]:
        label, color, style, mark = ARMS[arm]
        budgets = [name for name in (arm, f"{arm}_total") if name in scores]
        ax.plot([flops[name] for name in budgets], [fmean(scores[name]) for name in budgets],
                style, color=color, marker="_", markersize=16, label=label)  # fmt: skip
        for name in budgets:
            ax.plot([flops[name]] * len(scores[name]), scores[name], mark, color=color,
                    markersize=3.5, alpha=0.7)  # fmt: skip
    ax.set_xlabel("FLOPs of training in all, $10^{12}$")
    ax.set_ylabel("bits per byte, mean of four sets")
    ax.legend(frameon=False, fontsize=8)
    plain(ax)


def leads(ax: Axes, runs: Sequence[TrainedRun]) -> None:
    """Differences to dual with K = 4 and their 95 % intervals, not corrected."""
    labels = []
    for equal, (*others, dual) in EQUAL.items():
        arms = arms_of([run for run in runs if arm_of(run) in (*others, dual)], MIX)
        pairs = [(dual, other) for other in others]
        for (_, other), one, spread in zip(
            pairs, *contrasts_of([arms], [equal], pairs), strict=True
        ):
            label, color, *_ = ARMS[other.removesuffix("_total")]
            ax.errorbar(one.value, len(labels), xerr=spread.reach, marker="o", color=color,
                        capsize=3)  # fmt: skip
            labels.append(f"{label},\nequal {equal} FLOPs")
    ax.axvline(0, color=MUTED, linewidth=1)
    ax.axvline(MATTERS, color=MUTED, linewidth=1, linestyle=":")
    ax.set_yticks(range(len(labels)), labels, fontsize=8)
    ax.set_ylim(len(labels) - 0.4, -0.6)
    ax.set_xlabel("dual, K = 4, minus it: bits per byte")
    plain(ax)


def loop_costs(model: str) -> list[dict[str, dict[int, float]]]:
    """Nats per token minus those with `model.loops`, by seed, source and number of loops."""
    costs: dict[str, dict[str, dict[int, float]]] = {}
    for row in read_csv(STUDY / "ablations.csv"):
        if f"{row['sweep']}-{row['run']}" == model and row["intervention"].startswith("K="):
            loops = int(row["intervention"].removeprefix("K="))
            of_seed = costs.setdefault(row["seed"], {}).setdefault(row["source"], {})
            of_seed[loops] = float(row["difference"])
    return list(costs.values())


if __name__ == "__main__":
    main()
