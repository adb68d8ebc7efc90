"""Causal attention by the fastest kernel for a device, a type and a mask.

Shapes: B batch, T positions, S positions including cached ones, H heads, N head size.
"""

from contextlib import nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from dualpath_cli.kernels.blockwise_attention import AMX, blockwise_attention

Mask = torch.Tensor | BlockMask
"""The keys that each query may look at: blocks for FlexAttention, or bool (B, 1, T, S),
or (1, 1, T, S) for all sequences."""

BY_BLOCKS = range(64, 1536 if AMX else 2**31)
"""Numbers of positions for which attention by blocks beats PyTorch's CPU kernel."""

MASKED = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Kernels for gradients under a bool mask on a GPU: cuDNN's gradients are NaN if T %
128 = 64 (pytorch/pytorch#196678)."""
KERNELS = {
    "CUDNN_ATTENTION": "cuDNN",
    "FLASH_ATTENTION": "FlashAttention 2",
    "EFFICIENT_ATTENTION": "memory-efficient",
    "MATH": "products and softmax",
}
NEWER_CUDNN = (9, 15)
"""The first version whose kernel PyTorch prefers on Hopper: 60,000 tokens/s instead of
49,000."""

_flex_attention = torch.compile(flex_attention)  # uncompiled, it holds all scores


def attend(
    q_BTHN: torch.Tensor,
    k_BSHN: torch.Tensor,
    v_BSHN: torch.Tensor,
    mask: Mask | None = None,
) -> torch.Tensor:
    """Causal attention of the last T of S positions, (B, T, H, N).

    The result has the type of the values. Keys and values may have fewer heads, each
    for an equal number of neighbouring query heads. Without a `mask` every token looks
    at itself and at all earlier tokens.
    """
    T = q_BTHN.shape[1]
    S = k_BSHN.shape[1]
    dtype = v_BSHN.dtype
    device = v_BSHN.device.type

    # By blocks only whole sequences, in bfloat16 on the CPU.
    by_blocks = T == S and T in BY_BLOCKS and dtype == torch.bfloat16
    if by_blocks and device == "cpu":
        assert not isinstance(mask, BlockMask)
        return _attend_by_blocks(q_BTHN, k_BSHN, v_BSHN, mask)

    q_BHTN = q_BTHN.to(dtype).transpose(1, 2)
    k_BHSN = k_BSHN.to(dtype).transpose(1, 2)
    v_BHSN = v_BSHN.transpose(1, 2)
    shared = k_BSHN.shape[2] != q_BTHN.shape[2]

    if isinstance(mask, BlockMask):
        y_BHTN = _flex_attention(
            q_BHTN, k_BHSN, v_BHSN, block_mask=mask, enable_gqa=shared
        )
    else:
        causal = mask is None and T == S
        # The kernel's causal mask shows the first query only one key.
        if mask is None and 1 < T < S:
            all_TS = torch.ones(T, S, dtype=torch.bool, device=q_BTHN.device)
            mask = all_TS.tril(S - T)

        trains = mask is not None and torch.is_grad_enabled() and device == "cuda"
        with sdpa_kernel(MASKED) if trains else nullcontext():
            y_BHTN = F.scaled_dot_product_attention(
                q_BHTN,
                k_BHSN,
                v_BHSN,
                attn_mask=mask,
                is_causal=causal,
                enable_gqa=shared,
            )

    return y_BHTN.transpose(1, 2)


def _attend_by_blocks(
    q_BTHN: torch.Tensor,
    k_BTHN: torch.Tensor,
    v_BTHN: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    B, _, H, N = q_BTHN.shape
    shared = H // k_BTHN.shape[2]
    if shared > 1:
        k_BTHN = k_BTHN.repeat_interleave(shared, dim=2)
        v_BTHN = v_BTHN.repeat_interleave(shared, dim=2)

    # Queries are scaled before they are rounded.
    dtype = v_BTHN.dtype
    scale = N**-0.5
    q_BTHN = (q_BTHN * scale).to(dtype)
    k_BTHN = k_BTHN.to(dtype)

    seen_BTT = None
    if mask is not None:
        seen_BTT = mask[:, 0].expand(B, -1, -1)
    return blockwise_attention(q_BTHN, k_BTHN, v_BTHN, seen_BTT)


def kernel_on_gpu(
    heads: int,
    kv_heads: int,
    head_dim: int,
    length: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[str, str]:
    """PyTorch's kernel for training on a CUDA device, and advice on a faster kernel."""
    empty = partial(torch.empty, dtype=dtype, device=device, requires_grad=True)
    q_BHTN = empty(1, heads, length, head_dim)
    k_BHTN = empty(1, kv_heads, length, head_dim)
    choice = torch._fused_sdp_choice(
        q_BHTN, k_BHTN, k_BHTN, is_causal=True, enable_gqa=heads != kv_heads
    )
    backend = SDPBackend(choice).name
    kernel = KERNELS.get(backend, backend)

    number = torch.backends.cudnn.version() or 0
    major = number // 10_000
    minor = number // 100 % 100
    older = (major, minor) < NEWER_CUDNN
    capability, _ = torch.cuda.get_device_capability(device)
    hopper = capability == 9
    half_precision = dtype.itemsize == 2
    if not (hopper and older and half_precision):
        return kernel, ""

    wanted = ".".join(map(str, NEWER_CUDNN))
    cuda = str(torch.version.cuda)[:2]
    package = f"nvidia-cudnn-cu{cuda}>={wanted}"
    advice = (
        f"cuDNN {major}.{minor} is older than {wanted}, whose kernel is faster on this "
        f"GPU: pip install '{package}'"
    )
    return kernel, advice
