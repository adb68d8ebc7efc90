"""Decoder: a model that continues a text pass by pass; may be compiled or recorded.

Shapes: B sequences, T new positions, D model width, V rows of the vocabulary.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import calculate_time_spent

from dualpath_cli.decoding.cache import Cache
from dualpath_cli.decoding.decoding_pass import DecodingPass, forward
from dualpath_cli.kernels.attention import attend
from dualpath_cli.kernels.cuda_graph import CudaGraph
from dualpath_cli.kernels.rotary import Rope
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.attention import Attention
from dualpath_cli.model.layer_pass import SublayerPass
from dualpath_cli.model.positions import Positions
from dualpath_cli.model.sublayer import Sublayer, SwiGLU
from dualpath_cli.spec.intervention import Intervention

ROOM = 256
"""Static caches have a multiple of this many positions: each size is compiled and
recorded."""
GRAPHS = 1 << 20
"""Most graphs: one for each kind of layer, length of a pass, draft or not, and batch.
Drafts may have 1,000 lengths, and beyond its limit torch.compile ends in an error."""
OPTIONS = {"coordinate_descent_tuning": True, "deterministic": True}
"""Of torch.compile. On a GPU the first turns products with one token into sums, fused
with the operations after them (464 instead of 377 tokens/s on an H200); with the second
no kernel that sums is chosen by time."""

RECORDERS: dict[str, Callable[..., Callable[[], torch.Tensor]]] = {"cuda": CudaGraph}
"""Recorders of work by type of device; on other devices work is not recorded."""


class Decoder:
    """A DualPathLM under an intervention, which keeps keys and values of the tokens
    read."""

    def __init__(
        self,
        model: DualPathLM,
        intervention: Intervention | None = None,
        autocast: torch.dtype | None = None,
        compiled: bool = False,
        draft: Intervention | None = None,
    ) -> None:
        """`autocast` is the type of matrix products; None: the type of the weights.

        If the intervention needs the whole text, every pass reads all tokens again. If
        `compiled`, the model is compiled in place, and passes after the prompt have
        static shapes. On a GPU passes of known capacity are recorded, compiled or not,
        unless Python decides which parts they run. `draft` is a second intervention,
        with fewer loops.
        """
        self.model = model.eval()
        self._intervention = intervention
        self._draft = draft
        self._autocast = autocast
        self._cached = not (intervention and intervention.needs_whole_text)
        self._compiled = compiled and self._cached
        self._cache: Cache | None = None

        tokens_differ = intervention is not None and (
            intervention.halting is not None or intervention.skip is not None
        )
        # In whole compiled blocks, experts and custom classes leave Python no decision
        # either.
        python_decides = not self._compiled and any(
            layer.n_experts or "." in layer.gate + layer.combination
            for layer in model.config.layers
        )
        recordable = self._cached and not tokens_differ and not python_decides
        self._record = RECORDERS.get(self.device.type) if recordable else None
        self._recordings: dict[Any, Recording] = {}
        self._recorded_memory: torch.Tensor | None = None  # of their cache
        self._recording_seconds = 0.0

        if self._compiled:
            compile_for_decoding(model, tokens_differ)
        self.begin()

    @property
    def device(self) -> torch.device:
        return self.model.embed.weight.device

    @property
    def length(self) -> int:
        """Positions that were read, padding included."""
        if self._cache is None:
            return sum(ids_BT.shape[1] for ids_BT, _ in self._past)
        return self._cache.length

    @property
    def cache_bytes(self) -> int:
        """Memory of keys and values, unused capacity included."""
        return 0 if self._cache is None else self._cache.bytes

    @property
    def preparing_seconds(self) -> float:
        """Seconds spent on compiling, in this process, and on recording."""
        return self._recording_seconds + _compiling_seconds()

    def begin(self, capacity: int = 0) -> None:
        """Forgets all tokens read.

        `capacity` is the number of positions to come, if known; with static shapes
        there is room for no more.
        """
        self._past: list[tuple[torch.Tensor, torch.Tensor]] = []
        if not self._cached:
            return

        config = self.model.config
        needs_static = self._compiled or (self._record is not None and capacity > 0)
        if not needs_static:
            self._cache = Cache(config, capacity, draft=self._draft)
            return

        # Compiled and recorded passes go on with the same memory, if that suffices.
        cache = self._cache
        if cache is not None and cache.static and capacity <= cache.capacity:
            cache.rewind(0)
        else:
            room = -(-capacity // ROOM) * ROOM
            self._cache = Cache(config, room, self.device, self._draft)

    def rewind(self, length: int) -> None:
        """Forgets all tokens after the first `length` positions."""
        assert self._cache is not None
        self._cache.rewind(length)

    def select(self, rows: Sequence[int]) -> None:
        """Continues with these sequences of the batch."""
        if self._cache is not None:
            self._cache.select(rows)
        self._past = [(ids_BT[rows], mask_BT[rows]) for ids_BT, mask_BT in self._past]

    def next_logits(self, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Reads more tokens; returns the logits of the token after the last one, (B,
        V).

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
        """Reads more tokens; returns the logits of the `last` positions, or of all, (B,
        T, V).

        If `drafting`, the intervention for drafts applies.
        """
        if self._cache is None:
            ids_BT, mask_BT = self._with_past(ids_BT, mask_BT)
        if mask_BT is not None and mask_BT.all():
            mask_BT = None

        # Prompts are read eagerly: each length would need a compilation.
        is_prompt = self.length == 0
        eagerly = self._compiled and is_prompt
        stance = torch.compiler.set_stance("force_eager") if eagerly else nullcontext()
        # Autocast caches cast weights until its end: a graph that runs later would lack
        # them.
        cast = torch.autocast(
            self.device.type,
            self._autocast,
            enabled=self._autocast is not None,
            cache_enabled=self._record is None,
        )
        with stance, cast:
            ids_BT = ids_BT.to(self.device)
            cache = self._cache
            is_static = cache is not None and cache.static is not None
            if self._record and is_static and not is_prompt and mask_BT is None:
                return self._recorded_logits(ids_BT, last, drafting)

            x_BTD = forward(
                self.model,
                ids_BT,
                cache=cache,
                attention_mask=None if mask_BT is None else mask_BT.to(self.device),
                head=False,
                intervention=self._draft if drafting else self._intervention,
            )
            return self._head(x_BTD, last)

    def _with_past(
        self, ids_BT: torch.Tensor, mask_BT: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All ids so far and their mask: without a cache each pass reads all again."""
        if mask_BT is None:
            mask_BT = torch.ones_like(ids_BT, dtype=torch.bool)
        self._past.append((ids_BT, mask_BT))

        ids, masks = zip(*self._past, strict=True)
        return torch.cat(ids, dim=1), torch.cat(masks, dim=1)

    def _head(self, x_BTD: torch.Tensor, last: int | None) -> torch.Tensor:
        """The logits of the `last` positions, or of all."""
        if last is not None:
            x_BTD = x_BTD[:, -last:]
        logits: torch.Tensor = self.model.head(x_BTD)
        return logits

    def _recorded_logits(
        self, ids_BT: torch.Tensor, last: int | None, drafting: bool
    ) -> torch.Tensor:
        """`logits`, recorded in the first pass of each kind, and replayed in later
        passes."""
        cache = self._cache
        assert cache is not None
        intervention = self._draft if drafting else self._intervention
        here = DecodingPass(intervention=intervention, cache=cache)
        like = self.model.embed.weight
        positions = here.positions(self.model.config, ids_BT, like)
        inputs: list[Any] = [ids_BT, cache.span.places, *positions.rope, positions.mask]

        # Recordings write to the memory of the cache that they were made with.
        if self._recorded_memory is not cache.memory:
            self._recordings = {}
            self._recorded_memory = cache.memory
        kind = (last, drafting, *(x.shape for x in inputs))
        if kind not in self._recordings:
            self._recordings[kind] = self._record_pass(cache, here, inputs, last)

        recording = self._recordings[kind]
        for own, new in zip(recording.inputs, inputs, strict=True):
            own.copy_(new)
        return recording.replay().clone()

    def _record_pass(
        self, cache: Cache, here: DecodingPass, inputs: list[Any], last: int | None
    ) -> "Recording":
        """Records a pass over copies of the inputs, which later passes overwrite."""
        assert self._record is not None
        start = time.perf_counter() - _compiling_seconds()
        own = [x.clone() for x in inputs]
        ids_BT, places, cos, sin, mask = own
        cache.span.places = places
        here.fixed = Positions(Rope(cos, sin), mask)

        def run_pass() -> torch.Tensor:
            x_BTD = self.model(
                ids_BT, intervention=here.intervention, head=False, model_pass=here
            )
            return self._head(x_BTD, last)

        others = [recording.replay for recording in self._recordings.values()]
        replay = self._record(run_pass, self.device, run_pass, others)
        self._recording_seconds += time.perf_counter() - _compiling_seconds() - start
        return Recording(own, replay)


