"""`dualpath routing`: reads what one checkpoint's gates do on texts, and shows it.

1. every source is cut into the windows that `validate` scores, and tagged;
2. one pass over each source writes a row for every token, and sums (`tokens.py`,
   `readouts.py`); a source that an earlier call finished is not read again
   (`bench.py`);
3. further passes read the page's sequences alone: the model's next tokens after each
   loop, and the cost of forcing loops or gates (`page/passes.py`);
4. summary, figures and page come from rows and sums (`report.py`).

A sequence is a window of a text: end-of-text, then up to as many tokens as the model is
long. Every token of the text is read once; end-of-text and the first token of a packed
block are context alone.

Shapes: B sequences, T positions, L layers with gates, K loops, C experts of a token, R
1 + resamples.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dualpath_cli.base.errors import UserError
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.windows import LanguageModelLoss, Windows
from dualpath_cli.model import RoutingTrace
from dualpath_cli.report.bootstrap import RESAMPLES, clusters_of, resample_weights
from dualpath_cli.run.weights import from_all_ranks
from dualpath_cli.study import bench
from dualpath_cli.study.bench import FILLER, Arrays, Pass, array_digest
from dualpath_cli.study.controls import tag
from dualpath_cli.study.parts_of_speech import TAGGER, UPOS, Tagger
from dualpath_cli.study.routing import report
from dualpath_cli.study.routing.options import RoutingOptions
from dualpath_cli.study.routing.page.passes import PagePass, page_passes, write_details
from dualpath_cli.study.routing.readouts import (
    RoutingSums,
    dual_layers,
    experts_by_layer,
    experts_of,
    gated_layers,
    is_text,
    most_steps,
)
from dualpath_cli.study.routing.tokens import TOKENS, TokenTable, merge, token_table
from dualpath_cli.training.launch import StudyLaunch
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.session import Session


@dataclass
class Reading(Pass):
    """One source without an intervention: a row for every token, and sums over all
    tokens."""

    token_values: Sequence[bytes]  # of each id
    # place in UPOS of each token, -1 for end-of-text
    tags: list[npt.NDArray[np.int64]] | None

    last_is_input = True

    @property
    def table(self) -> str:
        return ".parquet"

    @property
    def title(self) -> str:
        return self.source

    @property
    def decisive(self) -> Mapping[str, Any]:
        return {"tags": None if self.tags is None else array_digest(self.tags)}

    def begin(self, module: DualPathModule, files: ExitStack) -> None:
        config = module.config
        layers, loops = config.block_kinds.count("dual"), most_steps(config)
        self._module = module
        self._clusters = clusters_of(self.windows)
        self._experts = experts_by_layer(config)
        self._sums = RoutingSums(layers, loops, max(self._experts), module.device)
        loss = module.train_loss.clone()  # empty, as nothing was trained
        assert isinstance(loss, LanguageModelLoss)
        self._loss = loss
        self._rows: TokenTable | None = None
        if module.trainer.is_global_zero:
            path = self.path.with_suffix(self.table)
            chosen = config.top_k if any(self._experts) else 0
            table = token_table(path, self.token_values, layers, loops, chosen)
            self._rows = files.enter_context(table)

    def step(
        self, tokens: torch.Tensor, targets: torch.Tensor, places: list[int]
    ) -> None:
        assert self._module.model is not None
        trace = RoutingTrace()
        nll = self._module.model(tokens, targets, trace=trace)
        self._loss.update(nll, targets)
        values, (chosen, expert_weights) = dual_layers(trace), experts_of(trace)
        text = is_text(tokens, targets, self._loss.bytes_of_token)
        facts = (
            fact.to(tokens.device) for fact in self._facts_of(places, tokens.shape[1])
        )
        self._sums.update(values, chosen, text, *facts)
        # A loss belongs to the token that was to be predicted.
        nats = nll.roll(1, 1).float()
        columns = (tokens, text, nats, values.float(), chosen, expert_weights.float())
        self._write(places, [column.cpu().numpy() for column in columns])

    def end(self) -> Arrays:
        """Sums, loss and bits per byte of all ranks, numbers of clusters and
        experts."""
        loss = {
            name: value.cpu().numpy() for name, value in self._loss.compute().items()
        }
        facts = {
            "clusters": np.array(self._clusters.count),
            "experts": np.array(self._experts),
        }
        return self._sums.compute(self._module.trainer.strategy) | loss | facts

    def _facts_of(
        self, places: list[int], length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and tags of these sequences, for `RoutingSums.update`."""
        weights_BR = np.zeros((len(places), 1 + RESAMPLES))
        tags_BT = np.full((len(places), length), -1)
        for row, place in enumerate(places):
            if place != FILLER:
                weights_BR[row] = resample_weights(
                    self.source, self._clusters.of_window[place]
                )
                if self.tags is not None:
                    tags_BT[row, : len(self.tags[place])] = self.tags[place]
        return torch.from_numpy(weights_BR), torch.from_numpy(tags_BT)

    def _write(self, places: list[int], columns: list[npt.NDArray[Any]]) -> None:
        """Writes the rows of all ranks' sequences, in the order of their places.

        `columns` are tokens, whether each is text, losses (B, T), read-outs (B, T, L,
        columns), experts and their weights (B, T, L, C).
        """
        ranks = from_all_ranks((places, columns))
        if self._rows is None:
            return
        for row in range(len(places)):
            for own_places, (tokens, text, *values) in ranks:
                place = own_places[row]
                if place == FILLER:
                    continue
                (positions,) = text[row].nonzero()
                upos = None
                if self.tags is not None:
                    tags = self.tags[place][positions]
                    upos = [None if tag < 0 else UPOS[tag] for tag in tags]
                self._rows.add(
                    self.source,
                    self.windows.numbers[place],
                    tokens[row, positions],
                    upos,
                    *(array[row, positions] for array in values),
                )


