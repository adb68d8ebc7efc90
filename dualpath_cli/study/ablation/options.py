"""The options of `dualpath ablate`, and its suites; imports nothing slow."""

import re
from dataclasses import dataclass, replace
from functools import cached_property

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.base.ranges import Place, check_ranges
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import RANDOM as RANDOM_EXPERTS
from dualpath_cli.spec.intervention import SHUFFLED, Intervention, parse_loops
from dualpath_cli.study.parts_of_speech import (
    CLASSES,
    FORCED,
    PATHS,
    RANDOM,
    TAGGER,
    UPOS,
    ForcedClass,
    check_pipeline,
)
from dualpath_cli.training.options import StudyOptions

HALTING = (0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.001)
"""Thresholds of remaining mass."""
DEPTH_HALTING = HALTING[:6]
"""Those beside which schedules are scored: below them nearly no token stops."""
GATES = {
    (1.0, 0.0): "deep only",
    (0.0, 1.0): "wide only",
    (0.5, 0.5): "uniform",
    (1.0, 1.0): "fully open",
}
"""Constant (g_d, g_w), and their names in the paper (table `ablations`)."""

TAKEN_BY = {
    "loops": ("paper", "layers"),
    "seeds": ("paper", "layers", "experts", "token-classes"),
    "classes": ("token-classes",),
    "tagger": ("token-classes",),
}
"""The suites that an option changes."""

REPORT = "ablations.json"
"""The file with all results, in the folder of results."""
DEPTH = "depth"
"""The suite of fewer steps beside its controls, on some of the documents."""
SUITES = (
    "paper",
    "token-classes",
    "layers",
    "experts",
    "halting",
    "skip",
    "kv-slots",
    DEPTH,
)
SHORTER = ("halting", "skip")
"""Suites whose rows leave steps or paths out."""
BASELINE = "baseline"
"""The suite of the learned router, with which every row is compared."""