class Recording(NamedTuple):
    """A recorded pass."""

    inputs: list[torch.Tensor]  # to be overwritten by those of the next pass
    replay: Callable[[], torch.Tensor]


def _compiling_seconds() -> float:
    """Seconds that torch.compile took in this process."""
    return calculate_time_spent().get("total_wall_time", 0.0)


def compile_for_decoding(model: DualPathLM, tokens_differ: bool) -> None:
    """Compiles a model's parts in place, for passes of static shapes.

    Whole blocks if every token takes the same steps and paths; otherwise sublayers, as
    Python decides token by token which sublayers run.
    """
    # It recommends TensorFloat32, which would round float32 models.
    warnings.filterwarnings("ignore", message=".*TensorFloat32 tensor cores.*")
    config = torch.compiler.config
    config.recompile_limit = GRAPHS
    config.accumulated_recompile_limit = GRAPHS

    if not tokens_differ:
        for block in model.blocks:
            block.compile(fullgraph=True, dynamic=False, options=OPTIONS)
        return

    for module in model.modules():
        if isinstance(module, Sublayer):
            module.compile(fullgraph=True, options=OPTIONS)


# Products of the same input joined into one: one launch instead of two or three


class JoinedAttention(Attention):
    """`Attention` without gradients: queries, keys and values by one product."""

    joined: torch.Tensor

    def forward(self, x_BTD: torch.Tensor, here: SublayerPass) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D)."""
        if here.shared is not None:
            return super().forward(x_BTD, here)

        parts = (self.q_proj, self.k_proj, self.v_proj)
        widths = [part.out_features for part in parts]
        q_BTC, k_BTC, v_BTC = F.linear(x_BTD, self.joined).split(widths, -1)

        rope, mask = here.positions
        q_BTHN = self._rotated_and_normed(q_BTC, self.q_norm, rope)
        k_BTHN = self._rotated_and_normed(k_BTC, self.k_norm, rope)
        v_BTHN = self._by_head(v_BTC)
        k_BSHN, v_BSHN = here.seen(k_BTHN, v_BTHN)

        mixed_BTHN = attend(q_BTHN, k_BSHN, v_BSHN, mask)
        return self.o_proj(mixed_BTHN.flatten(2))


class JoinedSwiGLU(SwiGLU):
    """`SwiGLU` without gradients: gate and up by one product."""

    joined: torch.Tensor

    def forward(self, x_BTD: torch.Tensor, here: SublayerPass) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D); has no auxiliary loss."""
        gate_BTC, up_BTC = F.linear(x_BTD, self.joined).chunk(2, -1)
        return self.down_proj(F.silu(gate_BTC) * up_BTC)


JOINED: dict[type[nn.Module], tuple[type[nn.Module], tuple[str, ...]]] = {
    Attention: (JoinedAttention, ("q_proj", "k_proj", "v_proj")),
    SwiGLU: (JoinedSwiGLU, ("gate_proj", "up_proj")),
}


def join_products(model: nn.Module) -> None:
    """Joins the products of a model in place; afterwards it can only decode.

    Parameters become views of the joined weights: memory and names stay the same.
    """
    for module in model.modules():
        shares_kv = isinstance(module, Attention) and not module.own_kv
        if type(module) not in JOINED or shares_kv:
            continue

        module.__class__, names = JOINED[type(module)]
        weights = [module.get_parameter(f"{name}.weight") for name in names]
        joined = torch.cat([weight.detach() for weight in weights])
        module.register_buffer("joined", joined, persistent=False)

        parts = joined.split([len(weight) for weight in weights])
        for weight, part in zip(weights, parts, strict=True):
            weight.data = part
