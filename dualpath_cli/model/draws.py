"""The draws of interventions: permutations of gates, and random scores of experts.

They depend only on the seed and on a row's tokens: not on the batch, the padding, the
device or torch's default type, which Lightning sets by the precision.

Shapes: B batch, T positions, E experts, L applications of layers.
"""

from collections.abc import Iterator

import torch

from dualpath_cli.base.seeds import seed_from


def shuffled_positions(
    tokens: torch.Tensor, token_mask: torch.Tensor | None, applications: int, seed: int
) -> torch.Tensor:
    """The position whose g_d, and whose g_w, each position gets, int64 (L, B, 2, T).

    Padding, where `token_mask` (B, T) is False, keeps its own gates, and no token gets
    the gates of padding.
    """
    batch, length = tokens.shape
    order_LB2T = torch.arange(length).repeat(applications, batch, 2, 1)

    for row, real, generator in _generators(tokens, token_mask, seed):
        shape = (applications, 2, len(real))
        keys = torch.rand(shape, generator=generator, dtype=torch.float64)
        order_LB2T[:, row][..., real] = real[keys.argsort(-1)]

    return order_LB2T.to(tokens.device)


def expert_draws(
    tokens: torch.Tensor,
    token_mask: torch.Tensor | None,
    applications: int,
    experts: int,
    seed: int,
) -> torch.Tensor:
    """Random scores that rank experts, float32 (L, B, T, E); 0 at padding."""
    whole_shape = (applications, *tokens.shape, experts)
    draws_LBTE = torch.zeros(whole_shape, dtype=torch.float32)

    for row, real, generator in _generators(tokens, token_mask, seed):
        shape = (applications, len(real), experts)
        scores = torch.rand(shape, generator=generator, dtype=torch.float32)
        draws_LBTE[:, row, real] = scores

    return draws_LBTE.to(tokens.device)


def _generators(
    tokens: torch.Tensor, token_mask: torch.Tensor | None, seed: int
) -> Iterator[tuple[int, torch.Tensor, torch.Generator]]:
    """Rows of `tokens` (B, T), their unpadded positions and their generators."""
    tokens_BT = tokens.long().cpu()
    mask_BT = torch.ones_like(tokens_BT) if token_mask is None else token_mask.cpu()

    for row, tokens_T in enumerate(tokens_BT):
        # Only of tokens that are not padding, which must not change the draws.
        (real,) = mask_BT[row].nonzero(as_tuple=True)
        content = tokens_T[real].numpy().tobytes()
        own_seed = seed_from(seed, content) >> 1
        yield row, real, torch.Generator().manual_seed(own_seed)