@dataclass(frozen=True)
class AblationRow:
    """An intervention of a suite, on all tokens or on some."""

    suite: str
    intervention: Intervention
    # the class overridden, or matched by random tokens
    token_class: ForcedClass | None = None
    # of the random tokens; None if the class is overridden
    random_seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Ablate(StudyOptions):
    """Scores a run's model with forced loops, overridden gates or halting, by layer or
    by class of token. Each score is paired with the learned router's on identical
    tokens of the validation sets; --data.val '{NAME: PATH}' gives others,
    --data.val_tokens N fewer tokens.

      dualpath ablate --ckpt-path runs/quickstart/default --data.val_tokens 3000
    """

    suite: tuple[str, ...] = ()
    """One or more, or all. paper, the default: the 16 rows of the paper's
    inference-time ablations, and of a core R=1 to one repetition more than trained;
    token-classes: classes of tokens forced wide and deep, beside equally many matched
    random tokens; layers: each row of paper in one layer at a time; experts: fewer or
    more of a token's best experts, and a random choice; halting: thresholds of
    remaining mass at which a token stops looping; skip: gates below which a token skips
    its loops or the wide path; kv-slots: fewer keys and values for the steps of a loop,
    token by token; depth: fewer steps forced, and held, each also with a read-out
    fitted on other documents, and exits beside schedules that are blind to the text."""
    loops: str = "1-10"
    """Forced loop counts of deep paths, such as 1-10 or 1,2,8."""
    seeds: int | None = None
    """Number of seeds: of shuffled gates and random experts, a row each (1 by default),
    and of random tokens, whose mean is reported (5 by default)."""
    classes: tuple[str, ...] = ()
    """Classes of tokens by universal part of speech, as NAME=UPOS,UPOS. Each is forced
    wide and deep, or to one path: NAME=UPOS,UPOS:wide, :deep. By default
    arithmetic=NUM,SYM and function=ADJ,ADV,PART,PRON,VERB."""
    tagger: Place = TAGGER
    """The spaCy pipeline for token-classes, by name or path."""
    out: Place | None = None
    """Folder for tables and figures; by default RUN/ablations/step-N. Finished passes
    in the folder are not scored again; tables and figures of an earlier call are
    replaced."""
    kind = "ablations"

    def __post_init__(self) -> None:
        check_ranges(self, {"seeds": (1, 1000)})

    @cached_property
    def suites(self) -> tuple[str, ...]:
        """The chosen suites, in the order of `SUITES`."""
        given = ",".join(self.suite or ("paper",)).split(",")
        names = [name.strip() for name in given]
        # A comma may end the names; commas alone name no suite, and are refused.
        chosen = [name for name in names if name] or names
        known = [*SUITES, "all"]
        for name in chosen:
            if name not in known:
                choices = f"; choose from {', '.join(known)}"
                way_out = did_you_mean(name, known) or choices
                raise UserError(f"unknown suite '{name}'{way_out}")

        return SUITES if "all" in chosen else tuple(s for s in SUITES if s in chosen)

    def paper_interventions(self, config: ModelConfig) -> list[Intervention]:
        """The rows of the paper's table `ablations`: loops, constant gates, shuffled
        gates; and repetitions of a core."""
        loops = [Intervention(loops=count) for count in parse_loops(self.loops)]
        if config.core is not None:
            counts = range(1, config.core_loops + 2)
            loops += [Intervention(core_loops=count) for count in counts]
        constant = [Intervention(gates=gates) for gates in GATES]
        seeds = range(self.seeds or 1)
        shuffled = [Intervention(gates=SHUFFLED, seed=seed) for seed in seeds]
        return [*loops, *constant, *shuffled]

    def rows(self, config: ModelConfig) -> tuple[list[AblationRow], dict[str, str]]:
        """The rows that a model can run, the learned router first; and for others, by
        name, the reason against it."""
        # Every other row is compared with the learned router.
        chosen = [AblationRow(BASELINE, Intervention())]
        skipped = {}
        for suite in self.suites:
            for row in _rows_of_suite(suite, self, config):
                problem = row.intervention.problem(config)
                if problem is None:
                    chosen.append(row)
                else:
                    skipped[row.intervention.name] = problem

        return chosen, skipped

    def check(self, settings: Settings) -> None:
        parse_loops(self.loops)
        _parse_classes(self.classes)
        for option, suites in TAKEN_BY.items():
            is_given = getattr(self, option) != getattr(Ablate, option)
            if is_given and set(suites).isdisjoint(self.suites):
                raise UserError(
                    f"--{option} has no effect on --suite {','.join(self.suites)}; "
                    f"leave it out, or add --suite {' or '.join(suites)}"
                )

        model = settings.model
        rows, skipped = self.rows(model)
        if len(rows) == 1:  # the learned router
            has_loops = bool(model.deep_layers) or model.core is not None
            no_fewer = "its loops have one step" if has_loops else "it has no loops"
            reason = next(iter(skipped.values()), no_fewer)
            raise UserError(
                f"--suite {','.join(self.suites)} has no row for this model: {reason}"
            )

        if any(row.token_class for row in rows):
            check_pipeline(self.tagger)


def _rows_of_suite(
    suite: str, options: Ablate, config: ModelConfig
) -> list[AblationRow]:
    """The rows of a suite; the docstring of `Ablate.suite` describes the suites."""
    match suite:
        case "paper":
            changes = options.paper_interventions(config)
        case "token-classes":
            return _token_class_rows(options)
        case "layers":
            changes = _in_each_layer(options.paper_interventions(config), config)
        case "experts":
            changes = _expert_changes(config, options.seeds or 1)
        case "halting":
            changes = [Intervention(halting=mass) for mass in HALTING]
        case "skip":
            gates = (0.5, 0.4, 0.3, 0.2, 0.1, 0.05)
            changes = [Intervention(skip=gate) for gate in gates]
        case "kv-slots":
            most = max(config.most_loops, config.core_loops)
            changes = [Intervention(kv_slots=count) for count in range(1, most)]
        case "depth":
            changes = _depth_changes(config)
        case _:
            raise AssertionError(f"no rows for suite '{suite}'")

    return [AblationRow(suite, change) for change in changes]