def run(session: Session[StudyLaunch]) -> None:
    options: RoutingOptions = session.launch.options
    layers = gated_layers(session.launch.settings.model)
    tagger = None
    try:
        tagger = None if options.untagged else Tagger(options.tagger or TAGGER)
    except UserError as error:
        if options.tagger is not None:
            raise
        session.say(f"tokens have no parts of speech: {error}")
    study = RoutingStudy(session, tagger)
    module = bench.run(study, session)
    if not session.trainer.is_global_zero:
        return
    readings: dict[str, Reading] = {}
    for source in module.sources:
        reading, *of_page = study.finished[source]
        readings[source] = reading
        module.sources[source]["key"] = reading.path.stem
        write_details(options.folder, source, of_page)
    tables = [reading.path.with_suffix(reading.table) for reading in readings.values()]
    table_facts = {
        "checkpoint": module.facts["checkpoint"]["sha256"],
        "layers": json.dumps(layers),
    }
    merge(tables, options.folder / TOKENS, table_facts)
    facts = {**module.facts, "tagger": tagger and tagger.facts}
    sums = {source: reading.arrays for source, reading in readings.items()}
    report.write(session.launch, facts, module.sources, sums, session.console)


class RoutingStudy(bench.Study[Reading | PagePass]):
    semantics = 7

    def __init__(self, session: Session[StudyLaunch], tagger: Tagger | None) -> None:
        self._options: RoutingOptions = session.launch.options
        self._session, self._tagger = session, tagger
        self.folder = self._options.folder / "passes"
        self.finished: dict[str, Sequence[Any]] = {}

    def passes(
        self, source: str, windows: Windows, tokenizer: Tokenizer
    ) -> list[Reading | PagePass]:
        options, settings = self._options, self._session.launch.settings
        ids = windows.windows[: windows.n_filled]
        tags = None
        if self._tagger is not None:
            self._session.console.print(f"tagging {source}", highlight=False)
            place = {upos: number for number, upos in enumerate(UPOS)}
            tags = [
                np.array([place.get(upos, -1) for upos in window_tags])
                for window_tags in tag(ids, tokenizer, self._tagger)
            ]
        reading = Reading(source, windows, tokenizer.token_values(), tags)
        sources, ranks = len(settings.data.val), self._session.trainer.world_size
        of_page = page_passes(
            source,
            windows,
            settings.model,
            options,
            sources,
            tokenizer.vocab_size,
            ranks,
        )
        return [reading, *of_page]

    def finish(self, source: str, passes: Sequence[Any]) -> None:
        self.finished[source] = passes
