"""The words of `dualpath routing` beside a recipe's: checked without importing anything slow."""

from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.intervention import Intervention
from dualpath_cli.options import add_list_option
from dualpath_cli.recipe.recipes import Recipe
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.run import run_folder
from dualpath_cli.study.options import TAGGER, add_text_arguments, out_folder, take_sources
from dualpath_cli.study.parts_of_speech import check_pipeline

SUMMARY = "summary.json"
"""The file of a folder that holds the routing of whole sources."""

NO_TAGGER = "none"
PAGE_SEQUENCES = 12
"""Sequences of each source on the page by default: 48 of the usual four."""
ANCHOR = "Answer"
"""The word that the paper aligns question-answer texts at."""


@dataclass(frozen=True)
class RoutingOptions:
    out: Path
    text: str | None
    """A text to print in the terminal, instead of a study of sources."""
    text_page: bool
    """Whether `out` gets the page of `text`."""
    layer: int | None
    """The layer that colours `text`; None: the mean of all."""
    tagger: str | None
    """spaCy pipeline, by name or path; None: nothing is tagged."""
    anchor: str
    """Where sequences of two sources are aligned."""
    sequences: int
    """Sequences of each source on the page."""
    examples: tuple[tuple[str, int], ...]
    """Source and number of the sequences that are drawn; where a source is missing, its first."""
    costs: bool
    """Whether the page says what forcing would cost."""
    beside_loops: int | None
    """Loops of all layers of the model that is read beside the learned one on the page."""

    def shown(self, source: str, count: int) -> list[int]:
        """Numbers of the sequences on the page, of a source that has `count`: chosen ones first."""
        chosen = [number for name, number in self.examples if name == source]
        return list(dict.fromkeys([*chosen, *range(count)]))[: max(self.sequences, len(chosen))]

    def drawn(self, source: str) -> list[int]:
        """Numbers of the sequences that figures show: those chosen, or the first one."""
        return [number for name, number in self.examples if name == source] or [0]


def add_arguments(parser: ArgumentParser) -> None:
    add_text_arguments(parser)
    text = "Print the routing of this text in the terminal; with --out, write its page there."
    parser.add_argument("--text", metavar="TEXT", help=text)
    text = "Colour --text by this layer instead of the mean of all."
    parser.add_argument("--layer", metavar="N", help=text)
    text = "The spaCy pipeline for parts of speech, by name or path; none leaves them out."
    parser.add_argument("--tagger", metavar="PIPELINE", default=TAGGER, help=text)
    text = (
        "Where the sequences of two sources are aligned: the end of this word's first occurrence."
    )
    parser.add_argument("--anchor", metavar="WORD", default=ANCHOR, help=text)
    text = (
        "So many sequences of each source are on the page. A sequence is a document, or as "
        "much of one as the model takes at once: a long document gives several."
    )
    parser.add_argument("--sequences", metavar="N", help=text)
    text = (
        "Sequences that are drawn and come first on the page, by source and number, such as "
        "gsm8k:3; by default number 0 of each source."
    )
    add_list_option(parser, "--examples", "SOURCE:N", text)
    text = "Leave out what forcing loops or gates would cost: most of the page's passes."
    parser.add_argument("--no-costs", action="store_true", help=text)
    text = "Read the page's sequences with so many loops as well, side by side with the learned."
    parser.add_argument("--beside-loops", metavar="K", help=text)
    text = "Folder for tokens, figures and the page; by default RUN/routing/step-N."
    parser.add_argument("--out", metavar="DIR", help=text)


def read_options(given: dict[str, Any], recipe: Recipe, run: run_folder.Run) -> RoutingOptions:
    """Reads the options of `routing`; texts go to the recipe's data section."""
    if given["text"] is None:
        if given["layer"] is not None:
            raise UserError("--layer goes with --text; the page shows every layer")
        take_sources(recipe, given["sources"], given["max_tokens"])
    else:
        for name in ("sources", "max_tokens", "sequences", "examples"):
            if given[name]:
                option = name.replace("_", "-")
                raise UserError(f"--{option} goes with sources, not with --text")
        for name in ("no_costs", "beside_loops"):
            if given[name] and given["out"] is None:
                option = name.replace("_", "-")
                raise UserError(f"--{option} is about the page; give --text an --out DIR")
        if not given["text"].strip():
            raise UserError("--text is empty")
        recipe["data"]["val"] = {}
    if not given["anchor"].strip():
        raise UserError("--anchor is empty; give a word such as Answer")
    return RoutingOptions(
        out=out_folder(given["out"], run, "routing"),
        text=given["text"],
        text_page=given["text"] is not None and given["out"] is not None,
        layer=_whole("--layer", given["layer"]),
        tagger=None if given["tagger"].lower() == NO_TAGGER else given["tagger"],
        anchor=given["anchor"],
        sequences=_whole("--sequences", given["sequences"], least=1) or PAGE_SEQUENCES,
        examples=tuple(_example(spec, recipe["data"]["val"]) for spec in given["examples"]),
        costs=not given["no_costs"],
        beside_loops=_whole("--beside-loops", given["beside_loops"], least=1),
    )


def check_options(options: RoutingOptions, settings: Settings) -> None:
    """Raises UserError for what a model does not have, or a tagger that is not there."""
    gated = [n for n, kind in enumerate(settings.model.block_kinds) if kind == "dual"]
    if not gated:
        raise UserError("the model has no dual block, so there is no routing to read")
    if options.layer is not None and options.layer not in gated:
        layers = ", ".join(map(str, gated))
        raise UserError(f"--layer {options.layer} has no gates; layers {layers} have")
    if options.beside_loops is not None:
        problem = Intervention(loops=options.beside_loops).problem(settings.model)
        if options.beside_loops == settings.model.same_loops:
            problem = "these are the loops that the model was trained with"
        if problem is not None:
            raise UserError(f"--beside-loops {options.beside_loops}: {problem}")
    if options.text_page and (options.out / SUMMARY).exists():
        raise UserError(
            f"--out '{options.out}' has the routing of whole sources; give another folder"
        )
    if options.text is None and options.tagger is not None:
        try:
            check_pipeline(options.tagger)
        except UserError as error:
            raise UserError(f"{error}; or without parts of speech: --tagger none") from None


def _whole(name: str, text: str | None, least: int = 0) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) < least:
        raise UserError(f"{name} must be a whole number from {least} on, not '{text}'")
    return int(text)


def _example(spec: str, sources: dict[str, str]) -> tuple[str, int]:
    name, colon, number = spec.rpartition(":")
    if not colon or not number.isdecimal():
        raise UserError(f"--examples '{spec}': give SOURCE:N, such as gsm8k:0")
    if name not in sources:
        hint = did_you_mean(name, sources) or f"; there are {', '.join(sources)}"
        raise UserError(f"--examples '{spec}': no source '{name}'{hint}")
    return name, int(number)