def _depth_changes(config: ModelConfig) -> list[Intervention]:
    """Fewer steps forced and held, exits, and schedules of the same depth; first the
    learned router, which is scored on the same documents."""
    changes = []
    fewest = min((layer.loops for layer in config.deep_layers), default=1)
    most = config.most_loops
    # No layer is forced to more steps than it was trained with, and some to fewer.
    for steps in range(1, min(fewest + 1, most)):
        changes += [Intervention(loops=steps), Intervention(held=steps)]
    for repetitions in range(1, config.core_loops):
        changes.append(Intervention(core_loops=repetitions))
        changes.append(Intervention(core_held=repetitions))
    if not changes:
        return []

    for mass in DEPTH_HALTING:
        exit_ = Intervention(halting=mass)
        changes.append(exit_)
        if exit_.problem(config) is None:
            changes.append(Intervention(halting=mass, blind="all"))
            changes.append(Intervention(halting=mass, blind="position"))
    return [Intervention(), *changes]


def _expert_changes(config: ModelConfig, seeds: int) -> list[Intervention]:
    """Fewer and up to twice as many of the best experts, and random ones."""
    experts = [layer.n_experts for layer in config.layers if layer.n_experts]
    most = min(2 * config.top_k, min(experts, default=0))
    counts = [count for count in range(1, most + 1) if count != config.top_k]

    return [
        *(Intervention(experts=count) for count in counts),
        *(Intervention(experts=RANDOM_EXPERTS, seed=seed) for seed in range(seeds)),
    ]


def _token_class_rows(options: Ablate) -> list[AblationRow]:
    """Each class under its override, and matched random tokens, a row for each seed.

    A class whose loss rises under one path only leans to the other; a class whose loss
    rises under both is merely sensitive.
    """
    rows = []
    for forced in _parse_classes(options.classes):
        gates = PATHS[forced.path]
        change = Intervention(gates=gates, tokens=forced.name)
        rows.append(AblationRow("token-classes", change, forced))

        for seed in range(options.seeds or 5):
            suffix = f":{seed}" if seed else ""
            name = f"{RANDOM}{forced.name}{suffix}"
            change = Intervention(gates=gates, tokens=name)
            rows.append(AblationRow("token-classes", change, forced, seed))

    return rows


def _in_each_layer(
    overrides: list[Intervention], config: ModelConfig
) -> list[Intervention]:
    """Each override in one layer at a time, but for those without effect.

    An override of a path or gate that a layer lacks is left out, unless the whole model
    lacks it: then the report names it as skipped.
    """
    changes = []
    for override in overrides:
        # The core repeats all its layers together.
        if override.core_loops is not None:
            continue

        model_lacks_it = override.problem(config) is not None
        for number, layer in enumerate(config.layers):
            # The trained K changes nothing.
            if override.loops == layer.loops:
                continue

            in_layer = replace(override, layers=(number,))
            if model_lacks_it or in_layer.problem(config) is None:
                changes.append(in_layer)

    return changes


def _parse_classes(specs: tuple[str, ...]) -> list[ForcedClass]:
    """The classes that arguments describe, by default the two that the authors'
    revision forces."""
    specs = specs or tuple(f"{name}={','.join(CLASSES[name])}" for name in FORCED)
    classes = [forced for spec in specs for forced in _parse_class(spec)]

    # A class may be forced to two paths, but its name stands for one class.
    upos_by_name: dict[str, tuple[str, ...]] = {}
    for forced in classes:
        first = upos_by_name.setdefault(forced.name, forced.upos)
        if forced.upos != first or classes.count(forced) > 1:
            raise UserError(f"--classes has two classes named '{forced.name}'")

    return classes


def _parse_class(spec: str) -> list[ForcedClass]:
    """The class that an argument describes, forced to the named path or to each."""
    match = re.fullmatch(r"([\w-]+)=([\w,]+)(?::(wide|deep))?", spec)
    if not match:
        raise UserError(
            f"--classes '{spec}': give NAME=UPOS,UPOS, maybe with :wide or :deep"
        )

    name = match[1]
    if name.startswith(RANDOM):
        raise UserError(
            f"--classes '{spec}': names with {RANDOM} are reserved for random tokens"
        )

    tags = tuple(match[2].split(","))
    for tag in tags:
        if tag not in UPOS:
            hint = did_you_mean(tag.upper(), UPOS) or f"; choose from {', '.join(UPOS)}"
            raise UserError(f"--classes '{spec}': unknown part of speech '{tag}'{hint}")

    paths = [match[3]] if match[3] else PATHS
    return [ForcedClass(name, tags, path) for path in paths]
