"""Experts: the FFN of the wide path as n SwiGLUs, of which each token takes k.

The paper names a sparse wide path as its next step; the equations are the field's:

    s = softmax(W_r x)                         a score of each expert
    C = the k experts of the largest s_i + b_i
    y = sum_{i in C} g_i SwiGLU_i(x),  g = softmax of (W_r x)_i over C

No token is dropped, whatever the load. Weights over the chosen experts are those of
Mixtral (arXiv 2401.04088, section 2.1). `balance` says how the load is evened out:

    bias    b_i grows by `rate` where expert i had less than the mean load in a step,
            and falls where it had more (arXiv 2408.15664, algorithm 1); it has no
            gradient and no part in g
    loss    rate * n / (k T) sum_i c_i P_i of each sequence, c_i the choices of expert i
            and P_i the mean of s_i over its T tokens (arXiv 2412.19437, eqs. 17 to 20),
            averaged over sequences: the same however they are divided among
            micro-batches and devices

Shapes: B batch, T positions, D model width, E experts, C chosen ones, S = B T, H an
expert's width.
"""

import torch
import torch.nn.functional as F
from torch import nn

from dualpath_cli.kernels.grouped_products import grouped_products
from dualpath_cli.model.layer_pass import SublayerPass
from dualpath_cli.spec.config import BALANCE_RATES, LayerConfig


class Experts(nn.Module):
    """``y = sum_{i in C} g_i SwiGLU_i(x)``, see above. Each matrix stacks the rows of
    all experts.

    Parameters have the names of a SwiGLU, and FSDP2 divides rows, not experts, among
    devices.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        d, n, width = config.d_model, config.n_experts, config.expert_width
        self.n, self.top_k, self.balance = n, config.top_k, config.balance
        given = config.balance_rate
        self.rate = BALANCE_RATES[config.balance] if given is None else given
        self.router = nn.Linear(d, n, bias=False)
        self.gate_proj = nn.Linear(d, n * width, bias=False)
        self.up_proj = nn.Linear(d, n * width, bias=False)
        self.down_proj = nn.Linear(width, n * d, bias=False)
        if config.balance == "bias":
            # A parameter, so that the bias is initialised, sharded, saved and exported,
            # too.
            self.balance_bias = nn.Parameter(torch.empty(n), requires_grad=False)

    def forward(self, x_BTD: torch.Tensor, here: SublayerPass) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D)."""
        logits_BTE = self.logits(x_BTD)
        scores_BTE = logits_BTE.softmax(-1)
        biased_BTE = (
            scores_BTE + self.balance_bias if self.balance == "bias" else scores_BTE
        )
        chosen_BTC = here.chosen(biased_BTE.detach(), self.top_k)
        weights_BTC = logits_BTE.gather(-1, chosen_BTC).softmax(-1)
        here.record_experts(chosen_BTC, weights_BTC)
        order_R, ends_E = self.sorted(chosen_BTC)
        if here.auxiliary is not None:
            here.auxiliary.load = torch.diff(
                ends_E.long(), prepend=ends_E.new_zeros(1).long()
            )
            if self.balance == "loss":
                here.auxiliary.loss = here.auxiliary.loss + self.loss(
                    scores_BTE, chosen_BTC
                )
        y_BTCD = self.outputs(x_BTD, order_R, ends_E).view(*chosen_BTC.shape, -1)
        return (weights_BTC[..., None] * y_BTCD).sum(-2)

    def logits(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """``W_r x``, (B, T, E), in the weights' type also under autocast."""
        with torch.autocast(x_BTD.device.type, enabled=False):
            logits_BTE: torch.Tensor = self.router(x_BTD.to(self.router.weight.dtype))
        return logits_BTE

    def sorted(self, chosen_BTC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The choices sorted by expert, (R = S C), and the end of each expert's
        choices, int32."""
        experts_R, order_R = chosen_BTC.flatten().sort(stable=True)
        each_E = torch.arange(self.n, device=experts_R.device)
        return order_R, torch.searchsorted(
            experts_R, each_E, right=True, out_int32=True
        )

    def outputs(
        self, x_BTD: torch.Tensor, order_R: torch.Tensor, ends_E: torch.Tensor
    ) -> torch.Tensor:
        """Outputs of the chosen experts for their tokens, (R, D), in the order of the
        choices."""
        kind = x_BTD.device.type
        if torch.is_autocast_enabled(kind):  # autocast misses grouped products
            x_BTD = x_BTD.to(torch.get_autocast_dtype(kind))
        gate_EHD, up_EHD, down_EDH = (
            projection.weight.to(x_BTD.dtype).unflatten(0, (self.n, -1))
            for projection in (self.gate_proj, self.up_proj, self.down_proj)
        )
        inverse_R = torch.empty_like(order_R).scatter_(
            0, order_R, torch.arange(len(order_R), device=order_R.device)
        )
        x_SD = x_BTD.flatten(0, 1)
        x_SCD = x_SD[:, None].expand(-1, len(order_R) // len(x_SD), -1)
        x_RD = Permuted.apply(x_SCD.flatten(0, 1), order_R, inverse_R)
        gate_RH = grouped_products(x_RD, gate_EHD, ends_E)
        h_RH = F.silu(gate_RH) * grouped_products(x_RD, up_EHD, ends_E)
        return Permuted.apply(
            grouped_products(h_RH, down_EDH, ends_E), inverse_R, order_R
        )

    def loss(self, scores_BTE: torch.Tensor, chosen_BTC: torch.Tensor) -> torch.Tensor:
        """The auxiliary loss, a 0-d tensor; `rate` where all experts have the same
        load."""
        choices_BX = chosen_BTC.flatten(1)
        counts_BE = torch.zeros_like(scores_BTE[:, 0]).scatter_add_(
            1, choices_BX, torch.ones_like(choices_BX, dtype=scores_BTE.dtype)
        )
        shares_BE = counts_BE * (self.n / choices_BX.shape[1])
        return self.rate * (shares_BE * scores_BTE.mean(1)).sum(-1).mean()


class Permuted(torch.autograd.Function):
    """Permutes rows; the backward pass permutes gradients by the inverse.

    Autograd's own backward pass would add gradients up, on a GPU in no fixed order.
    """

    @staticmethod
    def forward(ctx, x_RD, order_R, inverse_R):  # type: ignore[no-untyped-def]
        """Returns ``x[order]``, (R, D)."""
        ctx.save_for_backward(inverse_R)
        return x_RD[order_R]

    @staticmethod
    def backward(ctx, grad_RD):  # type: ignore[no-untyped-def]
        """Returns ``grad[inverse]``, (R, D)."""
        (inverse_R,) = ctx.saved_tensors
        return grad_RD[inverse_R], None, None
