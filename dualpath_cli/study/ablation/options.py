"""The options of `dualpath ablate`; imports nothing slow."""

import re
from dataclasses import dataclass
from functools import cached_property

from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.ranges import check_ranges
from dualpath_cli.recipe.recipes import Recipe
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.run import run_folder
from dualpath_cli.study.ablation.suites import SUITES, Selection, applicable
from dualpath_cli.study.classes import PATHS, RANDOM, UPOS, ForcedClass, measured
from dualpath_cli.study.options import TAGGER, Texts, take_sources
from dualpath_cli.study.parts_of_speech import check_pipeline

MOST_LOOPS = 100
CONTROLS = 5
"""Random draws beside a class of tokens by default."""


@dataclass(frozen=True)
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
    tagger: str = TAGGER
    """The spaCy pipeline for token-classes, by name or path."""
    out: str | None = None
    """Folder for tables and figures; else RUN/ablations/step-N. What is in it already is not scored
    again, but tables and figures of a call before are replaced."""
    compare_paper: bool = False
    """Set the paper's numbers beside the loss, where source and row are in its table."""

    def __post_init__(self) -> None:
        check_ranges(self, {"seeds": (1, 1000)})

    @cached_property
    def selection(self) -> Selection:
        """The interventions that the words ask for. Raises UserError for words of no meaning."""
        return Selection(
            suites=_suites(self.suite),
            loops=_loops(self.loops),
            shuffles=self.seeds or 1,
            controls=self.seeds or CONTROLS,
            classes=_classes(self.classes),
        )


def read_options(options: Ablate, recipe: Recipe, run: run_folder.Run) -> Ablate:
    """Puts the texts into the recipe's data section; returns the options with their folder."""
    return take_sources(options, recipe, run, "ablations")


def check_options(options: Ablate, settings: Settings) -> None:
    """Raises UserError where no override fits the model, and for a tagger that is not there."""
    rows, skipped = applicable(options.selection.rows(settings.model), settings.model)
    if len(rows) == 1:  # the learned router
        reason = next(iter(skipped.values()), "its loops have one step")
        raise UserError(
            f"--suite {','.join(options.selection.suites)} has nothing to try here: {reason}"
        )
    if any(row.token_class for row in rows):
        check_pipeline(options.tagger)


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
    """Returns the classes that are forced unless others are given, each to both paths.

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
