"""The options of `dualpath routing`; imports nothing slow."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.base.ranges import Place, check_ranges
from dualpath_cli.recipe.options import folder_of
from dualpath_cli.recipe.recipes import Recipe
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.run.run_folder import Run
from dualpath_cli.study.options import Texts
from dualpath_cli.study.parts_of_speech import TAGGER, check_pipeline

SUMMARY = "summary.json"
"""The file of a folder that holds the routing of whole sources."""


@dataclass(frozen=True, kw_only=True)
class RoutingOptions(Texts):
    """Reads what a run's gates do token by token: a page to look at any text, five figures and the
    numbers behind them; --text prints one text in the terminal.
    """

    text: str | None = None
    """Print the routing of this text in the terminal; with --out, write its page there."""
    layer: int | None = None
    """Colour --text by this layer instead of the mean of all."""
    tagger: Place | None = None
    """The spaCy pipeline for parts of speech, by name or path; by default en_core_web_sm, where it
    is installed. none leaves them out."""
    sequences: int = 12
    """So many sequences of each source are on the page. A sequence is a document, or as much of one
    as the model takes at once: a long document gives several."""
    examples: tuple[str, ...] = ()
    """SOURCE:N: sequences that are drawn and come first on the page, such as gsm8k:3; else number 0
    of each source."""
    no_costs: bool = False
    """Leave out what forcing loops or gates would cost: most of the page's passes."""
    out: Place | None = None
    """Folder for tokens, figures and the page; else RUN/routing/step-N."""
    kind = "routing"

    def __post_init__(self) -> None:
        check_ranges(self, {"sequences": (1, 1 << 24)})
        if self.text is None and self.layer is not None:
            raise ValueError("layer goes with --text; the page shows every layer")
        if self.text is not None:
            for name in ("sources", "max_tokens", "sequences", "examples"):
                if getattr(self, name) != getattr(RoutingOptions, name):
                    raise ValueError(f"{name} goes with sources, not with --text")
            if self.no_costs and self.out is None:
                raise ValueError("no_costs is about the page; give --text an --out DIR")
            if not self.text.strip():
                raise ValueError("text is empty")

    @property
    def pipeline(self) -> str | None:
        """The tagger; None: nothing is tagged."""
        name = self.tagger or TAGGER
        return None if self.missing or name.lower() == "none" else name

    @cached_property
    def missing(self) -> str:
        """The reason for which nothing is tagged, where no tagger was named."""
        try:
            if self.tagger is None:
                check_pipeline(TAGGER)
        except UserError as error:
            return str(error)
        return ""

    @cached_property
    def chosen(self) -> list[tuple[str, int]]:
        """Source and number of the sequences that are drawn."""
        return [_example(spec) for spec in self.examples]

    def shown(self, source: str, count: int) -> list[int]:
        """Numbers of the sequences on the page, of a source that has `count`: chosen ones first."""
        chosen = [number for name, number in self.chosen if name == source]
        return list(dict.fromkeys([*chosen, *range(count)]))[: max(self.sequences, len(chosen))]

    def drawn(self, source: str) -> list[int]:
        """Numbers of the sequences that figures show: those chosen, or the first one."""
        return [number for name, number in self.chosen if name == source] or [0]

    def read(self, recipe: Recipe, run: Run) -> Self:
        if self.text is None:
            return super().read(recipe, run)
        recipe["data"]["val"] = {}
        return self

    def check(self, settings: Settings) -> None:
        gated = [n for n, kind in enumerate(settings.model.block_kinds) if kind == "dual"]
        if not gated:
            raise UserError("the model has no dual block, so there is no routing to read")
        for name, number in self.chosen:
            if name not in settings.data.val:
                sources = settings.data.val
                hint = did_you_mean(name, sources) or f"; there are {', '.join(sources)}"
                raise UserError(f"--examples '{name}:{number}': no source '{name}'{hint}")
        if self.layer is not None and self.layer not in gated:
            layers = ", ".join(map(str, gated))
            raise UserError(f"--layer {self.layer} has no gates; layers {layers} have")
        if self.text is not None:
            if self.out is not None and (folder_of("--out", self.out) / SUMMARY).exists():
                raise UserError(
                    f"--out '{self.out}' has the routing of whole sources; give another folder"
                )
        elif self.tagger is not None and self.pipeline is not None:
            try:
                check_pipeline(self.pipeline)
            except UserError as error:
                raise UserError(f"{error}; or without parts of speech: --tagger none") from None


def _example(spec: str) -> tuple[str, int]:
    name, colon, number = spec.rpartition(":")
    if not colon or not number.isdecimal():
        raise UserError(f"--examples '{spec}': give SOURCE:N, such as gsm8k:0")
    return name, int(number)
