"""`dualpath routing`: reads the gates of one checkpoint on texts, and shows them.

1. every source is cut into the windows that `validate` scores, and tagged;
2. one pass over each source writes a row for every token, and sums (`tokens.py`,
   `readouts.py`); a source that an earlier call finished is not read again
   (`bench.py`);
3. further passes read only the page's sequences: the model's next tokens after each
   loop, and the cost of forcing loops or gates (`page/passes.py`);
4. summary, figures and page come from rows and sums (`report.py`).

A sequence is a window of a text: end-of-text, then up to as many tokens as the model is
long. Every token of the text is read once; end-of-text and the first token of a packed
block are only context.

Shapes: B sequences, T positions, L places of layers with gates, K loops, N repetitions
of the core, C experts of a token, R 1 + resamples.
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
from dualpath_cli.data.losses import LanguageModelLoss
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.windows import Windows
from dualpath_cli.model import RoutingTrace
from dualpath_cli.report.bootstrap import RESAMPLES, clusters_of, resample_weights
from dualpath_cli.run.weights import from_all_ranks
from dualpath_cli.study import bench
from dualpath_cli.study.bench import FILLER, Arrays, Pass, array_digest
from dualpath_cli.study.controls import tag_windows
from dualpath_cli.study.parts_of_speech import TAGGER, UPOS, Tagger
from dualpath_cli.study.routing.options import RoutingOptions
from dualpath_cli.study.routing.page.passes import (
    PagePass,
    page_passes,
    remove_other_details,
    write_details,
)
from dualpath_cli.study.routing.readouts import (
    RoutingSums,
    core_repetitions,
    core_steps,
    dual_layers,
    experts_by_place,
    experts_of,
    facts_of_places,
    gated_places,
    is_text,
    most_experts,
    most_steps,
)
from dualpath_cli.study.routing.report import write_report
from dualpath_cli.study.routing.tokens import (
    TOKENS,
    TokenTable,
    join_tables,
    token_table,
)
from dualpath_cli.training.launch import RunLaunch
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.session import Session


@dataclass
class RoutingPass(Pass):
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
        super().begin(module, files)
        config = module.config
        n_layers = len(gated_places(config))
        self._clusters = clusters_of(self.windows)
        self._experts = experts_by_place(config)
        self._loops = most_steps(config)
        self._chosen = most_experts(config)
        self._repetitions = core_repetitions(config)
        self._sums = RoutingSums(
            n_layers, self._loops, max(self._experts), module.device, self._repetitions
        )

        loss = module.train_loss.clone()  # empty, as nothing was trained
        assert isinstance(loss, LanguageModelLoss)
        self._loss = loss

        self._table: TokenTable | None = None
        if module.trainer.is_global_zero:
            path = self.path.with_suffix(self.table)
            sizes = (n_layers, self._loops, self._chosen, self._repetitions)
            table = token_table(path, self.token_values, *sizes)
            self._table = files.enter_context(table)

    def step(
        self, tokens: torch.Tensor, targets: torch.Tensor, places: list[int]
    ) -> None:
        trace = RoutingTrace()
        nll_BT = self.model(tokens, targets, trace=trace)
        self._loss.update(nll_BT, targets)

        values = dual_layers(trace, self._loops)
        chosen, expert_weights = experts_of(trace, self._chosen)
        text_BT = is_text(tokens, targets, self._loss.bytes_of_token)
        weights_BR = self._weights(places).to(tokens.device)
        tags_BT = self._tags(places, tokens.shape[1]).to(tokens.device)
        core = core_steps(trace) if self._repetitions else None
        self._sums.update(values, chosen, text_BT, weights_BR, tags_BT, core)

        # A loss belongs to the token that was to be predicted.
        nats_BT = nll_BT.roll(1, 1).float()
        columns = {
            "ids": tokens,
            "nats": nats_BT,
            "values": values.float(),
            "experts": chosen,
            "expert_weights": expert_weights.float(),
        }
        if core is not None:
            columns["core"] = core.float()
        arrays = {name: column.cpu().numpy() for name, column in columns.items()}
        self._write_rows(places, text_BT.cpu().numpy(), arrays)

    def end(self) -> Arrays:
        """Sums, loss and bits per byte of all ranks, numbers of clusters and
        experts."""
        losses = self._loss.compute()
        return {
            **self._sums.compute(self._module.trainer.strategy),
            **{name: value.cpu().numpy() for name, value in losses.items()},
            "clusters": np.array(self._clusters.count),
            "experts": np.array(self._experts),
        }

    def _weights(self, places: list[int]) -> torch.Tensor:
        """Weights of these sequences in the resamples, (B, R), 0 for fillers."""
        weights_BR = np.zeros((len(places), 1 + RESAMPLES))
        for row, place in enumerate(places):
            if place != FILLER:
                cluster = self._clusters.of_window[place]
                weights_BR[row] = resample_weights(self.source, cluster)

        return torch.from_numpy(weights_BR)

    def _tags(self, places: list[int], length: int) -> torch.Tensor:
        """Places in UPOS of the tokens' tags, (B, T), -1 without one."""
        tags_BT = np.full((len(places), length), -1)
        if self.tags is not None:
            for row, place in enumerate(places):
                if place != FILLER:
                    tags_BT[row, : len(self.tags[place])] = self.tags[place]

        return torch.from_numpy(tags_BT)

    def _write_rows(
        self,
        places: list[int],
        text_BT: npt.NDArray[np.bool_],
        columns: Mapping[str, npt.NDArray[Any]],
    ) -> None:
        """Writes the rows of all ranks' sequences, in the order of their places.

        `text_BT` says which tokens are text; `columns` are arguments of
        `TokenTable.add` by name, (B, T, ...) each.
        """
        ranks = from_all_ranks((places, text_BT, columns))
        if self._table is None:
            return

        # Ranks take turns with sequences, so row by row keeps the order.
        for row in range(len(places)):
            for rank_places, rank_text_BT, rank_columns in ranks:
                place = rank_places[row]
                if place == FILLER:
                    continue

                (positions,) = rank_text_BT[row].nonzero()
                own = {name: of[row, positions] for name, of in rank_columns.items()}
                self._table.add(
                    self.source,
                    self.windows.numbers[place],
                    upos=self._upos(place, positions),
                    **own,
                )

    def _upos(
        self, place: int, positions: npt.NDArray[np.integer]
    ) -> list[str | None] | None:
        """The tags of a window's tokens by name; None where nothing was tagged."""
        if self.tags is None:
            return None
        tags = self.tags[place][positions]
        return [None if tag < 0 else UPOS[tag] for tag in tags]


