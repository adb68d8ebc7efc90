"""Decoding in float64, one token after the other, each with what it leaves out and what
it keeps.

Beside `tests/model/reference.py`, whose elementary functions it takes: here a token is
finished in all layers before the next one begins, so that what it sees of those before
it is looked up and not computed again. Without a line shared with
``dualpath_cli.model``.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from tests.model import reference
from tests.model.layout import of_layer, stretches
from tests.model.reference import Weights, below

Seen = tuple[list[Tensor], list[Tensor]]
"""Keys and values of one token, by head."""
Caches = dict[tuple[int, int], list[list[Seen]]]
"""What is seen in each application, (layer, repetition): [token][step], where the wide
path has one step."""


@dataclass(frozen=True)
class Place:
    """One token: its position, how tokens come together, and what decoding leaves
    out."""

    t: int
    pass_of: Sequence[int]
    """The pass that each token comes in."""
    saving: Intervention

    def kept(self, seen: list[list[Seen]], k: int, K: int) -> list[Seen]:
        """What this token sees of those before it in step k of K, from 1.

        A token of an earlier pass is seen through the slot that step k shares: the
        last step that wrote the slot is what the slot holds.
        """
        last = self.last_in_slot(k, K)
        return [
            steps[(k if self._together(past) else last) - 1]
            for past, steps in enumerate(seen)
        ]

    def last_in_slot(self, k: int, K: int) -> int:
        """The last of K steps, or repetitions, that writes the slot of the k-th, from
        1."""
        slots = min(self.saving.kv_slots or K, K)
        return max(other for other in range(1, K + 1) if (other - k) % slots == 0)

    def _together(self, past: int) -> bool:
        return self.pass_of[past] == self.pass_of[self.t]

    def seen_in(self, caches: Caches, layer: int, r: int, R: int) -> list[list[Seen]]:
        """What this token sees of those before it in repetition r of R of a layer."""
        last = self.last_in_slot(r, R)
        return [
            caches[layer, r if self._together(past) else last][past]
            for past in range(self.t)
        ]


def logits(
    weights: Weights,
    config: ModelConfig,
    tokens: Sequence[int],
    saving: Intervention,
    passes: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Logits (T, V) of one sequence, and the steps (T, L) that its tokens took in each
    application of a layer.

    `passes` are the numbers of tokens that come together; by default one by one.
    """
    pass_of = [
        n for n, length in enumerate(passes or [1] * len(tokens)) for _ in range(length)
    ]
    caches = defaultdict(list), defaultdict(list)  # of deep paths, of wide ones
    out, taken = [], []
    for t, token in enumerate(tokens):
        place = Place(t, pass_of, saving)
        x, counts = _token(weights, config, token, place, caches)
        out.append(reference.say(weights, config, x))
        taken.append(counts)
    return torch.stack(out), torch.tensor(taken)


def _token(
    weights: Weights,
    config: ModelConfig,
    token: int,
    place: Place,
    caches: tuple[Caches, Caches],
) -> tuple[Tensor, list[int]]:
    """The state of a token behind all layers, and the steps that it took in each."""
    prelude, core, coda = stretches(config)
    counts = []

    def through(layers: list[int], x: Tensor, r: int = 1, stopped: bool = False):
        for layer in layers:
            x, count = _layer(weights, config, layer, r, x, place, caches, stopped)
            counts.append(count)
        return x

    x = through(prelude, weights["embed.weight"][token])
    if core:
        e, states = x, []
        R = place.saving.core_loops or config.core_loops
        routed = config.core_combination == "router" and config.core_loops > 1
        remaining: Tensor | float = 1.0
        stopped = False
        for r in range(1, R + 1):
            if r > 1 and not stopped:
                x = reference.injected(weights, config, x, e)
            x = through(core, x, r, stopped)
            states.append(x)
            if routed and not stopped and place.saving.halting is not None:
                if r < R:
                    q = reference.halting(
                        below(weights, "core"), config, x, r, R, config.core_loops
                    )
                    remaining = remaining * (1 - q)
                stopped = bool(remaining <= place.saving.halting)
        (x,) = reference.core_output(weights, config, [[state] for state in states])
    return through(coda, x), counts


