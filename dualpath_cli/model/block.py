"""The dual-path block: a looped deep path beside a wide path, added up by per-token gates.

Shapes: B batch, T positions, D model width, K loops.
"""

from functools import reduce

import torch
import torch.nn.functional as F
from torch import nn

from dualpath_cli.config import BlockKind, ModelConfig
from dualpath_cli.intervention import Intervention
from dualpath_cli.model.rope import Rope
from dualpath_cli.model.routing import LayerTrace
from dualpath_cli.model.sublayer import Sublayer


class DeepPath(nn.Module):
    """h_deep: one sublayer applied K times, its states mixed per token (Eqs. 2 and 3)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.d_ffn is not None  # ModelConfig refuses deep blocks without it
        self.config = config
        self.sublayer = Sublayer(config, config.d_ffn)
        self.gains = nn.Parameter(torch.empty(config.loops))
        if config.routes_steps:
            self.router = nn.Linear(config.d_model + 1, 1)

    def forward(
        self,
        x_BTD: torch.Tensor,
        rope: Rope,
        trace: LayerTrace | None = None,
        intervention: Intervention | None = None,
        token_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D); writes the step weights into `trace`.

        Of `intervention` the forced loops and the halting threshold matter here.
        """
        trained = self.config.loops
        forced = None if intervention is None else intervention.loops
        threshold = None if intervention is None else intervention.halting
        loops = trained if forced is None else forced
        h_BTD = x_BTD
        states, weights = [], []
        remaining_BT1 = torch.ones_like(x_BTD[..., :1])  # pi_k
        active_BT1 = torch.ones_like(remaining_BT1, dtype=torch.bool)
        for k in range(1, loops + 1):
            new_BTD = self.sublayer(h_BTD, F.softplus(self.gains[min(k, trained) - 1]), rope)
            h_BTD = new_BTD if threshold is None else torch.where(active_BT1, new_BTD, h_BTD)
            states.append(h_BTD)
            if self.config.routes_steps and k < loops:
                q_BT1 = self.step_probability(h_BTD, k, last=min(loops, trained))
                left_BT1 = remaining_BT1 * (1 - q_BT1)
                if threshold is None:
                    weights.append(remaining_BT1 * q_BT1)
                    remaining_BT1 = left_BT1
                    continue
                active_BT1 = active_BT1 & (left_BT1 > threshold)
                weights.append(torch.where(active_BT1, remaining_BT1 * q_BT1, remaining_BT1))
                remaining_BT1 = torch.where(active_BT1, left_BT1, 0)
                if not _any(active_BT1, token_mask):
                    weights[-1] = weights[-1] + remaining_BT1  # of padding, which keeps nobody
                    break
        run = len(states)
        if self.config.combination == "mean":
            weights = [remaining_BT1 / loops] * loops
        elif self.config.combination == "final":
            weights, states = [remaining_BT1], [h_BTD]
        elif len(weights) < run:
            weights.append(remaining_BT1)  # the last step takes what is left, so q_K is not needed
        if trace is not None:
            unused = (run - len(weights), loops - run)
            trace.step_weights = F.pad(torch.cat(weights, dim=-1), unused)
            trace.loops_run = run
        return reduce(torch.add, (w * h for w, h in zip(weights, states, strict=True)))

    def step_probability(self, h_BTD: torch.Tensor, k: int, last: int) -> torch.Tensor:
        """q_k = sigmoid(w . [h_k, step index] + b), (B, T, 1), in the router's own precision.

        The step index reaches 1 with the schedule's `last` step and stays there.
        """
        first = 1 if self.config.step_index == "zero_based" else 0
        index = min(1.0, (k - first) / max(1, last - 1))
        # The index is the same for all tokens: it joins the bias instead of widening h by one.
        weight, bias = self.router.weight, self.router.bias
        return _wide_linear(h_BTD, weight[:, :-1], bias + index * weight[:, -1]).sigmoid()


class WidePath(nn.Module):
    """h_wide: a sublayer with a bigger FFN, applied once (Eq. 4)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.d_ffn_wide is not None  # ModelConfig refuses wide blocks without it
        self.sublayer = Sublayer(config, config.d_ffn_wide)
        self.gain = nn.Parameter(torch.empty(1))  # not a scalar: FSDP2 shards dimension 0

    def forward(self, x_BTD: torch.Tensor, rope: Rope) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D)."""
        return self.sublayer(x_BTD, F.softplus(self.gain[0]), rope)


