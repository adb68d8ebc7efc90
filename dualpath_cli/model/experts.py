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
    """``y = sum_{i in C} g_i SwiGLU_i(x)``, see above.

    Each matrix stacks the rows of all experts. Parameters have the names of a SwiGLU,
    and FSDP2 divides rows, not experts, among devices.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        d_model = config.d_model
        width = config.expert_width
        self.n = config.n_experts
        self.top_k = config.top_k

        self.balance = config.balance
        rate = config.balance_rate
        self.rate = BALANCE_RATES[self.balance] if rate is None else rate

        self.router = nn.Linear(d_model, self.n, bias=False)
        self.gate_proj = nn.Linear(d_model, self.n * width, bias=False)
        self.up_proj = nn.Linear(d_model, self.n * width, bias=False)
        self.down_proj = nn.Linear(width, self.n * d_model, bias=False)

        # A parameter, so that it is initialised, sharded, saved and exported, too.
        if self.balance == "bias":
            bias_E = torch.empty(self.n)
            self.balance_bias = nn.Parameter(bias_E, requires_grad=False)

    def forward(self, x_BTD: torch.Tensor, here: SublayerPass) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D)."""
        logits_BTE = self.logits(x_BTD)
        scores_BTE = logits_BTE.softmax(-1)
        biased_BTE = scores_BTE
        if self.balance == "bias":
            biased_BTE = scores_BTE + self.balance_bias

        chosen_BTC = here.chosen(biased_BTE.detach(), self.top_k)
        chosen_logits_BTC = logits_BTE.gather(-1, chosen_BTC)
        weights_BTC = chosen_logits_BTC.softmax(-1)
        here.record_experts(chosen_BTC, weights_BTC)

        order_R, ends_E = self.sorted(chosen_BTC)
        auxiliary = here.auxiliary
        if auxiliary is not None:
            first_E = ends_E.new_zeros(1).long()
            auxiliary.load = torch.diff(ends_E.long(), prepend=first_E)
            if self.balance == "loss":
                term = self.loss(scores_BTE, chosen_BTC)
                auxiliary.loss = auxiliary.loss + term

        # y = sum_{i in C} g_i SwiGLU_i(x)
        y_RD = self.outputs(x_BTD, order_R, ends_E)
        y_BTCD = y_RD.view(*chosen_BTC.shape, -1)
        weighted_BTCD = weights_BTC[..., None] * y_BTCD
        return weighted_BTCD.sum(-2)

    def logits(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """``W_r x``, (B, T, E), in the weights' type also under autocast."""
        with torch.autocast(x_BTD.device.type, enabled=False):
            logits_BTE: torch.Tensor = self.router(x_BTD.to(self.router.weight.dtype))
        return logits_BTE

    def sorted(self, chosen_BTC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The choices (R = S C) sorted by expert, and each expert's end, int32."""
        experts_R, order_R = chosen_BTC.flatten().sort(stable=True)
        each_E = torch.arange(self.n, device=experts_R.device)
        ends_E = torch.searchsorted(experts_R, each_E, right=True, out_int32=True)
        return order_R, ends_E

    def outputs(
        self, x_BTD: torch.Tensor, order_R: torch.Tensor, ends_E: torch.Tensor
    ) -> torch.Tensor:
        """Outputs of the chosen experts, (R, D), in the order of the choices."""
        # Autocast misses grouped products.
        device = x_BTD.device.type
        if torch.is_autocast_enabled(device):
            x_BTD = x_BTD.to(torch.get_autocast_dtype(device))

        gate_EHD = self._by_expert(self.gate_proj, x_BTD.dtype)
        up_EHD = self._by_expert(self.up_proj, x_BTD.dtype)
        down_EDH = self._by_expert(self.down_proj, x_BTD.dtype)

        # A token's row, once for each of its experts, moves to the rows of the expert.
        places_R = torch.arange(len(order_R), device=order_R.device)
        inverse_R = torch.empty_like(order_R).scatter_(0, order_R, places_R)
        x_SD = x_BTD.flatten(0, 1)
        n_chosen = len(order_R) // len(x_SD)
        x_SCD = x_SD[:, None].expand(-1, n_chosen, -1)
        x_RD = Permuted.apply(x_SCD.flatten(0, 1), order_R, inverse_R)

        gate_RH = grouped_products(x_RD, gate_EHD, ends_E)
        h_RH = F.silu(gate_RH) * grouped_products(x_RD, up_EHD, ends_E)
        y_RD = grouped_products(h_RH, down_EDH, ends_E)
        return Permuted.apply(y_RD, inverse_R, order_R)

    def _by_expert(self, projection: nn.Linear, dtype: torch.dtype) -> torch.Tensor:
        """The matrix of each expert, (E, rows, columns)."""
        return projection.weight.to(dtype).unflatten(0, (self.n, -1))

    def loss(self, scores_BTE: torch.Tensor, chosen_BTC: torch.Tensor) -> torch.Tensor:
        """The auxiliary loss, a 0-d tensor; `rate` where loads are equal."""
        # c_i, the choices of each expert in a sequence. In bfloat16 256 + 1 is 256.
        choices_BX = chosen_BTC.flatten(1)
        dtype = torch.promote_types(scores_BTE.dtype, torch.float32)
        ones_BX = torch.ones_like(choices_BX, dtype=dtype)
        none_BE = torch.zeros_like(scores_BTE[:, 0], dtype=dtype)
        counts_BE = none_BE.scatter_add_(1, choices_BX, ones_BX)

        # rate * n / (k T) sum_i c_i P_i
        shares_BE = counts_BE * (self.n / choices_BX.shape[1])
        loss_B = (shares_BE * scores_BTE.mean(1)).sum(-1)
        return self.rate * loss_B.mean()


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
