"""The words of `dualpath ablate` beside a recipe's: checked without importing anything slow."""

import re
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.options import add_list_option, whole_number
from dualpath_cli.recipe.recipes import Recipe
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.run import run_folder
from dualpath_cli.study.ablation.suites import SUITES, Selection, applicable
from dualpath_cli.study.classes import PATHS, RANDOM, UPOS, ForcedClass, measured
from dualpath_cli.study.options import TAGGER, add_text_arguments, out_folder, take_sources
from dualpath_cli.study.parts_of_speech import check_pipeline

MOST_LOOPS = 100
CONTROLS = 5
"""Random draws beside a class of tokens by default."""


@dataclass(frozen=True)
class AblateOptions:
    out: Path
    selection: Selection
    tagger: str
    """spaCy pipeline, by name or path."""
    compare_paper: bool


def add_arguments(parser: ArgumentParser) -> None:
    suites = "; ".join(f"{name}: {suite.meaning}" for name, suite in SUITES.items())
    add_text_arguments(parser)
    text = f"What to try, one or more, or all; paper by default ({suites})."
    add_list_option(parser, "--suite", "SUITE", text)
    text = "Forced loop counts, such as 1-10 or 1,2,8."
    parser.add_argument("--loops", metavar="LIST", default="1-10", help=text)
    text = (
        "Seeds of the shuffled gates and of the random experts, a row each (default 1), and of the "
        f"random tokens, whose mean counts (default {CONTROLS})."
    )
    parser.add_argument("--seeds", metavar="N", help=text)
    classes = " ".join(f"{c.name}={','.join(c.upos)}" for c in measured() if c.forced)
    text = (
        "Classes of tokens by universal part of speech, as NAME=UPOS,UPOS. Each is forced wide and "
        f"deep, or one of the two: NAME=UPOS,UPOS:wide, :deep. By default {classes}."
    )
    add_list_option(parser, "--classes", "CLASS", text)
    text = "The spaCy pipeline for token-classes, by name or path."
    parser.add_argument("--tagger", metavar="PIPELINE", default=TAGGER, help=text)
    text = (
        "Folder for tables and figures; by default RUN/ablations/step-N. What is in it "
        "already is not scored again, but tables and figures of a call before are replaced."
    )
    parser.add_argument("--out", metavar="DIR", help=text)
    text = "Set the paper's numbers beside the loss, where source and row are in its table."
    parser.add_argument("--compare-paper", action="store_true", help=text)


def read_options(given: dict[str, Any], recipe: Recipe, run: run_folder.Run) -> AblateOptions:
    """Reads the options of `ablate`; texts go to the recipe's data section."""
    take_sources(recipe, given["sources"], given["max_tokens"])
    seeds = given["seeds"]
    if seeds is not None:
        seeds = whole_number("--seeds", seeds, 1, 1000)
    return AblateOptions(
        out=out_folder(given["out"], run, "ablations"),
        selection=Selection(
            suites=_suites(given["suite"]),
            loops=_loops(given["loops"]),
            shuffles=seeds or 1,
            controls=seeds or CONTROLS,
            classes=_classes(given["classes"]),
        ),
        tagger=given["tagger"],
        compare_paper=given["compare_paper"],
    )


def check_options(options: AblateOptions, settings: Settings) -> None:
    """Raises UserError where no override fits the model, and for a tagger that is not there."""
    rows, skipped = applicable(options.selection.rows(settings.model), settings.model)
    if len(rows) == 1:  # the learned router
        reason = next(iter(skipped.values()), "its loops have one step")
        raise UserError(
            f"--suite {','.join(options.selection.suites)} has nothing to try here: {reason}"
        )
    if any(row.token_class for row in rows):
        check_pipeline(options.tagger)


def _suites(names: list[str]) -> tuple[str, ...]:
    chosen = [name for words in names for name in words.split(",")] or ["paper"]
    for name in chosen:
        if name not in (*SUITES, "all"):
            hint = did_you_mean(name, [*SUITES, "all"])
            raise UserError(f"--suite '{name}' is none of {', '.join(SUITES)}, all{hint}")
    return tuple(name for name in SUITES if name in chosen or "all" in chosen)


def _loops(text: str) -> tuple[int, ...]:
    counts: set[int] = set()
    for part in str(text).split(","):
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


def _classes(specs: list[str]) -> tuple[ForcedClass, ...]:
    classes = [forced for spec in specs for forced in _class(spec)]
    upos: dict[str, tuple[str, ...]] = {}
    for forced in classes:
        if upos.setdefault(forced.name, forced.upos) != forced.upos or classes.count(forced) > 1:
            raise UserError(f"--classes has two classes named '{forced.name}'")
    return tuple(classes) or default_classes()


def _class(spec: str) -> list[ForcedClass]:
    """The class that a word describes, forced to the path it names or to each of them."""
    match = re.fullmatch(r"([\w-]+)=([\w,]+)(?::(\w+))?", spec)
    if not match:
        raise UserError(f"--classes '{spec}': give NAME=UPOS,UPOS, maybe with :wide or :deep")
    name, tags, path = match[1], tuple(match[2].split(",")), match[3]
    if name.startswith(RANDOM):
        raise UserError(f"--classes '{spec}': names with {RANDOM} are those of the random tokens")
    for tag in tags:
        if tag not in UPOS:
            raise UserError(
                f"--classes '{spec}': '{tag}' is no universal part of speech"
                f"{did_you_mean(tag.upper(), UPOS)} (tags: {', '.join(UPOS)})"
            )
    if path is not None and path not in PATHS:
        raise UserError(f"--classes '{spec}': the path is wide or deep, not '{path}'")
    return [ForcedClass(name, tags, chosen) for chosen in ([path] if path else PATHS)]
