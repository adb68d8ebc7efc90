"""Keys and values of earlier tokens; positions and masks of those that follow.

Exact: the steps of a deep path share weights, not states, so that each step has
different keys and values, and a dual layer keeps K + 1 of both; a layer of the core
keeps them for each repetition. `Intervention.kv_slots` keeps fewer.

Shapes: B batch, T positions of a pass, S positions including earlier passes, C
positions of capacity, R some rows of the batch, H heads, N head size, K loops.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

import torch
import torch.nn.functional as F

from dualpath_cli.kernels.attention import Mask
from dualpath_cli.kernels.rotary import Rope
from dualpath_cli.model.layer_pass import KeyValuePair, SublayerPass
from dualpath_cli.model.positions import Positions, rope_at
from dualpath_cli.spec.config import LayerConfig, ModelConfig
from dualpath_cli.spec.intervention import LEARNED, Intervention

UNWRITTEN = -2  # document number of positions that are not written yet


class KeysAndValues(Protocol):
    """The interface of a cache for attention."""

    def append(self, k_BTHN: torch.Tensor, v_BTHN: torch.Tensor) -> KeyValuePair:
        """Adds keys and values of T tokens; returns those of all S tokens so far, (B,
        S, H, N)."""


@dataclass
class CacheSpan:
    """The T positions of a pass, from `start` on."""

    start: int = 0
    # the positions if shapes are static; else the cache grows
    places: torch.Tensor | None = None


@dataclass
class KeyValueCache:
    """Keys and values of all tokens that one attention has seen, rotated and
    normalised.

    Written in place, so only for inference: the last step to write a shared slot
    overwrites others.
    """

    span: CacheSpan
    capacity: int = 0  # positions to allocate at once; the cache grows beyond them
    # (B, H, C, N), one head for each of `ModelConfig.n_kv_heads`
    keys: torch.Tensor | None = None
    values: torch.Tensor | None = None  # (B, H, C, N)

    def append(self, k_BTHN: torch.Tensor, v_BTHN: torch.Tensor) -> KeyValuePair:
        """Writes keys and values of a pass; returns those of all S tokens so far, (B,
        S, H, N).

        With static shapes returns all C positions; the mask hides positions not written
        yet.
        """
        k_BHTN = k_BTHN.transpose(1, 2)
        v_BHTN = v_BTHN.transpose(1, 2)
        places = self.span.places
        # With static shapes `start` is not read: its value would become part of the
        # compiled code.
        start = self.span.start if places is None else 0
        stop = start + k_BTHN.shape[1]

        # Positions of a head are adjacent in memory: the attention of one token then
        # reads twice as fast on a CPU.
        if self.keys is None or self.values is None or len(self.keys) != len(k_BHTN):
            B, H, _, N = k_BHTN.shape
            C = max(stop, self.capacity)
            self.keys = k_BHTN.new_zeros(B, H, C, N)
            self.values = v_BHTN.new_zeros(B, H, C, N)

        if places is not None:
            self.keys.index_copy_(2, places, k_BHTN)
            self.values.index_copy_(2, places, v_BHTN)
            return self.keys.transpose(1, 2), self.values.transpose(1, 2)

        self.keys[:, :, start:stop] = k_BHTN
        self.values[:, :, start:stop] = v_BHTN
        k_BHSN = self.keys[:, :, :stop]
        v_BHSN = self.values[:, :, :stop]
        return k_BHSN.transpose(1, 2), v_BHSN.transpose(1, 2)

    def reserve(self, count: int) -> None:
        """Makes room for twice `count` positions if there is none for `count`."""
        if self.keys is None or self.values is None or self.keys.shape[2] >= count:
            return

        more = (0, 0, 0, 2 * count - self.keys.shape[2])
        self.keys = F.pad(self.keys, more)
        self.values = F.pad(self.values, more)

    def select(self, rows: torch.Tensor) -> None:
        """Keeps these sequences of the batch, in this order."""
        if self.keys is not None and self.values is not None:
            self.keys = self.keys[rows]
            self.values = self.values[rows]


@dataclass
class RowsOfCache:
    """The cache of some sequences of a batch, which read one token each."""

    cache: KeyValueCache
    rows: torch.Tensor

    def append(self, k_R1HN: torch.Tensor, v_R1HN: torch.Tensor) -> KeyValuePair:
        """Writes one token's keys and values in each row; returns the rows' so far, (R,
        S, H, N).

        With static shapes returns all C positions.
        """
        keys_BHSN, values_BHSN = self.write(k_R1HN, v_R1HN)
        span = self.cache.span
        if span.places is None:
            keys_BHSN = keys_BHSN[:, :, : span.start + 1]
            values_BHSN = values_BHSN[:, :, : span.start + 1]

        k_RHSN = keys_BHSN.index_select(0, self.rows)
        v_RHSN = values_BHSN.index_select(0, self.rows)
        return k_RHSN.transpose(1, 2), v_RHSN.transpose(1, 2)

    def write(self, k_R1HN: torch.Tensor, v_R1HN: torch.Tensor) -> KeyValuePair:
        """Writes one token's keys and values in each row; returns the whole cache, (B,
        H, C, N)."""
        keys = self.cache.keys
        values = self.cache.values
        assert keys is not None
        assert values is not None

        span = self.cache.span
        place = span.start if span.places is None else span.places
        keys[self.rows, :, place] = k_R1HN[:, 0]
        values[self.rows, :, place] = v_R1HN[:, 0]
        return keys, values


@dataclass
class CachedSublayerPass(SublayerPass):
    """The pass of a sublayer that keeps keys and values."""

    cache: KeysAndValues | None = None

    def seen(self, k_BTHN: torch.Tensor, v_BTHN: torch.Tensor) -> KeyValuePair:
        """Adds keys and values to the cache, and returns those of all tokens so far."""
        if self.cache is None:
            return k_BTHN, v_BTHN
        return self.cache.append(k_BTHN.to(v_BTHN.dtype), v_BTHN)


@dataclass
class LayerCache:
    """The caches of an application of a layer: of its wide path, and the slots of its
    deep path's steps."""

    wide: KeysAndValues
    deep: list[KeysAndValues] = field(default_factory=list)

    def step(self, number: int) -> KeysAndValues:
        """The cache of a step, from 0."""
        return self.deep[number % len(self.deep)]


