"""Suites: which interventions a study scores beside the learned router, by name; torch-free."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from dualpath_cli import intervention
from dualpath_cli.config import ModelConfig
from dualpath_cli.intervention import SHUFFLED, Intervention
from dualpath_cli.study.classes import RANDOM, ForcedClass

THRESHOLDS = (0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.001)
"""Remaining mass at which a token halts."""
SKIPS = (0.5, 0.4, 0.3, 0.2, 0.1, 0.05)
"""Gates below which a token leaves a path out."""
GATES = {
    (1.0, 0.0): "deep only",
    (0.0, 1.0): "wide only",
    (0.5, 0.5): "uniform",
    (1.0, 1.0): "fully open",
}
"""Constant (g_d, g_w), and what the paper calls them (table `ablations`)."""

SHORTER = ("halting", "skip")
"""Suites whose rows leave steps or paths out."""
BASELINE = "baseline"
"""The suite of the learned router, with which every row is compared."""


@dataclass(frozen=True)
class Row:
    """An intervention, and what decides which tokens it is about."""

    suite: str
    intervention: Intervention
    token_class: ForcedClass | None = None
    """The class that is overridden, or that random tokens stand against."""
    random_seed: int | None = None
    """Seed of the random tokens; None where it is the class itself."""


@dataclass(frozen=True)
class Selection:
    """The interventions that are scored beside the learned router."""

    suites: tuple[str, ...]
    """Keys of `SUITES`."""
    loops: tuple[int, ...]
    """Forced loop counts of the suites `paper` and `layers`."""
    shuffles: int
    """Seeds of the shuffled gates, and of the random experts, from 0 on, a row each."""
    controls: int
    """Seeds of the random tokens that a class stands against; their mean counts."""
    classes: tuple[ForcedClass, ...]

    def rows(self, config: ModelConfig) -> list[Row]:
        """Returns the rows of all suites asked for, the learned router first."""
        chosen = [rows(self, config) for name, rows in SUITES.items() if name in self.suites]
        return [Row(BASELINE, Intervention()), *chain.from_iterable(chosen)]

    def overrides(self) -> list[Intervention]:
        """Returns those of the paper's table `ablations`: loops, constant and shuffled gates."""
        return [
            *(Intervention(loops=count) for count in self.loops),
            *(Intervention(gates=gates) for gates in GATES),
            *(Intervention(gates=SHUFFLED, seed=seed) for seed in range(self.shuffles)),
        ]


def token_class_rows(selection: Selection, config: ModelConfig) -> list[Row]:
    """Returns each class under its override, and random tokens in its place, a row a seed."""
    rows = []
    for forced in selection.classes:
        tokens: list[tuple[str, int | None]] = [(forced.name, None)]
        tokens += [
            (f"{RANDOM}{forced.name}" + (f":{seed}" if seed else ""), seed)
            for seed in range(selection.controls)
        ]
        rows += [
            Row("token-classes", Intervention(gates=forced.gates, tokens=name), forced, seed)
            for name, seed in tokens
        ]
    return rows


def layer_rows(selection: Selection, config: ModelConfig) -> list[Row]:
    """Returns each override in one layer at a time, but for the trained loops: they change nothing.

    What a layer has no path or gate for is left out, unless that is so of the whole model.
    """
    return [
        Row("layers", in_layer)
        for whole in selection.overrides()
        for n, layer in enumerate(config.layers)
        if whole.loops != layer.loops
        for in_layer in [replace(whole, layers=(n,))]
        if in_layer.problem(config) is None or whole.problem(config) is not None
    ]


def expert_rows(selection: Selection, config: ModelConfig) -> list[Row]:
    """Returns fewer and up to twice as many of the best experts, and random ones, a row a seed."""
    most = min((layer.n_experts for layer in config.layers if layer.n_experts), default=0)
    counts = [k for k in range(1, min(2 * config.top_k, most) + 1) if k != config.top_k]
    return [
        *(Row("experts", Intervention(experts=count)) for count in counts),
        *(
            Row("experts", Intervention(experts=intervention.RANDOM, seed=n))
            for n in range(selection.shuffles)
        ),
    ]


SUITES: Mapping[str, Callable[[Selection, ModelConfig], list[Row]]] = {
    "paper": lambda selection, config: [Row("paper", row) for row in selection.overrides()],
    "token-classes": token_class_rows,
    "layers": layer_rows,
    "experts": expert_rows,
    "halting": lambda selection, config: [
        Row("halting", Intervention(halting=mass)) for mass in THRESHOLDS
    ],
    "skip": lambda selection, config: [Row("skip", Intervention(skip=gate)) for gate in SKIPS],
    "kv-slots": lambda selection, config: [
        Row("kv-slots", Intervention(kv_slots=count)) for count in range(1, config.most_loops)
    ],
}
"""The rows of each suite, by its name; `Ablate` says what they are."""


def applicable(rows: Iterable[Row], config: ModelConfig) -> tuple[list[Row], dict[str, str]]:
    """Splits into rows that make sense for a model, and the names and reasons of the others."""
    chosen, skipped = [], {}
    for row in rows:
        problem = row.intervention.problem(config)
        if problem is None:
            chosen.append(row)
        else:
            skipped[row.intervention.name] = problem
    return chosen, skipped