def _layer(
    weights: Weights,
    config: ModelConfig,
    layer: int,
    r: int,
    x: Tensor,
    place: Place,
    caches: tuple[Caches, Caches],
    stopped: bool,
) -> tuple[Tensor, int]:
    """A token's state behind repetition r of a layer, and the steps that it took.

    One that has stopped is left as it is, and seen in all steps as it is.
    """
    here = reference.weights_of(weights, config, layer, r)
    own, saving = of_layer(config, layer), place.saving
    R = 1
    if config.core_loops > 1 or saving.core_loops:
        _, core, _ = stretches(config)
        R = (saving.core_loops or config.core_loops) if layer in core else 1
    g_d, g_w = 1.0, 1.0
    if own.block == "dual":
        g_d, g_w = reference.gates(below(here, "gate"), config, x)
    skips = own.block == "dual" and saving.skip is not None
    y, count = torch.zeros_like(x), 0
    if own.block != "wide":
        skipped = stopped or (skips and bool(g_d < saving.skip))
        seen = place.seen_in(caches[0], layer, r, R)
        h, count, kept = _deep(below(here, "deep"), own, x, seen, place, skipped)
        caches[0][layer, r].append(kept)
        y = y + g_d * h
    if own.block != "loop":
        at = below(here, "wide.sublayer")
        seen = place.seen_in(caches[1], layer, r, R)
        itself = _seen(at, own, x, place.t)
        caches[1][layer, r].append([itself])
        h = x
        if not stopped and not (skips and bool(g_w < saving.skip)):
            s = reference.softplus(here["wide.gain"].sum())
            h = _sublayer(at, own, x, place.t, s, [*(kept for (kept,) in seen), itself])
        y = y + g_w * h
    return (x if stopped else y), count


def batch_logits(
    weights: Weights,
    config: ModelConfig,
    tokens: Tensor,
    saving: Intervention,
    passes: Sequence[int] | None = None,
) -> Tensor:
    """Logits (B, T, V) of sequences (B, T)."""
    rows = [logits(weights, config, row, saving, passes)[0] for row in tokens.tolist()]
    return torch.stack(rows)


def _deep(
    weights: Weights,
    config: ModelConfig,
    x: Tensor,
    before: list[list[Seen]],
    place: Place,
    skipped: bool,
) -> tuple[Tensor, int, list[Seen]]:
    """h_deep of a token, the steps that it took, and its keys and values in each
    step."""
    trained = len(weights["gains"])
    saving = place.saving
    K = saving.loops or trained
    routed = config.combination == "router" and trained > 1
    remaining: Tensor | float = 1.0
    h, states, kept, frozen, count = x, [], [], skipped, 0
    for k in range(1, K + 1):
        at = reference.step_sublayer(weights, k)
        film = reference.step_film(weights, config, k)
        # of the state that the step begins with
        shared = config.step_kv == "first" and k > 1
        kept.append(kept[0] if shared else _seen(at, config, h, place.t, film))
        if not frozen:
            s = reference.softplus(weights["gains"][min(k, trained) - 1])
            seen = [*place.kept(before, k, K), kept[-1]]
            h = _sublayer(at, config, h, place.t, s, seen, film)
            count += 1
            if k < K and routed:
                q = reference.halting(weights, config, h, k, K, trained)
                remaining = remaining * (1 - q)
            if routed and saving.halting is not None:
                frozen = bool(remaining <= saving.halting)
        states.append(h)
    # A frozen state is that of all later steps: how they share what remains does not
    # matter.
    shares = reference.step_weights(weights, config, states)
    return (
        sum((w * state for w, state in zip(shares, states, strict=True)), 0 * x),
        count,
        kept,
    )


def _sublayer(
    weights: Weights,
    config: ModelConfig,
    x: Tensor,
    t: int,
    s: Tensor,
    seen: Sequence[Seen],
    film: Tensor | None = None,
) -> Tensor:
    """Phi(x; s) of token t, which looks at `seen`, the last of which is itself."""
    eps, group = config.norm_eps, config.n_heads // config.n_kv_heads
    N = config.d_model // config.n_heads
    normed = reference.filmed(
        film, 0, reference.rms_norm(x, weights["attn_norm.weight"], eps)
    )
    heads = []
    for j, head in enumerate((weights["attn.q_proj.weight"] @ normed).split(N)):
        q = reference.placed(below(weights, "attn"), config, "q_norm.weight", head, t)
        scores = torch.stack([q @ keys[j // group] / math.sqrt(N) for keys, _ in seen])
        shares = reference.softmax(scores)
        heads.append(
            sum(
                share * values[j // group]
                for share, (_, values) in zip(shares, seen, strict=True)
            )
        )
    u = x + s * (weights["attn.o_proj.weight"] @ torch.cat(heads))
    return reference.with_feed_forward(weights, config, u, s, film)


def _seen(
    weights: Weights, config: ModelConfig, x: Tensor, t: int, film: Tensor | None = None
) -> Seen:
    """What later tokens see of token t with state x."""
    normed = reference.rms_norm(x, weights["attn_norm.weight"], config.norm_eps)
    normed = reference.filmed(film, 0, normed)
    N, attn = config.d_model // config.n_heads, below(weights, "attn")
    keys = (attn["k_proj.weight"] @ normed).split(N)
    placed = [reference.placed(attn, config, "k_norm.weight", key, t) for key in keys]
    return placed, list((attn["v_proj.weight"] @ normed).split(N))
