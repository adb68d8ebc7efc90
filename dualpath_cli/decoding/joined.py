"""Products of the same input joined into one, which takes a device one launch for two or three.

Shapes: B batch, T positions, D model width.
"""

import torch
import torch.nn.functional as F
from torch import nn

from dualpath_cli.kernels.attention import attend
from dualpath_cli.model.attention import Attention
from dualpath_cli.model.layer_pass import SublayerPass
from dualpath_cli.model.sublayer import SwiGLU


class JoinedAttention(Attention):
    """`Attention` without gradients: queries, keys and values by one product."""

    joined: torch.Tensor

    def forward(self, x_BTD: torch.Tensor, here: SublayerPass) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D)."""
        widths = [part.out_features for part in (self.q_proj, self.k_proj, self.v_proj)]
        q_BTC, k_BTC, v_BTC = F.linear(x_BTD, self.joined).split(widths, -1)
        q_BTHN = self._rotated_and_normed(q_BTC, self.q_norm, here.positions.rope)
        k_BTHN = self._rotated_and_normed(k_BTC, self.k_norm, here.positions.rope)
        k_BSHN, v_BSHN = here.seen(k_BTHN, self._by_head(v_BTC))
        return self.o_proj(attend(q_BTHN, k_BSHN, v_BSHN, here.positions.mask).flatten(2))


class JoinedSwiGLU(SwiGLU):
    """`SwiGLU` without gradients: gate and up by one product."""

    joined: torch.Tensor

    def forward(self, x_BTD: torch.Tensor, here: SublayerPass) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D); has no auxiliary loss."""
        gate_BTC, up_BTC = F.linear(x_BTD, self.joined).chunk(2, -1)
        return self.down_proj(F.silu(gate_BTC) * up_BTC)


JOINED: dict[type[nn.Module], tuple[type[nn.Module], tuple[str, ...]]] = {
    Attention: (JoinedAttention, ("q_proj", "k_proj", "v_proj")),
    SwiGLU: (JoinedSwiGLU, ("gate_proj", "up_proj")),
}


def join_products(model: nn.Module) -> None:
    """Joins the products of a model that only decodes from now on, where it is.

    Its parameters become parts of the joined weights: no more memory, and names as before.
    """
    for module in model.modules():
        if type(module) in JOINED:
            module.__class__, names = JOINED[type(module)]
            weights = [module.get_parameter(f"{name}.weight") for name in names]
            joined = torch.cat([weight.detach() for weight in weights])
            module.register_buffer("joined", joined, persistent=False)
            for weight, rows in zip(
                weights, joined.split([len(weight) for weight in weights]), strict=True
            ):
                weight.data = rows
