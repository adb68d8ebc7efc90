"""Decoding in float64, one token after the other, each with what it leaves out and what
it keeps.

Beside `tests/model/reference.py`, whose elementary functions it takes: here a token is
finished in all layers before the next one begins, so that what it sees of those before
it is looked up and not computed again. Without a line shared with
``dualpath_cli.model``.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from tests.model import reference
from tests.model.reference import Weights, below

Seen = tuple[list[Tensor], list[Tensor]]
"""Keys and values of one token in one step, by head."""


def logits(
    weights: Weights,
    config: ModelConfig,
    tokens: Sequence[int],
    saving: Intervention,
    passes: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Logits (T, V) of one sequence, and the steps (T, L) that its tokens took.

    `passes` are the numbers of tokens that come together; by default one by one.
    """
    pass_of = [
        n for n, length in enumerate(passes or [1] * len(tokens)) for _ in range(length)
    ]
    wide: list[list[Seen]] = [[] for _ in reference.kinds(config)]  # [layer][token]
    # [layer][token][step]
    deep: list[list[list[Seen]]] = [[] for _ in reference.kinds(config)]
    out, taken = [], []
    for t, token in enumerate(tokens):
        x = weights["embed.weight"][token]
        counts = []
        for layer, kind in enumerate(reference.kinds(config)):
            here = below(weights, f"blocks.{layer}")
            g_d, g_w = 1.0, 1.0
            if kind == "dual":
                g_d, g_w = reference.gates(below(here, "gate"), config, x)
            total, count = torch.zeros_like(x), 0
            if kind != "wide":
                skipped = (
                    kind == "dual" and saving.skip is not None and g_d < saving.skip
                )
                states = below(here, "deep")
                h, count, kept = _deep(
                    states, config, x, t, deep[layer], pass_of, saving, skipped
                )
                deep[layer].append(kept)
                total = total + g_d * h
            if kind != "loop":
                at = below(here, "wide.sublayer")
                wide[layer].append(_seen(at, config, x, t))
                h = x
                if not (
                    kind == "dual" and saving.skip is not None and g_w < saving.skip
                ):
                    s = reference.softplus(here["wide.gain"].sum())
                    h = _sublayer(at, config, x, t, s, wide[layer])
                total = total + g_w * h
            x = total
            counts.append(count)
        out.append(_say(weights, config, x))
        taken.append(counts)
    return torch.stack(out), torch.tensor(taken)


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
    t: int,
    before: list[list[Seen]],
    pass_of: Sequence[int],
    saving: Intervention,
    skipped: bool,
) -> tuple[Tensor, int, list[Seen]]:
    """h_deep of token t, the steps that it took, and its keys and values in each
    step."""
    at = below(weights, "sublayer")
    trained = len(weights["gains"])
    K = saving.loops or trained
    slots = min(saving.kv_slots or K, K)
    last_in_slot = {k % slots: k for k in range(K)}
    remaining: Tensor | float = 1.0
    h, states, kept, frozen, count = x, [], [], skipped, 0
    for k in range(1, K + 1):
        film = reference.step_film(weights, config, k)
        # of the state that the step begins with
        kept.append(_seen(at, config, h, t, film))
        if not frozen:
            s = reference.softplus(weights["gains"][min(k, trained) - 1])
            others = [
                steps[k - 1]
                if pass_of[past] == pass_of[t]
                else steps[last_in_slot[(k - 1) % slots]]
                for past, steps in enumerate(before)
            ]
            h = _sublayer(at, config, h, t, s, [*others, kept[-1]], film)
            count += 1
            if k < K and config.combination == "router":
                remaining = remaining * (
                    1 - reference.halting(weights, config, h, k, K)
                )
            frozen = saving.halting is not None and bool(remaining <= saving.halting)
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
    normed = reference.filmed(
        film, 1, reference.rms_norm(u, weights["ffn_norm.weight"], eps)
    )
    return u + s * reference.ffn(below(weights, "ffn"), normed)


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


def _say(weights: Weights, config: ModelConfig, x: Tensor) -> Tensor:
    head = weights["embed.weight"] if config.tie_embeddings else weights["head.weight"]
    return head @ reference.rms_norm(x, weights["norm.weight"], config.norm_eps)
