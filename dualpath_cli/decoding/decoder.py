"""Decoder: a model that continues what it has read, pass by pass.

Shapes: B sequences, T new positions, V rows of the vocabulary.
"""

import warnings
from collections.abc import Sequence
from contextlib import nullcontext

import torch

from dualpath_cli.decoding.cache import Cache
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.sublayer import Sublayer
from dualpath_cli.spec.intervention import Intervention

ROOM = 256
"""Caches of compiled passes have a multiple of this many positions: each size is compiled anew."""
GRAPHS = 64
"""Graphs that one module may need: one for each length of a pass, draft or not, and batch."""


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
        """`autocast` is the type of matrix products; None: that of the weights.

        Unless `cached`, and under an intervention that needs it, every pass reads the whole text
        again. If `compiled`, the model is compiled in place, and passes after the prompt have
        static shapes. `draft` is a second intervention, with fewer loops, for drafting.
        """
        self.model = model.eval()
        self._intervention, self._draft, self._autocast = intervention, draft, autocast
        self._cached = cached and not (intervention and intervention.needs_whole_text)
        self._compiled = compiled and self._cached
        self._cache: Cache | None = None
        if self._compiled:
            compile_for_decoding(model, intervention)
        self.begin()

    @property
    def device(self) -> torch.device:
        return self.model.embed.weight.device

    @property
    def length(self) -> int:
        """Positions that were read, padding included."""
        return 0 if self._cache is None else self._cache.length

    @property
    def cache_bytes(self) -> int:
        """Memory of keys and values, unused capacity included."""
        return 0 if self._cache is None else self._cache.bytes

    def begin(self, capacity: int = 0) -> None:
        """Forgets what was read.

        `capacity` is the number of positions to come, if known; a compiled model reads no more.
        """
        self._past: list[tuple[torch.Tensor, torch.Tensor]] = []
        if not self._cached:
            return
        if not self._compiled:
            self._cache = Cache(self.model.config, capacity, draft=self._draft)
        elif self._cache is not None and capacity <= self._cache.capacity:
            self._cache.rewind(0)  # compiled code goes on with the same memory
        else:
            room = -(-capacity // ROOM) * ROOM
            self._cache = Cache(self.model.config, room, self.device, self._draft)

    def rewind(self, length: int) -> None:
        """Forgets what was read after the first `length` positions."""
        assert self._cache is not None
        self._cache.rewind(length)

    def select(self, rows: Sequence[int]) -> None:
        """Continues with these sequences of the batch."""
        if self._cache is not None:
            self._cache.select(rows)
        self._past = [(ids_BT[rows], mask_BT[rows]) for ids_BT, mask_BT in self._past]

    def next_logits(self, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Reads more tokens; returns the logits of the token after the last one, (B, V).

        `mask_BT` is False at padding.
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
        """Reads more tokens; returns the logits of the `last` positions, or of all, (B, T, V).

        If `drafting`, under the intervention for drafts.
        """
        if self._cache is None:
            mask_BT = torch.ones_like(ids_BT, dtype=torch.bool) if mask_BT is None else mask_BT
            self._past.append((ids_BT, mask_BT))
            ids_BT, mask_BT = (torch.cat(parts, dim=1) for parts in zip(*self._past, strict=True))
        padded = mask_BT is not None and not mask_BT.all()
        if self._compiled:
            # On a GPU each part is a CUDA graph of its own, and the next part reads its output: all
            # of a pass are one step, or a graph frees what the next one reads (pytorch#152887).
            torch.compiler.cudagraph_mark_step_begin()
        # Prompts are read eagerly: each length would be compiled anew.
        eagerly = self._compiled and self.length == 0
        stance = torch.compiler.set_stance("force_eager") if eagerly else nullcontext()
        enabled = self._autocast is not None
        with stance, torch.autocast(self.device.type, self._autocast, enabled=enabled):
            x_BTD = forward(
                self.model, ids_BT.to(self.device), cache=self._cache,
                attention_mask=mask_BT.to(self.device) if padded and mask_BT is not None else None,
                head=False, intervention=self._draft if drafting else self._intervention,
            )  # fmt: skip
            logits: torch.Tensor = self.model.head(x_BTD if last is None else x_BTD[:, -last:])
            return logits


def compile_for_decoding(model: DualPathLM, intervention: Intervention | None) -> None:
    """Compiles a model's parts in place, for passes of static shapes.

    Whole blocks if every token takes the same steps and paths; otherwise sublayers, as Python
    decides token by token which of them run. On a GPU they become CUDA graphs, so that each pass
    must begin with `torch.compiler.cudagraph_mark_step_begin`.
    """
    warnings.filterwarnings("ignore", message=".*TensorFloat32 tensor cores.*")  # not wanted
    config = torch.compiler.config
    config.recompile_limit = max(config.recompile_limit, GRAPHS)
    mode = "reduce-overhead" if model.embed.weight.device.type == "cuda" else None
    tokens_differ = intervention is not None and (
        intervention.halting is not None or intervention.skip is not None
    )
    if not tokens_differ:
        for block in model.blocks:
            block.compile(fullgraph=True, dynamic=False, mode=mode)
        return
    for module in model.modules():
        if isinstance(module, Sublayer):
            module.compile(fullgraph=True, mode=mode)
