"""Decoding in float64, one token after the other, each with what it leaves out and what
it keeps.

Beside `tests/model/reference.py`, whose elementary functions it takes: here a token is
finished in all layers before the next one begins, so that what it sees of those before
it is looked up and not computed again. Without a line shared with
``dualpath_cli.model``.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

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

    def in_step(self, seen: list[list[Seen]], k: int, K: int) -> list[Seen]:
        """What it sees of the tokens before it in step k of K, from 1."""
        return [steps[self.written(past, k, K) - 1] for past, steps in enumerate(seen)]

    def in_repetition(
        self, caches: Caches, layer: int, r: int, R: int
    ) -> list[list[Seen]]:
        """What it sees of the tokens before it in repetition r of R of a layer, from
        1."""
        return [caches[layer, self.written(past, r, R)][past] for past in range(self.t)]

    def written(self, past: int, k: int, K: int) -> int:
        """The step of K that wrote what it sees of another token in step k.

        Tokens of one pass see each other in every step; one of an earlier pass left
        what the last step wrote into the slot of k.
        """
        if self.pass_of[past] == self.pass_of[self.t]:
            return k
        slots = min(self.saving.kv_slots or K, K)
        return max(step for step in range(1, K + 1) if (step - k) % slots == 0)


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
    caches: tuple[Caches, Caches] = defaultdict(list), defaultdict(list)  # deep, wide
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
    counts: list[int] = []

    def through(
        layers: list[int], x: Tensor, r: int = 1, stopped: bool = False
    ) -> Tensor:
        for layer in layers:
            x, count = _layer(weights, config, layer, r, x, place, caches, stopped)
            counts.append(count)
        return x

    x = through(prelude, weights["embed.weight"][token])
    if core:
        x = _core(weights, config, x, place.saving, partial(through, core))
    return through(coda, x), counts


def _core(
    weights: Weights,
    config: ModelConfig,
    e: Tensor,
    saving: Intervention,
    repeat: Callable[[Tensor, int, bool], Tensor],
) -> Tensor:
    """The core's output of one token, which may stop in it."""
    R = saving.core_loops or config.core_loops
    routed = config.core_combination == "router" and config.core_loops > 1
    remaining: Tensor | float = 1.0
    x, states, stopped = e, [], False
    for r in range(1, R + 1):
        if r > 1 and not stopped:
            x = reference.injected(weights, config, x, e)
        x = repeat(x, r, stopped)
        states.append(x)
        if routed and not stopped and r < R:
            router, trained = below(weights, "core"), config.core_loops
            q = reference.halting(router, config, x, r, R, trained)
            remaining = remaining * (1 - q)
        if routed and saving.halting is not None:
            stopped = bool(remaining <= saving.halting)
    # The state of a token that has stopped is that of all later repetitions.
    (y,) = reference.core_output(weights, config, [[state] for state in states])
    return y


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
    _, core, _ = stretches(config)
    R = (saving.core_loops or config.core_loops) if layer in core else 1
    g_d, g_w = 1.0, 1.0
    least = 0.0  # of a gate whose path is taken
    if own.block == "dual":
        g_d, g_w = reference.gates(below(here, "gate"), config, x)
        least = saving.skip or 0.0
    y, count = torch.zeros_like(x), 0
    if own.block != "wide":
        before = place.in_repetition(caches[0], layer, r, R)
        skipped = stopped or bool(g_d < least)
        h, count, kept = _deep(below(here, "deep"), own, x, before, place, skipped)
        caches[0][layer, r].append(kept)
        y = y + g_d * h
    if own.block != "loop":
        at, t = below(here, "wide.sublayer"), place.t
        before = place.in_repetition(caches[1], layer, r, R)
        itself = _seen(at, own, x, t)
        caches[1][layer, r].append([itself])
        h = x
        if not stopped and g_w >= least:
            s = reference.softplus(here["wide.gain"].sum())
            h = _sublayer(at, own, x, t, s, [*(seen for (seen,) in before), itself])
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
            seen = [*place.in_step(before, k, K), kept[-1]]
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
