"""The options of `dualpath routing`; imports nothing slow."""

from dataclasses import dataclass

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import Place, check_ranges
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.study.parts_of_speech import check_pipeline
from dualpath_cli.training.options import StudyOptions


@dataclass(frozen=True, kw_only=True)
class RoutingOptions(StudyOptions):
    """Reads what a run's gates do token by token on its validation sets: a page to look
    at any text, figures and their numbers. --data.val '{NAME: PATH}' gives other
    texts, --data.val_tokens N fewer tokens.

      dualpath routing --ckpt-path runs/quickstart/default --tagger none
    """

    tagger: Place | None = None
    """The spaCy pipeline for parts of speech, by name or path; by default
    en_core_web_sm, if installed. none leaves parts of speech out."""
    sequences: int = 12
    """Number of sequences of each source on the page. A sequence is a document, or as
    much of one as the model takes at once: a long document gives several."""
    no_costs: bool = False
    """Leave out the cost of forcing loops or gates: most of the page's passes."""
    out: Place | None = None
    """Folder for the page, figures and numbers; by default RUN/routing/step-N."""
    kind = "routing"

    def __post_init__(self) -> None:
        check_ranges(self, {"sequences": (1, 1 << 24)})

    @property
    def untagged(self) -> bool:
        return (self.tagger or "").lower() == "none"

    def check(self, settings: Settings) -> None:
        if "dual" not in settings.model.block_kinds:
            way_out = ""
            if settings.model.routes_core:
                way_out = "; for its core, see dualpath_cli.load(RUN).routing"
            raise UserError(
                f"the model has no dual block, so there is no routing to read{way_out}"
            )
        if self.tagger is not None and not self.untagged:
            try:
                check_pipeline(self.tagger)
            except UserError as error:
                raise UserError(
                    f"{error}; or without parts of speech: --tagger none"
                ) from None