def read_routing(session: Session[RunLaunch]) -> None:
    """Reads all sources; writes rows, summary, figures and page, and prints means."""
    options: RoutingOptions = session.launch.options
    tagger = _load_tagger(session)
    study = RoutingStudy(session, tagger)
    module = bench.run_passes(study, session)
    if not session.trainer.is_global_zero:
        return

    model = session.launch.settings.model
    tables = []
    sums = {}
    for source in module.sources:
        routing_pass, *page_passes_of_source = study.finished[source]
        module.sources[source]["key"] = routing_pass.path.stem
        tables.append(routing_pass.path.with_suffix(routing_pass.table))
        sums[source] = routing_pass.arrays
        write_details(options.folder, source, page_passes_of_source, model)
    remove_other_details(options.folder, module.sources)

    table_facts = {
        "checkpoint": module.facts["checkpoint"]["sha256"],
        **{name: json.dumps(value) for name, value in facts_of_places(model).items()},
    }
    join_tables(tables, options.folder / TOKENS, table_facts)

    facts = {**module.facts, "tagger": tagger and tagger.facts}
    write_report(session.launch, facts, module.sources, sums, session.console)


def _load_tagger(session: Session[RunLaunch]) -> Tagger | None:
    """The tagger, or None if it is not wanted, or not named and not installed."""
    options: RoutingOptions = session.launch.options
    if options.untagged:
        return None
    try:
        return Tagger(options.tagger or TAGGER)
    except UserError as error:
        if options.tagger is not None:
            raise
        session.say(f"tokens have no parts of speech: {error}")
        return None


class RoutingStudy(bench.Study[RoutingPass | PagePass]):
    semantics = 8

    def __init__(self, session: Session[RunLaunch], tagger: Tagger | None) -> None:
        self._options: RoutingOptions = session.launch.options
        self._session = session
        self._tagger = tagger
        self.folder = self._options.folder / "passes"
        self.finished: dict[str, Sequence[Any]] = {}

    def passes(
        self, source: str, windows: Windows, tokenizer: Tokenizer
    ) -> list[RoutingPass | PagePass]:
        tags = None
        if self._tagger is not None:
            self._session.console.print(f"tagging {source}")
            ids = windows.windows[: windows.n_filled]
            place_of_upos = {upos: place for place, upos in enumerate(UPOS)}
            tags = [
                np.array([place_of_upos.get(upos, -1) for upos in window_tags])
                for window_tags in tag_windows(ids, tokenizer, self._tagger)
            ]
        routing_pass = RoutingPass(source, windows, tokenizer.token_values(), tags)

        settings = self._session.launch.settings
        others = page_passes(
            source,
            windows,
            settings.model,
            self._options,
            sources=len(settings.data.val),
            vocabulary=tokenizer.vocab_size,
            ranks=self._session.trainer.world_size,
        )
        return [routing_pass, *others]

    def finish(self, source: str, passes: Sequence[Any]) -> None:
        self.finished[source] = passes
