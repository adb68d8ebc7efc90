"""What a block keeps for its backward pass and what it computes again instead.

`none` keeps all that the gradients need. `selective` keeps what matrix products and attention put
out, and computes again what lies between: norms, rotation, QK-norm, the product in SwiGLU, residual
sums, the mixture of steps. No product and no attention is computed twice (FlexAttention on a GPU in
eager mode has not been looked at). `full` keeps the block's
input alone.
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
from dualpath_cli.model import AuxiliaryLoss
from dualpath_cli.model.block import DualPathBlock
from dualpath_cli.model.layer_pass import LayerPass

KEPT_OPERATIONS = frozenset(
    {
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
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
"""Custom operations of this package, which are kept, too: each is worth a kernel of its own."""


def checkpoint_block(block: DualPathBlock, checkpointing: Checkpointing) -> None:
    """Lets a block compute again what it does not keep; call it before compiling and sharding.

    The block stays the module that it was, with the names of its parameters: as `fully_shard` does,
    this changes its class alone.
    """
    if checkpointing != "none":
        # Said once in every run: that what is computed again must not change anything in place.
        logging.getLogger("torch._higher_order_ops.wrap").setLevel(logging.ERROR)
        block.__class__ = {"selective": SelectiveBlock, "full": FullBlock}[checkpointing]


def chosen(setting: Literal["auto"] | Checkpointing, compiled: bool) -> Checkpointing:
    """Returns what `run.activation_checkpointing` means: `auto` costs no time on a CPU.

    There `selective` is no slower than `none` where blocks are compiled, but in eager mode it is
    (docs/benchmarks/memory.md). On a GPU neither was timed.
    """
    if setting != "auto":
        return setting
    return "selective" if compiled else "none"


def keeps(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """What `selective` does with an operation's output, as torch asks for it."""
    name = operation.name().partition(".")[0]
    if name in KEPT_OPERATIONS or name.startswith(OWN_OPERATIONS):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


class FullBlock(DualPathBlock):
    """A block that keeps its input alone."""

    choice: ClassVar[dict[str, Any]] = {}
    """What tells torch's `checkpoint` to keep more."""

    def forward(self, x_BTD: torch.Tensor, layer: LayerPass) -> torch.Tensor:
        """As DualPathBlock's. Nothing is computed again that would be written down twice, or
        without gradients.
        """
        if layer.writes or not torch.is_grad_enabled():
            return super().forward(x_BTD, layer)
        forward = super().forward

        def with_own_losses(x_BTD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | float]:
            # What is computed again must not add to the caller's sum again.
            own = AuxiliaryLoss()
            return forward(x_BTD, replace(layer, auxiliary=own)), own.total

        y_BTD, losses = checkpoint(with_own_losses, x_BTD, use_reentrant=False,
                                   preserve_rng_state=False, **self.choice)  # fmt: skip
        if layer.auxiliary is not None:
            layer.auxiliary.total = layer.auxiliary.total + losses
        return y_BTD


class SelectiveBlock(FullBlock):
    """A block that keeps its input and what its matrix products and attention put out."""

    choice: ClassVar = {"context_fn": partial(create_selective_checkpoint_contexts, keeps)}
