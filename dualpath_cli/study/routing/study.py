"""`dualpath routing`: reads what one checkpoint's gates do on texts, and shows it.

1. every source is cut into the windows that `validate` scores, tagged, and searched for the anchor;
2. one pass over each source writes down a row for every token, and sums (`reader.py`, `tokens.py`,
   `sums.py`); a source that an earlier call finished is not read again (`bench.py`);
3. further passes read the sequences that are on the page alone: what the model would have said
   after each loop, and what forcing loops or gates would cost (`page/passes.py`);
4. a last pass over each source reads the model as it was before training, sums alone: what the
   claims of the paper have to be beyond (`claims.py`);
5. from rows and sums come the summary, the claims, figures and the page.
"""

import json
from collections.abc import Sequence

import numpy as np

from dualpath_cli.cli.session import Session
from dualpath_cli.errors import UserError
from dualpath_cli.study import bench
from dualpath_cli.study.classes import UPOS
from dualpath_cli.study.controls import tag
from dualpath_cli.study.parts_of_speech import Tagger
from dualpath_cli.study.routing import report
from dualpath_cli.study.routing.options import Routing
from dualpath_cli.study.routing.page import details
from dualpath_cli.study.routing.page.passes import PagePass, page_passes
from dualpath_cli.study.routing.reader import TABLE, Reading, anchor_positions
from dualpath_cli.study.routing.tokens import TOKENS, merge
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training.data.windows import Windows

PASSES = "passes"
"""Folder of the rows and sums of finished sources, by what decides them."""


def run(session: Session) -> None:
    """Reads a run's checkpoint on every source; prints the tables and writes everything."""
    options, kinds = session.launch.options, session.launch.settings.model.block_kinds
    tagger = None if options.pipeline is None else Tagger(options.pipeline)
    study = RoutingStudy(session, tagger)
    module = bench.run(study, session)
    if not session.trainer.is_global_zero:
        return
    for source, (reading, untrained) in study.readings.items():
        anchored = int((reading.anchors >= 0).sum())
        keys = {"key": reading.path.stem, "untrained_key": untrained.path.stem}
        module.sources[source] |= {"anchored": anchored, **keys}
    table_facts = {
        "checkpoint": module.facts["checkpoint"]["sha256"],
        "layers": json.dumps([n for n, kind in enumerate(kinds) if kind == "dual"]),
    }
    for source, passes in study.page_passes.items():
        details.write(options.folder, source, study.shown[source], passes)
    readings = {source: study.readings[source] for source in module.sources}
    tables = [trained.path.with_suffix(TABLE) for trained, _ in readings.values()]
    merge(tables, options.folder / TOKENS, table_facts)
    facts = {**module.facts, "tagger": tagger and tagger.facts, "anchor": options.anchor}
    sums, untrained_sums = (
        {source: passes[n].arrays for source, passes in readings.items()} for n in (0, 1)
    )
    report.write(session.launch, facts, module.sources, sums, untrained_sums, session.console)


class RoutingStudy(bench.Study[Reading | PagePass]):
    """A pass over each source, one of the untrained model, and those over the page's sequences."""

    semantics = 6

    def __init__(self, session: Session, tagger: Tagger | None) -> None:
        self._options: Routing = session.launch.options
        self.folder = self._options.folder / PASSES
        self.readings: dict[str, list[Reading]] = {}
        self.page_passes: dict[str, list[PagePass]] = {}
        self.shown: dict[str, list[int]] = {}
        """Numbers of the sequences of each source that are on the page."""
        self._session, self._tagger, self._console = session, tagger, session.console

    def passes(
        self, source: str, windows: Windows, tokenizer: Tokenizer
    ) -> list[Reading | PagePass]:
        """Tags a source's sequences and looks for the anchor."""
        ids = windows.windows[: windows.n_filled]
        for name, number in self._options.chosen:
            if name == source and number >= len(ids):
                range_text = f"they go from 0 to {len(ids) - 1}"
                raise UserError(f"--examples {name}:{number}: no such sequence; {range_text}")
        tags = None
        if self._tagger is not None:
            self._console.print(f"tagging {source}", highlight=False)
            place = {upos: number for number, upos in enumerate(UPOS)}
            tags = [
                np.array([place.get(upos, -1) for upos in window_tags])
                for window_tags in tag(ids, tokenizer, self._tagger)
            ]
        apart = tokenizer.token_values()
        apart[tokenizer.eot_id] = b"\n\n"  # no word goes from one document into the next
        anchors = anchor_positions(ids, windows.numbers, apart, self._options.anchor)
        values = tokenizer.token_values()
        readings = [
            Reading(source, windows, values, tags, anchors, untrained=untrained)
            for untrained in (False, True)
        ]
        return [*readings, *self._page_passes(source, windows, tokenizer.vocab_size)]

    def _page_passes(self, source: str, windows: Windows, vocabulary: int) -> list[PagePass]:
        options, config = self._options, self._session.launch.settings.model
        shown = self.shown[source] = options.shown(source, windows.n_filled)
        sources = self._session.launch.settings.data.val
        of_all = sum(len(options.shown(name, options.sequences)) for name in sources)
        ranks = self._session.trainer.world_size
        return page_passes(source, windows, shown, of_all, config, options, vocabulary, ranks)

    def finish(self, source: str, passes: Sequence[Reading | PagePass]) -> None:
        self.readings[source] = [pass_ for pass_ in passes if isinstance(pass_, Reading)]
        self.page_passes[source] = [pass_ for pass_ in passes if isinstance(pass_, PagePass)]
