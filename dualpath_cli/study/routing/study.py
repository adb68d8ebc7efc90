"""`dualpath routing`: reads what one checkpoint's gates do on texts, and shows it.

1. every source is cut into the windows that `validate` scores, and tagged;
2. one pass over each source writes down a row for every token, and sums (`tokens.py`,
   `readouts.py`); a source that an earlier call finished is not read again (`bench.py`);
3. further passes read the sequences that are on the page alone: what the model would have said
   after each loop, and what forcing loops or gates would cost (`page/passes.py`);
4. from rows and sums come the summary, figures and the page (`report.py`).

A sequence is a window of a text: end-of-text, then up to as many tokens as the model is long. Every
token of the text is read once; end-of-text, and what a packed block begins with, is context alone.

Shapes: B sequences, T positions, L layers with gates, K loops, R 1 + resamples.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchmetrics.utilities.distributed import gather_all_tensors

from dualpath_cli.base.errors import UserError
from dualpath_cli.data.metrics import LanguageModelLoss
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.windows import Windows
from dualpath_cli.model import RoutingTrace
from dualpath_cli.report.bootstrap import RESAMPLES, clusters_of, resample_weights
from dualpath_cli.study import bench
from dualpath_cli.study.controls import tag
from dualpath_cli.study.parts_of_speech import UPOS, Tagger
from dualpath_cli.study.passes import FILLER, Arrays, Pass, array_digest
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
    """One source, read as it is: a row for every token, and sums over all of them."""

    token_values: Sequence[bytes]  # of each id
    tags: list[npt.NDArray[np.int64]] | None  # place in UPOS of each token, -1 for end-of-text

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
        self._sums = RoutingSums(layers, loops, max(self._experts)).to(module.device)
        loss = module.train_loss.clone()  # nothing was trained, so that it is empty
        assert isinstance(loss, LanguageModelLoss)
        self._loss = loss
        self._rows: TokenTable | None = None
        if module.trainer.is_global_zero:
            path = self.path.with_suffix(self.table)
            chosen = config.top_k if any(self._experts) else 0
            table = token_table(path, self.token_values, layers, loops, chosen)
            self._rows = files.enter_context(table)

    def step(self, tokens: torch.Tensor, targets: torch.Tensor, places: list[int]) -> None:
        assert self._module.model is not None
        trace = RoutingTrace()
        nll = self._module.model(tokens, targets, trace=trace)
        self._loss.update(nll, targets)
        values, (chosen, expert_weights) = dual_layers(trace), experts_of(trace)
        text = is_text(tokens, targets, self._loss.bytes_of_token)
        facts = (fact.to(tokens.device) for fact in self._facts_of(places, tokens.shape[1]))
        self._sums.update(values, chosen, text, *facts)
        # Every loss belongs to the token that it is the prediction of.
        numbers = torch.tensor(places, device=tokens.device)
        nats = nll.roll(1, 1).float()
        self._write(numbers, tokens, text, nats, values.float(), chosen, expert_weights.float())

    def end(self) -> Arrays:
        """Sums, loss and bits per byte of all ranks, numbers of clusters and experts."""
        loss = {name: value.cpu().numpy() for name, value in self._loss.compute().items()}
        facts = {"clusters": np.array(self._clusters.count), "experts": np.array(self._experts)}
        return self._sums.compute() | loss | facts

    def _facts_of(self, places: list[int], length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and tags of these sequences, for `RoutingSums.update`."""
        weights_BR = np.zeros((len(places), 1 + RESAMPLES))
        tags_BT = np.full((len(places), length), -1)
        for row, place in enumerate(places):
            if place != FILLER:
                weights_BR[row] = resample_weights(self.source, self._clusters.of_window[place])
                if self.tags is not None:
                    tags_BT[row, : len(self.tags[place])] = self.tags[place]
        return torch.from_numpy(weights_BR), torch.from_numpy(tags_BT)

    def _write(self, *columns: torch.Tensor) -> None:
        """Writes the rows of all ranks' sequences, in the order of their places.

        `columns` are places (B,), tokens, which of them are text, their losses (B, T),
        read-outs (B, T, L, columns), experts and their weights (B, T, L, C).
        """
        gathered = [[column] for column in columns]
        if self._module.trainer.world_size > 1:
            gathered = [gather_all_tensors(column.contiguous()) for column in columns]
        if self._rows is None:
            return
        ranks = [[column.cpu().numpy() for column in rank] for rank in zip(*gathered, strict=True)]
        for row in range(len(columns[0])):
            for places, tokens, text, nats, values, *experts in ranks:
                if places[row] != FILLER:
                    place, (positions,) = places[row], text[row].nonzero()
                    tags = [] if self.tags is None else self.tags[place][positions]
                    upos = [None if tag < 0 else UPOS[tag] for tag in tags]
                    self._rows.add(
                        self.source, self.windows.numbers[place], tokens[row, positions],
                        None if self.tags is None else upos,
                        *(array[row, positions] for array in (nats, values, *experts)),
                    )  # fmt: skip


