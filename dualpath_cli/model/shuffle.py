"""Shuffled gates: where each position of each layer gets its gates from.

Shapes: B batch, T positions, L layers.
"""

import hashlib

import torch


def shuffled_positions(
    tokens: torch.Tensor, token_mask: torch.Tensor | None, n_layers: int, seed: int
) -> torch.Tensor:
    """Where each position gets its g_d and its g_w from: (L, B, 2, T) int64, a permutation of T.

    `tokens` is (B, T). Positions where `token_mask` (B, T) is False are padding: they keep their
    own gates, and no token gets theirs. The permutations of a sequence depend on the seed and on
    its own tokens only: not on its batch, its padding or the device.
    """
    batch, length = tokens.shape
    tokens_BT = tokens.long().cpu()
    mask_BT = torch.ones_like(tokens_BT) if token_mask is None else token_mask.cpu()
    order_LB2T = torch.arange(length).repeat(n_layers, batch, 2, 1)
    for row in range(batch):
        (real,) = mask_BT[row].nonzero(as_tuple=True)
        content = f"{seed}/".encode() + tokens_BT[row, real].numpy().tobytes()
        digest = hashlib.blake2b(content, digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
        keys = torch.rand(n_layers, 2, len(real), generator=generator, dtype=torch.float64)
        order_LB2T[:, row][..., real] = real[keys.argsort(-1)]
    return order_LB2T.to(tokens.device)
