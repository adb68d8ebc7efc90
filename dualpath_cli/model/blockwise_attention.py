"""Causal attention for the CPU as matrix products over blocks of queries, forward and backward.

PyTorch's own kernel for the CPU spends two to four times as long on its backward pass as its
matrix products take in bf16; here products, softmax and its derivative are each one call on a block
of queries and the keys up to its end. Nothing of a block is kept for the backward pass, which
computes its weights again from queries and keys (docs/benchmarks/speed.md has the times).

Shapes: B sequences, G sequences times heads, T positions, N head size, R queries of a block, S its
keys.
"""

from collections.abc import Iterator

import torch

QUERIES = 128
"""Queries of a block. More compute more that the causal mask throws away, fewer make small
products."""

WEIGHTS = 2**19
"""Attention weights held at once, for as many heads as that allows: 1 MiB of them stays in a
core's cache."""


@torch.library.custom_op("dualpath::blockwise_attention", mutates_args=())
def blockwise_attention(
    q_GTN: torch.Tensor,
    k_GTN: torch.Tensor,
    v_GTN: torch.Tensor,
    seen_BTT: torch.Tensor | None,
) -> torch.Tensor:
    """``softmax(q k^T) v`` where no query sees a later key, (G, T, N).

    Queries come scaled by 1 / sqrt(N). Where `seen_BTT`, of bool and for G / B neighbouring heads
    each, is False, a query does not see an earlier key either; it must see itself. In bf16 scores
    are rounded to bf16 before the softmax.
    """
    out_GTN = torch.empty_like(q_GTN)
    later_RR = _later(q_GTN)
    for heads, queries, keys in _blocks(q_GTN):
        hidden_GRS = _hidden(seen_BTT, q_GTN, heads, queries, keys)
        p_GRS = _weights(q_GTN[heads, queries], k_GTN[heads, keys], later_RR, hidden_GRS)
        out_GTN[heads, queries] = torch.bmm(p_GRS, v_GTN[heads, keys])
    return out_GTN


@torch.library.custom_op("dualpath::blockwise_attention_backward", mutates_args=())
def _backward(
    grad_GTN: torch.Tensor,
    q_GTN: torch.Tensor,
    k_GTN: torch.Tensor,
    v_GTN: torch.Tensor,
    seen_BTT: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    grad_q = torch.empty_like(q_GTN)
    # Keys and values gather from all later blocks: not in bf16.
    wide = torch.promote_types(k_GTN.dtype, torch.float32)
    grad_k = torch.zeros_like(k_GTN, dtype=wide)
    grad_v = torch.zeros_like(v_GTN, dtype=wide)
    later_RR = _later(q_GTN)
    for heads, queries, keys in _blocks(q_GTN):
        # Products copy what is not contiguous, and each of these is in two of them.
        q_GRN, grad_GRN = q_GTN[heads, queries].contiguous(), grad_GTN[heads, queries].contiguous()
        k_GSN = k_GTN[heads, keys].contiguous()
        hidden_GRS = _hidden(seen_BTT, q_GTN, heads, queries, keys)
        p_GRS = _weights(q_GRN, k_GSN, later_RR, hidden_GRS)
        grad_v[heads, keys].add_(torch.bmm(p_GRS.transpose(1, 2), grad_GRN))
        grad_p_GRS = torch.bmm(grad_GRN, v_GTN[heads, keys].transpose(1, 2))
        grad_s_GRS = torch.ops.aten._softmax_backward_data(grad_p_GRS, p_GRS, -1, p_GRS.dtype)
        grad_q[heads, queries] = torch.bmm(grad_s_GRS, k_GSN)
        grad_k[heads, keys].add_(torch.bmm(grad_s_GRS.transpose(1, 2), q_GRN))
    return grad_q, grad_k.to(k_GTN.dtype), grad_v.to(v_GTN.dtype)


def _blocks(q_GTN: torch.Tensor) -> Iterator[tuple[slice, slice, slice]]:
    """Yields heads, queries and the keys that the last of these queries sees."""
    G, T, _ = q_GTN.shape
    n_heads = max(1, WEIGHTS // (QUERIES * T))
    for head in range(0, G, n_heads):
        for start in range(0, T, QUERIES):
            end = min(start + QUERIES, T)
            yield slice(head, head + n_heads), slice(start, end), slice(0, end)


def _later(q_GTN: torch.Tensor) -> torch.Tensor:
    """What a block adds to its scores for the keys of its own queries: -inf for later ones."""
    R = min(QUERIES, q_GTN.shape[1])
    return torch.full((R, R), -torch.inf, dtype=q_GTN.dtype, device=q_GTN.device).triu_(1)


def _hidden(
    seen_BTT: torch.Tensor | None, q_GTN: torch.Tensor, heads: slice, queries: slice, keys: slice
) -> torch.Tensor | None:
    """Which keys of a block the queries do not see, (G, R, S); None without a mask."""
    if seen_BTT is None:
        return None
    G, B = len(q_GTN), len(seen_BTT)
    sequences = torch.arange(G, device=q_GTN.device)[heads] // (G // B)
    return ~seen_BTT[:, queries, keys][sequences]


def _weights(
    q_GRN: torch.Tensor,
    k_GSN: torch.Tensor,
    later_RR: torch.Tensor,
    hidden_GRS: torch.Tensor | None,
) -> torch.Tensor:
    """Attention weights of the last R of S positions, (G, R, S)."""
    R = q_GRN.shape[1]
    scores_GRS = torch.bmm(q_GRN, k_GSN.transpose(1, 2))
    scores_GRS[:, :, -R:].add_(later_RR[:R, :R])
    if hidden_GRS is not None:
        scores_GRS.masked_fill_(hidden_GRS, -torch.inf)
    return scores_GRS.softmax(-1)


@blockwise_attention.register_fake
def _(
    q_GTN: torch.Tensor,
    k_GTN: torch.Tensor,
    v_GTN: torch.Tensor,
    seen_BTT: torch.Tensor | None,
) -> torch.Tensor:
    return torch.empty_like(q_GTN)


@_backward.register_fake
def _(
    grad_GTN: torch.Tensor,
    q_GTN: torch.Tensor,
    k_GTN: torch.Tensor,
    v_GTN: torch.Tensor,
    seen_BTT: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(q_GTN), torch.empty_like(k_GTN), torch.empty_like(v_GTN)


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs)


def _derivative(ctx, grad_GTN):  # type: ignore[no-untyped-def]
    return *_backward(grad_GTN.contiguous(), *ctx.saved_tensors), None


blockwise_attention.register_autograd(_derivative, setup_context=_save)
