"""The options of `dualpath ablate`, and its suites of interventions; imports nothing slow."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.base.ranges import Place, check_ranges
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.spec import intervention
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import SHUFFLED, Intervention
from dualpath_cli.study.options import Texts
from dualpath_cli.study.parts_of_speech import (
    PATHS,
    RANDOM,
    TAGGER,
    UPOS,
    ForcedClass,
    check_pipeline,
    measured,
)

MOST_LOOPS = 100
GATES = {(1.0, 0.0): "deep only", (0.0, 1.0): "wide only", (0.5, 0.5): "uniform",
         (1.0, 1.0): "fully open"}  # fmt: skip
"""Constant (g_d, g_w), and what the paper calls them (table `ablations`)."""

REPORT = "ablations.json"
"""The file of a folder of results that holds all of them."""
SHORTER = ("halting", "skip")
"""Suites whose rows leave steps or paths out."""
BASELINE = "baseline"
"""The suite of the learned router, with which every row is compared."""


@dataclass(frozen=True)
class Row:
    """An intervention, and what decides which tokens it is about."""

    suite: str
    intervention: Intervention
    token_class: ForcedClass | None = None  # overridden, or what random tokens stand against
    random_seed: int | None = None  # of the random tokens; None where it is the class itself


@dataclass(frozen=True)
class Selection:
    """The interventions that are scored beside the learned router."""

    suites: tuple[str, ...]  # keys of `SUITES`
    loops: tuple[int, ...]  # forced loop counts of the suites `paper` and `layers`
    shuffles: int  # seeds of shuffled gates, and of random experts, from 0 on, a row each
    controls: int  # seeds of the random tokens that a class stands against; their mean counts
    classes: tuple[ForcedClass, ...]

    def rows(self, config: ModelConfig) -> list[Row]:
        """The rows of all suites asked for, the learned router first."""
        chosen = [rows(self, config) for name, rows in SUITES.items() if name in self.suites]
        return [Row(BASELINE, Intervention()), *chain.from_iterable(chosen)]

    def overrides(self) -> list[Intervention]:
        """Those of the paper's table `ablations`: loops, constant and shuffled gates."""
        return [
            *(Intervention(loops=count) for count in self.loops),
            *(Intervention(gates=gates) for gates in GATES),
            *(Intervention(gates=SHUFFLED, seed=seed) for seed in range(self.shuffles)),
        ]


def _token_class_rows(selection: Selection, config: ModelConfig) -> list[Row]:
    """Each class under its override, and random tokens in its place, a row a seed."""

    def name_of(forced: ForcedClass, seed: int | None) -> str:
        random = "" if seed is None else RANDOM
        return f"{random}{forced.name}" + (f":{seed}" if seed else "")

    return [
        Row(
            "token-classes",
            Intervention(gates=PATHS[forced.path], tokens=name_of(forced, seed)), forced, seed,
        )
        for forced in selection.classes
        for seed in (None, *range(selection.controls))
    ]  # fmt: skip


