"""Causal attention for the CPU as matrix products over blocks of queries.

Products, softmax and its derivative are each one call on a block of queries and all
keys up to the block's end. The backward pass computes attention weights again from
queries and keys, so nothing of a block is kept. Times beside PyTorch's kernel are in
docs/benchmarks/speed.md.

Shapes: B batch, T positions, H heads, N head size; in a block G heads of some
sequences, R queries, S keys.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from dualpath_cli.kernels.operations import unused

AMX: bool = getattr(torch.cpu, "_is_amx_tile_supported", bool)()
"""Whether this CPU has AMX. With AMX, PyTorch's kernel is faster in the forward
pass."""

WEIGHTS = 2**19
"""Attention weights held at once, over several sequences and heads: 1 MiB of weights
stays in a core's cache, and one call for several heads costs less than one call for
each."""


@torch.library.custom_op(unused("blockwise_attention"), mutates_args=())
def blockwise_attention(
    q_BTHN: torch.Tensor,
    k_BTHN: torch.Tensor,
    v_BTHN: torch.Tensor,
    seen_BTT: torch.Tensor | None,
) -> torch.Tensor:
    """``softmax(q k^T) v`` where no query sees a later key, (B, T, H, N).

    Queries must be scaled by 1 / sqrt(N). Where the bool `seen_BTT` is False, a query
    does not see an earlier key either; every query must see its own key. In bf16 the
    scores of blocks are rounded to bf16 before the softmax; scores in PyTorch's kernel
    are not.
    """
    if AMX and seen_BTT is None:
        q_BHTN = q_BTHN.transpose(1, 2)
        k_BHTN = k_BTHN.transpose(1, 2)
        v_BHTN = v_BTHN.transpose(1, 2)
        out_BHTN = F.scaled_dot_product_attention(
            q_BHTN, k_BHTN, v_BHTN, is_causal=True, scale=1.0
        )
        return out_BHTN.transpose(1, 2).contiguous()

    (out_BTHN,) = _contiguous_like(q_BTHN)
    later_RR = _later(q_BTHN)
    T = q_BTHN.shape[1]

    for b, heads in _groups(q_BTHN):
        for queries, keys in _blocks(T):
            q_GRN = _by_head(q_BTHN[b, queries, heads])
            k_GSN = _by_head(k_BTHN[b, keys, heads])
            seen_bRS = None if seen_BTT is None else seen_BTT[b, queries, keys]
            p_GRS = _weights(q_GRN, k_GSN, later_RR, seen_bRS)

            v_GSN = _by_head(v_BTHN[b, keys, heads])
            out_GRN = torch.bmm(p_GRS, v_GSN)
            _put(out_BTHN[b, queries, heads], out_GRN)

    return out_BTHN


@torch.library.custom_op(unused("blockwise_attention_backward"), mutates_args=())
def _backward(
    grad_BTHN: torch.Tensor,
    q_BTHN: torch.Tensor,
    k_BTHN: torch.Tensor,
    v_BTHN: torch.Tensor,
    seen_BTT: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    grad_q, grad_k, grad_v = _contiguous_like(q_BTHN, k_BTHN, v_BTHN)
    # Gradients of keys and values are summed over all later blocks: not in bf16.
    wide = torch.promote_types(k_BTHN.dtype, torch.float32)
    later_RR = _later(q_BTHN)
    T = q_BTHN.shape[1]

    for b, heads in _groups(q_BTHN):
        for queries, keys in _blocks(T):
            q_GRN = _by_head(q_BTHN[b, queries, heads])
            k_GSN = _by_head(k_BTHN[b, keys, heads])
            v_GSN = _by_head(v_BTHN[b, keys, heads])
            grad_GRN = _by_head(grad_BTHN[b, queries, heads])
            seen_bRS = None if seen_BTT is None else seen_BTT[b, queries, keys]

            # The weights p again, and the gradients of p and of the scores s.
            p_GRS = _weights(q_GRN, k_GSN, later_RR, seen_bRS)
            grad_p_GRS = torch.bmm(grad_GRN, v_GSN.transpose(1, 2))
            grad_s_GRS = torch.ops.aten._softmax_backward_data(
                grad_p_GRS, p_GRS, -1, p_GRS.dtype
            )

            grad_q_GRN = torch.bmm(grad_s_GRS, k_GSN)
            _put(grad_q[b, queries, heads], grad_q_GRN)

            grad_k_GSN = torch.bmm(grad_s_GRS.transpose(1, 2), q_GRN)
            grad_v_GSN = torch.bmm(p_GRS.transpose(1, 2), grad_GRN)
            if keys.stop == T:  # the first block processed: it sees all keys
                sum_k_GTN = grad_k_GSN.to(wide)
                sum_v_GTN = grad_v_GSN.to(wide)
            else:
                sum_k_GTN[:, keys].add_(grad_k_GSN)
                sum_v_GTN[:, keys].add_(grad_v_GSN)

        _put(grad_k[b, :, heads], sum_k_GTN)
        _put(grad_v[b, :, heads], sum_v_GTN)

    return grad_q, grad_k, grad_v


def _queries(T: int) -> int:
    """The number of queries in a block."""
    # With more, more scores are masked away; with fewer, products are too small for
    # AMX.
    most = 256 if AMX and T >= 512 else 128
    return min(T, most)


def _groups(q_BTHN: torch.Tensor) -> Iterator[tuple[slice, slice]]:
    """Yields sequences and heads, as many as WEIGHTS allows."""
    B, T, H, _ = q_BTHN.shape
    weights_of_head = _queries(T) * T
    most = max(1, WEIGHTS // weights_of_head)
    n_heads = min(most, H)
    n_sequences = max(1, most // H)

    for b in range(0, B, n_sequences):
        sequences = slice(b, b + n_sequences)
        for head in range(0, H, n_heads):
            heads = slice(head, head + n_heads)
            yield sequences, heads


def _blocks(T: int) -> Iterator[tuple[slice, slice]]:
    """Yields a block's queries and the keys they see; last queries first."""
    for start in reversed(range(0, T, _queries(T))):
        end = min(start + _queries(T), T)
        yield slice(start, end), slice(0, end)


