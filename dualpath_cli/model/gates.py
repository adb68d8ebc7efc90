"""How much of each path a dual block takes per token: as learned (Eq. 5), or as overridden.

Shapes: B batch, T positions, D model width, L layers.
"""

import torch
from torch import nn

from dualpath_cli.classes import own_class
from dualpath_cli.config import GATE_OUTPUTS, ModelConfig
from dualpath_cli.intervention import SHUFFLED
from dualpath_cli.seeds import seed_from

Gates = tuple[torch.Tensor, torch.Tensor]
"""g_d and g_w, each (B, T, 1)."""


class PathGate(nn.Module):
    """Weights of the two paths per token: the paper's two sigmoids or one of its variants."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind = config.gate
        if n_outputs := GATE_OUTPUTS[self.kind]:
            self.proj = nn.Linear(config.d_model, n_outputs)

    def forward(self, x_BTD: torch.Tensor) -> Gates:
        """Returns (g_d, g_w) for the block's input x."""
        if self.kind == "fixed":
            half = torch.full_like(x_BTD[..., :1], 0.5)
            return half, half
        logits = self.proj(x_BTD)
        if self.kind == "convex":
            g_BT1 = logits.sigmoid()
            return g_BT1, 1 - g_BT1
        gates_BT2 = logits.softmax(-1) if self.kind == "softmax" else logits.sigmoid()
        return gates_BT2[..., :1], gates_BT2[..., 1:]


def path_gate(config: ModelConfig) -> nn.Module:
    """The gate of a dual block: a built-in one, or the class of one's own that is named.

    It maps the block's input (B, T, D) to `Gates`, in the type of its weights.
    """
    if config.gate in GATE_OUTPUTS:
        return PathGate(config)
    module: nn.Module = own_class(config, "gate")(config)
    return module


def overridden(
    learned: Gates,
    constants: tuple[float, float] | str,
    token_mask: torch.Tensor | None,
    order_B2T: torch.Tensor | None,
) -> Gates:
    """The gates in place of the learned ones: `Intervention.gates`, where `token_mask` is True.

    `order_B2T` belongs to shuffled gates: the positions that g_d and g_w are taken from, which
    are those of the tokens themselves where `token_mask` is False.
    """
    g_d, g_w = learned
    if constants == SHUFFLED:
        assert order_B2T is not None
        return g_d.gather(1, order_B2T[:, 0, :, None]), g_w.gather(1, order_B2T[:, 1, :, None])
    assert not isinstance(constants, str)
    if token_mask is None:
        return torch.full_like(g_d, constants[0]), torch.full_like(g_w, constants[1])
    mask_BT1 = token_mask[..., None]
    return torch.where(mask_BT1, constants[0], g_d), torch.where(mask_BT1, constants[1], g_w)


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
        content = tokens_BT[row, real].numpy().tobytes()
        generator = torch.Generator().manual_seed(seed_from(seed, content) >> 1)
        keys = torch.rand(n_layers, 2, len(real), generator=generator, dtype=torch.float64)
        order_LB2T[:, row][..., real] = real[keys.argsort(-1)]
    return order_LB2T.to(tokens.device)
