"""Decoder: a model that goes on from what it has read, a pass after the other.

Shapes: B sequences, T new positions, V rows of the vocabulary.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from dualpath_cli.decoding.cache import Cache
from dualpath_cli.decoding.compiled import compile_for_decoding
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.intervention import SHUFFLED, Intervention
from dualpath_cli.model import DualPathLM

ROOM = 256
"""Compiled passes are of caches with room for a multiple of so many positions: each other room
would be compiled anew."""


class Decoder:
    """A DualPathLM under an intervention, which keeps the keys and values of what it has read."""

    def __init__(
        self,
        model: DualPathLM,
        intervention: Intervention | None = None,
        autocast: torch.dtype | None = None,
        cached: bool = True,
        compiled: bool = False,
        draft: Intervention | None = None,
    ) -> None:
        """`autocast` is the type of matrix products, None that of the weights.

        Unless `cached`, and under shuffled gates, which need the whole text, all is read again in
        every pass. What follows a prompt is read in static shapes by a model that is `compiled`,
        for good. `draft` is another intervention, with fewer loops, that passes may be under.
        """
        self.model = model.eval()
        self._intervention = intervention
        self._autocast = autocast
        shuffled = intervention is not None and intervention.gates == SHUFFLED
        self._cached = cached and not shuffled
        self._compiled = compiled and self._cached
        self._draft = draft
        self._cache: Cache | None = None
        if self._compiled:
            compile_for_decoding(model, intervention)
        self.begin()

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.embed.weight.device

    @property
    def length(self) -> int:
        """Positions that were read, padding included."""
        return 0 if self._cache is None else self._cache.length

    @property
    def cache_bytes(self) -> int:
        """Memory of keys and values, with what `begin` made room for."""
        return 0 if self._cache is None else self._cache.bytes

    def begin(self, capacity: int = 0) -> None:
        """Forgets what was read.

        `capacity` are the positions that will be, if that is known; a model that is compiled reads
        no more of them.
        """
        self._past: list[tuple[torch.Tensor, torch.Tensor]] = []
        if not self._cached:
            return
        if not self._compiled:
            self._cache = Cache(self.model.config, capacity, draft=self._draft)
        elif self._cache is not None and capacity <= self._cache.capacity:
            self._cache.rewind(0)  # what is compiled goes on with the same memory
        else:
            room = -(-capacity // ROOM) * ROOM
            self._cache = Cache(self.model.config, room, self.device, self._draft)

    def rewind(self, length: int) -> None:
        """Forgets what was read after the first `length` positions."""
        assert self._cache is not None
        self._cache.rewind(length)

    def select(self, rows: Sequence[int]) -> None:
        """Goes on with these sequences of the batch alone."""
        if self._cache is not None:
            self._cache.select(rows)
        self._past = [(ids_BT[rows], mask_BT[rows]) for ids_BT, mask_BT in self._past]

    def next_logits(self, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Reads on, and returns what the head gives for the position after the last, (B, V).

        Where `mask_BT` is False there is padding.
        """
        return self.logits(ids_BT, mask_BT, last=1)[:, -1]

    @torch.no_grad()
    def logits(
        self,
        ids_BT: torch.Tensor,
        mask_BT: torch.Tensor | None = None,
        last: int | None = None,
        drafting: bool = False,
    ) -> torch.Tensor:
        """Reads on, and returns what the head gives at the `last` positions, or at all, (B, T, V).

        While `drafting`, under the intervention of drafts.
        """
        if self._cache is None:
            mask_BT = torch.ones_like(ids_BT, dtype=torch.bool) if mask_BT is None else mask_BT
            self._past.append((ids_BT, mask_BT))
            ids_BT, mask_BT = (torch.cat(parts, dim=1) for parts in zip(*self._past, strict=True))
        padded = mask_BT is not None and not mask_BT.all()
        with self._eagerly(), self._precision():
            return forward(
                self.model,
                ids_BT.to(self.device),
                cache=self._cache,
                attention_mask=mask_BT.to(self.device) if padded and mask_BT is not None else None,
                last_logits=last,
                intervention=self._draft if drafting else self._intervention,
            )

    def _eagerly(self) -> AbstractContextManager[object]:
        """A prompt is read once: what is compiled is for the passes after it."""
        if self._compiled and self.length == 0:
            return torch.compiler.set_stance("force_eager")
        return nullcontext()

    def _precision(self) -> AbstractContextManager[object]:
        enabled = self._autocast is not None
        return torch.autocast(self.device.type, self._autocast, enabled=enabled)