def _by_head(x_bRHN: torch.Tensor) -> torch.Tensor:
    """Contiguous (G, R, N): else each matrix product would make a contiguous copy."""
    return x_bRHN.transpose(1, 2).flatten(0, 1).contiguous()


def _put(place_bRHN: torch.Tensor, x_GRN: torch.Tensor) -> None:
    """Writes a tensor from `_by_head` back into its place."""
    place_bHRN = place_bRHN.transpose(1, 2)
    place_bHRN.copy_(x_GRN.view(place_bHRN.shape))


def _later(q_BTHN: torch.Tensor) -> torch.Tensor:
    """The addend of a block's scores at its queries' keys: -inf for later keys."""
    R = _queries(q_BTHN.shape[1])
    infinite_RR = torch.full(
        (R, R), -torch.inf, dtype=q_BTHN.dtype, device=q_BTHN.device
    )
    return infinite_RR.triu_(1)


def _weights(
    q_GRN: torch.Tensor,
    k_GSN: torch.Tensor,
    later_RR: torch.Tensor,
    seen_bRS: torch.Tensor | None,
) -> torch.Tensor:
    """Attention weights of the last R of S positions, (G, R, S)."""
    R = q_GRN.shape[1]
    scores_GRS = torch.bmm(q_GRN, k_GSN.transpose(1, 2))
    own_GRR = scores_GRS[:, :, -R:]
    own_GRR.add_(later_RR[:R, :R])

    if seen_bRS is not None:
        unseen_b1RS = ~seen_bRS[:, None]
        n_sequences = len(seen_bRS)
        scores_bHRS = scores_GRS.unflatten(0, (n_sequences, -1))
        scores_bHRS.masked_fill_(unseen_b1RS, -torch.inf)

    return scores_GRS.softmax(-1)


@blockwise_attention.register_fake
def _(
    q_BTHN: torch.Tensor,
    k_BTHN: torch.Tensor,
    v_BTHN: torch.Tensor,
    seen_BTT: torch.Tensor | None,
) -> torch.Tensor:
    (out_BTHN,) = _contiguous_like(q_BTHN)
    return out_BTHN


@_backward.register_fake
def _(
    grad_BTHN: torch.Tensor,
    q_BTHN: torch.Tensor,
    k_BTHN: torch.Tensor,
    v_BTHN: torch.Tensor,
    seen_BTT: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    grad_q, grad_k, grad_v = _contiguous_like(q_BTHN, k_BTHN, v_BTHN)
    return grad_q, grad_k, grad_v


def _contiguous_like(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors
    )


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs)


def _derivative(ctx, grad_BTHN):  # type: ignore[no-untyped-def]
    return *_backward(grad_BTHN, *ctx.saved_tensors), None


blockwise_attention.register_autograd(_derivative, setup_context=_save)