class Cache:
    """The cache of a model.

    Pass an empty one to `decoding_pass.forward` with a text's first tokens, then with
    more.
    """

    def __init__(
        self,
        config: ModelConfig,
        capacity: int = 0,
        static: torch.device | None = None,
        draft: Intervention | None = None,
    ) -> None:
        """`capacity` is the number of positions to allocate at once.

        With `static` shapes, on that device, the cache does not grow, and each pass
        works on the whole cache: one compiled or CUDA graph then serves all passes of
        equal length. `draft` is a second intervention, with fewer loops; call `rewind`
        to drop its positions before others follow.
        """
        self.config = config
        self.draft = draft
        self.capacity = capacity
        self.static = static

        self.span = CacheSpan()
        self.layers: list[list[LayerCache]] = []
        """The caches of each layer: one per repetition of the core, one outside it."""
        self.length = 0  # S, the positions seen so far, padding included
        self.intervention: Intervention | None = None  # of all passes but drafts
        self.documents_BS: torch.Tensor | None = None
        """Document of each position, numbered by `_documents_of`, (B, S), or (B, C)
        with static shapes; None while there is one document and no padding."""

    @property
    def bytes(self) -> int:
        """Memory of keys and values, unused capacity included."""
        total = 0
        for cache in self._caches():
            for x in (cache.keys, cache.values):
                if x is not None:
                    total += x.numel() * x.element_size()

        return total

    @property
    def memory(self) -> torch.Tensor | None:
        """The first attention's keys: another tensor once any keys have moved in
        memory."""
        for cache in self._caches():
            if cache.keys is not None:
                return cache.keys
        return None

    def begin(self, intervention: Intervention | None) -> None:
        """Begins a pass.

        Raises:
            ValueError: if earlier passes had another intervention, whose steps may lack
                the keys and values that this one needs.
        """
        if self.length == 0:
            # Emptied by `rewind`, a cache keeps its memory under the same intervention.
            if not self.layers or intervention != self.intervention:
                self.intervention = intervention
                self.open()
            return

        is_draft = self.draft is not None and intervention == self.draft
        if intervention != self.intervention and not is_draft:
            before = self.intervention.name if self.intervention else LEARNED
            now = intervention.name if intervention else LEARNED
            raise ValueError(
                f"{now}: the cache was begun with {before}; begin a new cache"
            )

    def open(self) -> None:
        """Makes an empty cache for each layer, with slots for the steps that it
        runs."""
        self.layers = []
        _, core, _ = self.config.stretches
        for number, layer in enumerate(self.config.layers):
            repetitions = self._repetitions(number) if number in core else 1
            slots = self._slots(number, layer)
            caches = [self._empty_cache(slots) for _ in range(repetitions)]
            self.layers.append(caches)

    def at(self, number: int, repetition: int) -> LayerCache:
        """The cache of a layer in a repetition of the core, both from 0."""
        caches = self.layers[number]
        return caches[repetition % len(caches)]

    def _empty_cache(self, slots: int) -> LayerCache:
        wide, *deep = (
            KeyValueCache(self.span, self.capacity) for _ in range(1 + slots)
        )
        return LayerCache(wide, list(deep))

    def _repetitions(self, number: int) -> int:
        """The number of caches of a layer in the core."""
        repetitions = self.config.core_loops
        if self.intervention is not None:
            repetitions = self.intervention.core_loops or repetitions

        change = self._change_within(number)
        slots = None if change is None else change.kv_slots
        return min(repetitions, slots or repetitions)

    def _slots(self, number: int, layer: LayerConfig) -> int:
        """The number of caches of a layer's deep path in one application."""
        if layer.block == "wide":
            return 0
        if layer.step_kv == "first":
            return 1

        change = self._change_within(number)
        if change is None:
            return layer.loops
        steps = change.loops or layer.loops
        return min(steps, change.kv_slots or steps)

    def _change_within(self, number: int) -> Intervention | None:
        """The intervention, if there is one, in a layer."""
        if self.intervention is None:
            return None
        return self.intervention.within(number)

    def select(self, rows: Sequence[int]) -> None:
        """Keeps these sequences of the batch, in this order; one may be repeated."""
        device = None if self.memory is None else self.memory.device
        chosen = torch.tensor(rows, device=device)
        for cache in self._caches():
            cache.select(chosen)
        if self.documents_BS is not None:
            self.documents_BS = self.documents_BS[chosen]

    def rewind(self, length: int) -> None:
        """Forgets all positions but the first `length`."""
        assert length <= self.length
        self.length = length
        if length == 0 or self.documents_BS is None:
            self.documents_BS = None
        elif self.static is not None:
            self.documents_BS[:, length:] = UNWRITTEN
        else:
            self.documents_BS = self.documents_BS[:, :length]

    def extend(
        self, count: int, documents_BT: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Adds `count` positions and returns the document numbers of all S, or C.

        Raises:
            ValueError: if static shapes leave no room for `count` positions.
        """
        start = self.length
        stop = start + count
        if self.static is not None and stop > self.capacity:
            raise ValueError(
                f"the cache has room for {self.capacity} positions, not for {stop}"
            )

        if documents_BT is not None:
            before_BS = self.documents_BS
            if before_BS is None:
                before_BS = documents_BT.new_zeros(len(documents_BT), start)
            self.documents_BS = torch.cat((before_BS[:, :start], documents_BT), dim=1)
            if self.static is not None:
                rest = (0, self.capacity - stop)
                self.documents_BS = F.pad(self.documents_BS, rest, value=UNWRITTEN)

        # All caches share the span.
        self.length = stop
        self.span.start = start
        if self.static is not None:
            self.span.places = torch.arange(start, stop, device=self.static)
        else:
            for cache in self._caches():
                cache.reserve(stop)

        return self.documents_BS

    def _caches(self) -> Iterator[KeyValueCache]:
        for layer in chain.from_iterable(self.layers):
            for cache in (layer.wide, *layer.deep):
                assert isinstance(cache, KeyValueCache)
                yield cache


def positions_in_cache(
    config: ModelConfig,
    tokens: torch.Tensor,
    attention_mask: torch.Tensor | None,
    cache: Cache,
    like: torch.Tensor,
) -> Positions:
    """Adds tokens (B, T) to a cache and returns their positions.

    `attention_mask` (B, T) is False at padding.
    """
    count = tokens.shape[1]
    places_T = torch.arange(cache.length, cache.length + count, device=tokens.device)
    starts_BT = None
    if config.document_start is not None:
        starts_BT = tokens == config.document_start
    documents_BT = _documents_of(tokens, starts_BT, attention_mask, cache.documents_BS)
    documents_BS = cache.extend(count, documents_BT)

    if documents_BS is None:
        mask: Mask | None = None
        if cache.static is not None:
            mask = _mask(None, places_T, cache.capacity)
        return Positions(rope_at(config, places_T, like), mask)

    places_BT = _places_in_documents(documents_BS)[:, places_T]
    mask = _mask(documents_BS, places_T, documents_BS.shape[1])
    return Positions(rope_at(config, places_BT, like), mask)


def _places_in_documents(documents_BS: torch.Tensor) -> torch.Tensor:
    """Positions, (B, S), that count from 0 in each document, without padding."""
    newest_BS = documents_BS.cummax(1).values
    before_BS = newest_BS.roll(1, dims=1)
    before_BS[:, 0] = -1
    begins_BS = documents_BS > before_BS

    is_token_BS = documents_BS >= 0
    seen_BS = is_token_BS.cumsum(1)
    first_BS = torch.where(begins_BS, seen_BS, 0).cummax(1).values
    return seen_BS - first_BS


def rows_of(positions: Positions, rows_R: torch.Tensor) -> Positions:
    """The positions of some sequences of the batch."""
    rope, mask = positions
    if rope.cos.dim() == 5:
        rope = Rope(*(table[rows_R] for table in rope))
    if mask is not None and mask.shape[0] > 1:
        mask = mask[rows_R]
    return Positions(rope, mask)


def _documents_of(
    tokens: torch.Tensor,
    starts_BT: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    before_BS: torch.Tensor | None,
) -> torch.Tensor | None:
    """Numbers the documents of positions, (B, T): from 0 on, and -1 for padding.

    A document begins where `starts_BT` is True; `attention_mask` (B, T) is False at
    padding; `before_BS` are the numbers of earlier positions. None: one document, no
    padding.
    """
    if starts_BT is None and attention_mask is None and before_BS is None:
        return None

    documents_BT = torch.zeros_like(tokens)
    if starts_BT is not None:
        if attention_mask is not None:
            # Padding is often end-of-text, too.
            starts_BT = starts_BT & attention_mask.bool()
        documents_BT = starts_BT.cumsum(1)
        if before_BS is not None:
            last_B1 = before_BS.amax(1, keepdim=True).clamp(min=0)
            documents_BT = documents_BT + last_B1

    if attention_mask is not None:
        documents_BT = documents_BT.masked_fill(~attention_mask.bool(), -1)
    return documents_BT


def _mask(documents_BS: torch.Tensor | None, places_T: torch.Tensor, S: int) -> Mask:
    """Mask of tokens at `places_T` over S positions: each sees itself and earlier
    tokens of its document; padding sees padding."""
    seen_TS = torch.arange(S, device=places_T.device) <= places_T[:, None]
    if documents_BS is None:
        return seen_TS[None, None]

    same_BTS = documents_BS[:, places_T, None] == documents_BS[:, None]
    return (seen_TS & same_BTS)[:, None]