def _layer_rows(selection: Selection, config: ModelConfig) -> list[Row]:
    """Each override in one layer at a time, but for the trained loops: they change nothing.

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


def _expert_rows(selection: Selection, config: ModelConfig) -> list[Row]:
    """Fewer and up to twice as many of the best experts, and random ones, a row a seed."""
    most = min((layer.n_experts for layer in config.layers if layer.n_experts), default=0)
    counts = (k for k in range(1, min(2 * config.top_k, most) + 1) if k != config.top_k)
    seeds = range(selection.shuffles)
    changes = [
        *(Intervention(experts=count) for count in counts),
        *(Intervention(experts=intervention.RANDOM, seed=seed) for seed in seeds),
    ]
    return [Row("experts", change) for change in changes]


SUITES: Mapping[str, Callable[[Selection, ModelConfig], list[Row]]] = {
    "paper": lambda selection, config: [Row("paper", row) for row in selection.overrides()],
    "token-classes": _token_class_rows,
    "layers": _layer_rows,
    "experts": _expert_rows,
    "halting": lambda selection, config: [
        Row("halting", Intervention(halting=mass))
        for mass in (0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.001)
    ],
    "skip": lambda selection, config: [
        Row("skip", Intervention(skip=gate)) for gate in (0.5, 0.4, 0.3, 0.2, 0.1, 0.05)
    ],
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


@dataclass(frozen=True, kw_only=True)
class Ablate(Texts):
    """Scores a run's model with forced loops and overridden gates, by layer, by class of token,
    with halting: each paired with the learned router on identical tokens.
    """

    suite: tuple[str, ...] = ()
    """One or more, or all. paper, the default: the 16 rows of the paper's inference-time ablations;
    token-classes: classes of tokens forced wide and deep, beside as many random tokens like them;
    layers: each row of paper in one layer at a time; experts: fewer or more of a token's best
    experts, and a random choice; halting: thresholds of remaining mass at which a token stops
    looping; skip: gates below which a token leaves its loops or the wide path out; kv-slots: fewer
    keys and values for the steps of a loop, token by token."""
    loops: str = "1-10"
    """Forced loop counts, such as 1-10 or 1,2,8."""
    seeds: int | None = None
    """Seeds of the shuffled gates and of the random experts, a row each (1 by default), and of the
    random tokens, whose mean counts (5 by default)."""
    classes: tuple[str, ...] = ()
    """Classes of tokens by universal part of speech, as NAME=UPOS,UPOS. Each is forced wide and
    deep, or one of the two: NAME=UPOS,UPOS:wide, :deep. By default arithmetic=NUM,SYM and
    function=ADJ,ADV,PART,PRON,VERB."""
    tagger: Place = TAGGER
    """The spaCy pipeline for token-classes, by name or path."""
    out: Place | None = None
    """Folder for tables and figures; else RUN/ablations/step-N. What is in it already is not scored
    again, but tables and figures of a call before are replaced."""
    compare_paper: bool = False
    """Set the paper's numbers beside the loss, where source and row are in its table."""
    kind = "ablations"

    def __post_init__(self) -> None:
        check_ranges(self, {"seeds": (1, 1000)})

    @cached_property
    def selection(self) -> Selection:
        """The interventions that the words ask for."""
        return Selection(
            _suites(self.suite), _loops(self.loops), shuffles=self.seeds or 1,
            controls=self.seeds or 5, classes=_classes(self.classes),
        )  # fmt: skip

    def check(self, settings: Settings) -> None:
        rows, skipped = applicable(self.selection.rows(settings.model), settings.model)
        if len(rows) == 1:  # the learned router
            reason = next(iter(skipped.values()), "its loops have one step")
            raise UserError(
                f"--suite {','.join(self.selection.suites)} has nothing to try here: {reason}"
            )
        if any(row.token_class for row in rows):
            check_pipeline(self.tagger)


def _suites(words: tuple[str, ...]) -> tuple[str, ...]:
    chosen, known = ",".join(words or ("paper",)).split(","), [*SUITES, "all"]
    for name in chosen:
        if name not in known:
            way_out = did_you_mean(name, known) or f"; choose from {', '.join(known)}"
            raise UserError(f"unknown suite '{name}'{way_out}")
    return tuple(name for name in SUITES if name in chosen or "all" in chosen)


def _loops(text: str) -> tuple[int, ...]:
    counts: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last <= MOST_LOOPS:
            raise UserError(
                f"--loops '{text}': '{part}' is no number or range from 1 to {MOST_LOOPS}; "
                "give such as 1-10 or 1,2,8"
            )
        counts |= set(range(first, last + 1))
    return tuple(sorted(counts))


def default_classes() -> tuple[ForcedClass, ...]:
    """The classes that are forced unless others are given, each to both paths.

    A class that suffers from one path alone leans to the other; one that suffers from both is
    merely sensitive.
    """
    return tuple(chosen.to(path) for chosen in measured() if chosen.forced for path in PATHS)


def _classes(specs: tuple[str, ...]) -> tuple[ForcedClass, ...]:
    classes = [forced for spec in specs for forced in _class(spec)]
    upos: dict[str, tuple[str, ...]] = {}
    for forced in classes:
        if upos.setdefault(forced.name, forced.upos) != forced.upos or classes.count(forced) > 1:
            raise UserError(f"--classes has two classes named '{forced.name}'")
    return tuple(classes) or default_classes()


def _class(spec: str) -> list[ForcedClass]:
    """The class that a word describes, forced to the path it names or to each of them."""
    match = re.fullmatch(r"([\w-]+)=([\w,]+)(?::(wide|deep))?", spec)
    if not match:
        raise UserError(f"--classes '{spec}': give NAME=UPOS,UPOS, maybe with :wide or :deep")
    name, tags, path = match[1], tuple(match[2].split(",")), match[3]
    if name.startswith(RANDOM):
        raise UserError(f"--classes '{spec}': names with {RANDOM} are those of the random tokens")
    for tag in tags:
        if tag not in UPOS:
            hint = did_you_mean(tag.upper(), UPOS) or f"; choose from {', '.join(UPOS)}"
            raise UserError(f"--classes '{spec}': unknown part of speech '{tag}'{hint}")
    return [ForcedClass(name, tags, chosen) for chosen in ([path] if path else PATHS)]
