"""Decoder: a model that goes on from what it has read, a pass after the other.

Shapes: B sequences, T new positions, V rows of the vocabulary.
"""

import torch

from dualpath_cli.intervention import SHUFFLED, Intervention
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.cache import Cache


class Decoder:
    """A DualPathLM under an intervention, which keeps the keys and values of what it has read."""

    def __init__(
        self,
        model: DualPathLM,
        intervention: Intervention | None = None,
        autocast: torch.dtype | None = None,
        cached: bool = True,
    ) -> None:
        """`autocast` is the type of matrix products, None that of the weights.

        Unless `cached`, and under shuffled gates, which need the whole text, all is read again in
        every pass.
        """
        self._model = model.eval()
        self._intervention = intervention
        self._autocast = autocast
        shuffled = intervention is not None and intervention.gates == SHUFFLED
        self._cached = cached and not shuffled
        self.begin()

    def begin(self, capacity: int = 0) -> None:
        """Forgets what was read. `capacity` are the positions that will be, if that is known."""
        self._cache = Cache(self._model.config, capacity) if self._cached else None
        self._past: list[tuple[torch.Tensor, torch.Tensor]] = []

    @torch.inference_mode()
    def next_logits(self, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Reads on, and returns what the head gives for the position after the last, (B, V).

        Where `mask_BT` is False there is padding.
        """
        if self._cache is None:
            self._past.append((ids_BT, mask_BT))
            ids_BT, mask_BT = (torch.cat(parts, dim=1) for parts in zip(*self._past, strict=True))
        device = self._model.embed.weight.device
        with torch.autocast(device.type, self._autocast, enabled=self._autocast is not None):
            logits_B1V: torch.Tensor = self._model(
                ids_BT.to(device),
                cache=self._cache,
                attention_mask=None if mask_BT.all() else mask_BT.to(device),
                last_logits=1,
                intervention=self._intervention,
            )
        return logits_B1V[:, -1]

    @property
    def cache_bytes(self) -> int:
        """Memory of keys and values, with what `begin` made room for."""
        return 0 if self._cache is None else self._cache.bytes