class PathGate(nn.Module):
    """Weights of the two paths per token: the paper's two sigmoids or one of its variants."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind = config.gate
        if self.kind != "fixed":
            self.proj = nn.Linear(config.d_model, 1 if self.kind == "convex" else 2)

    def forward(self, x_BTD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns (g_d, g_w), each (B, T, 1), for the block's input x."""
        if self.kind == "fixed":
            half = torch.full_like(x_BTD[..., :1], 0.5)
            return half, half
        logits = _wide_linear(x_BTD, self.proj.weight, self.proj.bias)
        if self.kind == "convex":
            g_BT1 = logits.sigmoid()
            return g_BT1, 1 - g_BT1
        gates_BT2 = logits.softmax(-1) if self.kind == "softmax" else logits.sigmoid()
        return gates_BT2[..., :1], gates_BT2[..., 1:]


class DualPathBlock(nn.Module):
    """One layer, Eq. 5: ``y = g_d h_deep + g_w h_wide``; `loop` and `wide` blocks keep one path."""

    def __init__(self, config: ModelConfig, kind: BlockKind) -> None:
        super().__init__()
        self.kind = kind
        if kind != "wide":
            self.deep = DeepPath(config)
        if kind != "loop":
            self.wide = WidePath(config)
        if kind == "dual":
            self.gate = PathGate(config)

    def forward(
        self,
        x_BTD: torch.Tensor,
        rope: Rope,
        trace: LayerTrace | None = None,
        intervention: Intervention | None = None,
        token_mask: torch.Tensor | None = None,
        order_B2T: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D) in the type of x; writes what it did into `trace`.

        `intervention` is what applies to this layer, `token_mask` to which of its tokens (see
        `DualPathLM.forward`); `order_B2T` belongs to shuffled gates: the positions that g_d and
        g_w are taken from.
        """
        h_deep = h_wide = None
        if self.kind != "wide":
            h_deep = self.deep(x_BTD, rope, trace, intervention, token_mask)
        if self.kind != "loop":
            h_wide = self.wide(x_BTD, rope)
        if trace is not None:
            trace.record_updates(x_BTD, h_deep, h_wide)
        if h_deep is not None and h_wide is not None:
            g_d, g_w = self.gate(x_BTD)
            if intervention is not None and intervention.gates is not None:
                g_d, g_w = _overridden(g_d, g_w, intervention.gates, token_mask, order_B2T)
            if trace is not None:
                trace.gate_deep, trace.gate_wide = g_d.squeeze(-1), g_w.squeeze(-1)
            return (g_d * h_deep + g_w * h_wide).to(x_BTD.dtype)
        only = h_wide if h_deep is None else h_deep
        assert only is not None
        return only.to(x_BTD.dtype)


def _overridden(
    g_d: torch.Tensor,
    g_w: torch.Tensor,
    gates: tuple[float, float] | str,
    token_mask: torch.Tensor | None,
    order_B2T: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gates (B, T, 1) in place of the learned ones: constants, or theirs in another order."""
    if order_B2T is not None:
        # Where `token_mask` is False the order is that of the positions themselves.
        return g_d.gather(1, order_B2T[:, 0, :, None]), g_w.gather(1, order_B2T[:, 1, :, None])
    assert not isinstance(gates, str)
    if token_mask is None:
        return torch.full_like(g_d, gates[0]), torch.full_like(g_w, gates[1])
    mask_BT1 = token_mask[..., None]
    return torch.where(mask_BT1, gates[0], g_d), torch.where(mask_BT1, gates[1], g_w)


def _any(active_BT1: torch.Tensor, token_mask: torch.Tensor | None) -> bool:
    """Whether any token, padding aside, goes on."""
    going = active_BT1 if token_mask is None else active_BT1 & token_mask[..., None]
    return bool(going.any())


def _wide_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A linear map in the weight's own type: a routing decision is worth more than bf16."""
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(x.to(weight.dtype), weight, bias)
