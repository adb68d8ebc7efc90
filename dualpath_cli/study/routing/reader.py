"""A pass of `routing` over a source: a row for each token, and sums over all tokens.

A sequence is a window of a text: end-of-text, then up to as many tokens as the model is long. Every
token of the text is read once; end-of-text, and what a packed block begins with, is context alone.

Shapes: B sequences, T positions, L layers with gates, K loops, R 1 + resamples.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchmetrics.utilities.distributed import gather_all_tensors

from dualpath_cli.model import RoutingTrace
from dualpath_cli.statistics.bootstrap import RESAMPLES, clusters_of, resample_weights
from dualpath_cli.study.classes import UPOS
from dualpath_cli.study.facts import array_digest
from dualpath_cli.study.passes import FILLER, Arrays, Pass
from dualpath_cli.study.routing.readouts import (
    dual_layers,
    experts_by_layer,
    experts_of,
    is_text,
    most_steps,
)
from dualpath_cli.study.routing.sums import RoutingSums
from dualpath_cli.study.routing.tokens import TokenTable, token_table
from dualpath_cli.training.data.windows import Tokens
from dualpath_cli.training.metrics import LanguageModelLoss
from dualpath_cli.training.module import DualPathModule

TABLE = ".parquet"
"""Suffix of the file with the rows of a source's tokens."""
MOST_ALIGNED = 1000
"""Sequences of a source that are aligned, as in the paper: the first ones that have an anchor."""


@dataclass
class Reading(Pass):
    """One source, read as it is: a row for every token, and sums over all of them.

    Of the untrained model, which the claims are set against, sums alone.
    """

    token_values: Sequence[bytes]
    """The bytes that each token id stands for."""
    tags: list[npt.NDArray[np.int64]] | None
    """Place in UPOS of each token of each sequence, -1 for end-of-text; None without a tagger."""
    anchors: npt.NDArray[np.int64]
    """Position of the token at which each sequence is aligned, -1 where it has none."""

    last_is_input = True

    @property
    def table(self) -> str | None:
        return None if self.untrained else TABLE

    @property
    def title(self) -> str:
        return f"{self.source}, untrained" if self.untrained else self.source

    @property
    def decisive(self) -> Mapping[str, Any]:
        tags = None if self.tags is None else array_digest(self.tags)
        return {"tags": tags, "anchors": self.anchors.tolist()}

    def begin(self, module: DualPathModule, files: ExitStack) -> None:
        config = module.config
        layers = config.block_kinds.count("dual")
        self._module = module
        self._clusters = clusters_of(self.windows)
        self._experts = experts_by_layer(config)
        sums = RoutingSums(layers, most_steps(config), max(self._experts))
        self._sums = sums.to(module.device)
        loss = module.train_loss.clone()  # nothing was trained, so that it is empty
        assert isinstance(loss, LanguageModelLoss)
        self._loss = loss
        self._rows: TokenTable | None = None
        if module.trainer.is_global_zero and self.table is not None:
            path = self.path.with_suffix(self.table)
            chosen = config.top_k if any(self._experts) else 0
            table = token_table(path, self.token_values, layers, most_steps(config), chosen)
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
        if self.table is None:
            return
        # Every loss belongs to the token that it is the prediction of.
        numbers = torch.tensor(places, device=tokens.device)
        nats = nll.roll(1, 1).float()
        self._write(numbers, tokens, text, nats, values.float(), chosen, expert_weights.float())

    def end(self) -> Arrays:
        """Returns sums, loss and bits per byte of all ranks, numbers of clusters and experts."""
        loss = {name: value.cpu().numpy() for name, value in self._loss.compute().items()}
        facts = {"clusters": np.array(self._clusters.count), "experts": np.array(self._experts)}
        return self._sums.compute() | loss | facts

    def _facts_of(
        self, places: list[int], length: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Weights, tags and anchors of these sequences, for `RoutingSums.update`."""
        weights_BR = np.zeros((len(places), 1 + RESAMPLES))
        tags_BT = np.full((len(places), length), -1)
        anchors_B = np.full(len(places), -1)
        for row, place in enumerate(places):
            if place != FILLER:
                weights_BR[row] = resample_weights(self.source, self._clusters.of_window[place])
                anchors_B[row] = self.anchors[place]
                if self.tags is not None:
                    tags_BT[row, : len(self.tags[place])] = self.tags[place]
        return torch.from_numpy(weights_BR), torch.from_numpy(tags_BT), torch.from_numpy(anchors_B)

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
                    (positions,) = text[row].nonzero()
                    self._rows.add(
                        self.source,
                        self.windows.numbers[places[row]],
                        tokens[row, positions],
                        self._upos(places[row], positions),
                        nats[row, positions],
                        values[row, positions],
                        *(array[row, positions] for array in experts),
                    )

    def _upos(self, place: int, positions: npt.NDArray[np.int64]) -> list[str | None] | None:
        if self.tags is None:
            return None
        return [None if tag < 0 else UPOS[tag] for tag in self.tags[place][positions]]


def anchor_positions(
    windows: Sequence[Tokens], numbers: Sequence[int], token_values: Sequence[bytes], word: str
) -> npt.NDArray[np.int64]:
    """Returns the position of the token in which a word's first occurrence ends, -1 without one.

    `numbers` are the windows' places in the source; those with the least are aligned where too many
    have the word. A word inside another one counts: `Answer` is found in `Answers`.
    """
    positions = np.full(len(windows), -1)
    for place, window in enumerate(windows):
        values = [token_values[id] for id in window[1:].tolist()]  # after end-of-text
        start = b"".join(values).find(word.encode())
        if start >= 0:
            ends = np.cumsum([len(value) for value in values])
            # The first token that reaches as far as the word does.
            positions[place] = 1 + np.searchsorted(ends, start + len(word.encode()))
    anchored = sorted(np.flatnonzero(positions >= 0).tolist(), key=lambda place: numbers[place])
    positions[anchored[MOST_ALIGNED:]] = -1
    return positions
