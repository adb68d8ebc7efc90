"""Reader: passes over texts that write down the routing, as Lightning validates.

A sequence is a window of a text: end-of-text, then up to as many tokens as the model is long. Every
token of the text is read once; end-of-text, and what a packed block begins with, is context alone.

Shapes: B sequences, T positions, L layers with gates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset
from torchmetrics.utilities.distributed import gather_all_tensors

from dualpath_cli.model import RoutingTrace
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.study.routing.readouts import dual_layers
from dualpath_cli.study.routing.statistics import (
    RESAMPLES,
    RoutingStatistics,
    Sums,
    resample_weights,
)
from dualpath_cli.training.metrics import LanguageModelLoss
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.windows import Tokens, Windows, collate

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Tokens and those after them, (B, T) each, and the places of the sequences in their text, (B,)."""
FILLER = -1
"""The place of what only fills up a batch."""


@dataclass(frozen=True)
class Text:
    """One source, cut into sequences, longest first."""

    source: str
    windows: Windows
    tags: list[npt.NDArray[np.int64]] | None
    """Place in UPOS of each token of each sequence, -1 for end-of-text; None without a tagger."""
    anchors: npt.NDArray[np.int64]
    """Position of the token at which each sequence is aligned, -1 where it has none."""

    def about(
        self, places: torch.Tensor, length: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What `RoutingStatistics.update` wants of these sequences: weights, tags and anchors."""
        weights = np.zeros((len(places), 1 + RESAMPLES))
        tags = np.full((len(places), length), -1)
        anchors = np.full(len(places), -1)
        for row, place in enumerate(places.tolist()):
            if place != FILLER:
                weights[row] = resample_weights(self.source, self.windows.numbers[place])
                anchors[row] = self.anchors[place]
                if self.tags is not None:
                    tags[row, : len(self.tags[place])] = self.tags[place]
        return torch.from_numpy(weights), torch.from_numpy(tags), torch.from_numpy(anchors)


@dataclass(frozen=True)
class Reading:
    """The text tokens of a sequence, and what was read of them, N tokens."""

    place: int
    """Of the sequence in its `Text`."""
    positions: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    nats: npt.NDArray[np.float32]
    """Loss of each token, given those before it, (N,)."""
    values: npt.NDArray[np.float32]
    """As `dual_layers` has them, (N, L, read-outs and a weight a step)."""


class Numbered(Dataset[tuple[int, Tokens]]):
    """Windows with their places, for a loader."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, place: int) -> tuple[int, Tokens]:
        return (place if place < self._windows.n_filled else FILLER), self._windows[place]


def collate_numbered(batch: list[tuple[int, Tokens]]) -> Batch:
    """Stacks windows; all of their tokens are inputs, and the last one has no target."""
    # `collate` takes the last token of a window for a target alone: a token more, then not scored.
    tokens, targets = collate([np.append(window, 0) for _, window in batch])
    for row, (_, window) in enumerate(batch):
        targets[row, len(window) - 1] = IGNORE
    return tokens, targets, torch.tensor([place for place, _ in batch])


class Reader(DualPathModule):
    """Reads one text after the other: a dataloader each, in the order of `texts`.

    Set all that follows before `Trainer.validate`.
    """

    texts: Sequence[Text]
    on_sequence: Callable[[Text, Reading], object]
    """Called on the first rank with each sequence, whichever rank read it."""
    on_batch: Callable[[Text], object]
    """Called after each batch."""
    on_text: Callable[[Text, Sums], object]
    """Called on the first rank after the last batch of a text."""

    def validation_step(  # type: ignore[override]
        self, batch: Batch, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Reads a batch; the last one of a text ends it."""
        assert self.model is not None
        this = self.texts[dataloader_idx]
        loss = self.val_losses[dataloader_idx]  # any will do: it is emptied first
        assert isinstance(loss, LanguageModelLoss)
        if batch_idx == 0:
            layers = self.config.block_kinds.count("dual")
            self._statistics = RoutingStatistics(layers, self.config.loops).to(self.device)
            loss.reset()
        tokens, targets, places = batch
        trace = RoutingTrace()
        nll = self.model(tokens, targets, trace=trace)
        of_text = loss.bytes_of_token[targets.clamp(min=0)] > 0
        loss.update(nll, torch.where(of_text, targets, IGNORE))
        values = dual_layers(trace)
        text = torch.zeros_like(tokens, dtype=torch.bool)
        text[:, 1:] = (targets[:, :-1] != IGNORE) & (loss.bytes_of_token[tokens[:, 1:]] > 0)
        weights, tags, anchors = (
            each.to(self.device) for each in this.about(places, text.shape[1])
        )
        self._statistics.update(values, text, weights, tags, anchors)
        # Every loss belongs to the token that it is the prediction of.
        self._pass_on(this, places, tokens, text, nll.roll(1, 1).float(), values.float())
        self.on_batch(this)
        if (batch_idx + 1) * len(tokens) * self.trainer.world_size == len(this.windows):
            sums = self._statistics.compute() | {
                k: v.cpu().numpy() for k, v in loss.compute().items()
            }
            if self.trainer.is_global_zero:
                self.on_text(this, sums)

    def on_validation_epoch_end(self) -> None:
        """Has nothing to publish."""

    def _pass_on(self, this: Text, *parts: torch.Tensor) -> None:
        """Hands the sequences of all ranks to the first one, in the order of their places."""
        gathered = [[part] for part in parts]
        if self.trainer.world_size > 1:
            gathered = [gather_all_tensors(part.contiguous()) for part in parts]
        if not self.trainer.is_global_zero:
            return
        ranks = [
            [part.cpu().numpy() for part in of_rank] for of_rank in zip(*gathered, strict=True)
        ]
        for row in range(len(parts[0])):
            for places, tokens, text, nats, values in ranks:
                if places[row] != FILLER:
                    (positions,) = text[row].nonzero()
                    self.on_sequence(
                        this,
                        Reading(
                            int(places[row]), positions, tokens[row, positions],
                            nats[row, positions], values[row, positions],
                        ),
                    )  # fmt: skip
