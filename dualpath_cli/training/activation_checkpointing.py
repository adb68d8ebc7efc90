"""Which activations a block keeps for its backward pass, and which it recomputes.

`none` keeps all. `selective` keeps the outputs of matrix products and attention, and recomputes the
rest: norms, rotation, QK-norm, the product in SwiGLU, residual sums, the mixture of steps. No
product and no attention is computed twice (not verified for FlexAttention on a GPU in eager mode).
`full` keeps the block's input alone.
"""

import logging
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from dualpath_cli.config import Checkpointing
from dualpath_cli.model.block import DualPathBlock
from dualpath_cli.model.layer_pass import LayerAuxiliary, LayerPass

KEPT_OPERATIONS = frozenset(
    {
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::_grouped_mm",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_fused_attention_overrideable",
        "flex_attention",
    }
)
"""Operations whose outputs `selective` keeps, without the name of an overload."""

OWN_OPERATIONS = "dualpath::"
"""Prefix of this package's custom operations, whose outputs `selective` keeps as well."""


def checkpoint_block(block: DualPathBlock, checkpointing: Checkpointing) -> None:
    """Makes a block recompute activations; call it before compiling and sharding.

    As with `fully_shard`, only the block's class changes: its parameters keep their names.
    """
    if checkpointing != "none":
        # Silences a warning of every run: recomputed operations must not work in place.
        logging.getLogger("torch._higher_order_ops.wrap").setLevel(logging.ERROR)
        block.__class__ = {"selective": SelectiveBlock, "full": FullBlock}[checkpointing]


def chosen(setting: Literal["auto"] | Checkpointing, compiled: bool) -> Checkpointing:
    """Resolves `run.activation_checkpointing`: `auto` costs no time on a CPU.

    There `selective` is as fast as `none` for compiled blocks, and slower in eager mode. On a GPU
    neither was timed.
    """
    if setting != "auto":
        return setting
    return "selective" if compiled else "none"


def keeps(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Torch's policy function of `selective`: whether to keep an operation's output."""
    name = operation.name().partition(".")[0]
    if name in KEPT_OPERATIONS or name.startswith(OWN_OPERATIONS):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


class FullBlock(DualPathBlock):
    """A block that keeps its input alone."""

    options: ClassVar[dict[str, Any]] = {}
    """Further arguments of torch's `checkpoint`."""

    def forward(self, x_BTD: torch.Tensor, layer: LayerPass) -> torch.Tensor:
        """As DualPathBlock's; recomputes nothing without gradients or while a trace is written."""
        if layer.writes or not torch.is_grad_enabled():
            return super().forward(x_BTD, layer)
        forward = super().forward

        def with_own_losses(
            x_BTD: torch.Tensor,
        ) -> tuple[torch.Tensor, torch.Tensor | float, torch.Tensor | None]:
            # Recomputed blocks must not add to the caller's again.
            own = LayerAuxiliary()
            return forward(x_BTD, replace(layer, auxiliary=own)), own.loss, own.load

        y_BTD, loss, load = checkpoint(with_own_losses, x_BTD, use_reentrant=False,
                                       preserve_rng_state=False, **self.options)  # fmt: skip
        if layer.auxiliary is not None:
            layer.auxiliary.loss, layer.auxiliary.load = loss, load
        return y_BTD


class SelectiveBlock(FullBlock):
    """A block that keeps its input and the outputs of its matrix products and attention."""

    options: ClassVar = {"context_fn": partial(create_selective_checkpoint_contexts, keeps)}