PASSES = "passes"  # folder of the rows and sums of finished sources, by what decides them


def run(session: Session[StudyLaunch]) -> None:
    options = session.launch.options
    if options.missing:
        session.say(f"tokens have no parts of speech: {options.missing}")
    tagger = None if options.pipeline is None else Tagger(options.pipeline)
    study = RoutingStudy(session, tagger)
    module = bench.run(study, session)
    if not session.trainer.is_global_zero:
        return
    for source, reading in study.readings.items():
        module.sources[source]["key"] = reading.path.stem
    layers = json.dumps(gated_layers(session.launch.settings.model))
    table_facts = {"checkpoint": module.facts["checkpoint"]["sha256"], "layers": layers}
    for source, passes in study.page_passes.items():
        write_details(options.folder, source, study.shown[source], passes)
    readings = {source: study.readings[source] for source in module.sources}
    tables = [reading.path.with_suffix(reading.table) for reading in readings.values()]
    merge(tables, options.folder / TOKENS, table_facts)
    facts = {**module.facts, "tagger": tagger and tagger.facts}
    sums = {source: reading.arrays for source, reading in readings.items()}
    report.write(session.launch, facts, module.sources, sums, session.console)


class RoutingStudy(bench.Study[Reading | PagePass]):
    """A pass over each source, and those over the page's sequences."""

    semantics = 6

    def __init__(self, session: Session[StudyLaunch], tagger: Tagger | None) -> None:
        self._options: RoutingOptions = session.launch.options
        self.folder = self._options.folder / PASSES
        self.readings: dict[str, Reading] = {}
        self.page_passes: dict[str, list[PagePass]] = {}
        self.shown: dict[str, list[int]] = {}  # numbers of each source's sequences on the page
        self._session, self._tagger, self._console = session, tagger, session.console

    def passes(
        self, source: str, windows: Windows, tokenizer: Tokenizer
    ) -> list[Reading | PagePass]:
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
        reading = Reading(source, windows, tokenizer.token_values(), tags)
        options, settings = self._options, self._session.launch.settings
        shown = self.shown[source] = options.shown(source, windows.n_filled)
        of_all = sum(len(options.shown(name, options.sequences)) for name in settings.data.val)
        of_page = page_passes(
            source, windows, shown, of_all, settings.model, options, tokenizer.vocab_size,
            self._session.trainer.world_size,
        )  # fmt: skip
        return [reading, *of_page]

    def finish(self, source: str, passes: Sequence[Reading | PagePass]) -> None:
        (self.readings[source],) = (pass_ for pass_ in passes if isinstance(pass_, Reading))
        self.page_passes[source] = [pass_ for pass_ in passes if isinstance(pass_, PagePass)]
