"""Which activations a block keeps for its backward pass, and which it computes again."""

from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

Checkpointing = Literal["none", "selective", "full"]

KEPT = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default}
"""Matrix products, whose results `selective` keeps beside those of attention."""


def checkpoint_block(block: nn.Module, policy: Checkpointing) -> None:
    """Lets a block compute its activations again in the backward pass: all, or the cheap ones.

    `selective` keeps the results of matrix products and of attention. Inside the compiled wrapper,
    so that a block is still one graph.
    """
    if policy == "none":
        return
    inner = block.forward
    contexts: dict[str, Any] = {}
    if policy == "selective":
        contexts["context_fn"] = partial(create_selective_checkpoint_contexts, keep_products)

    def forward(*arguments: Any) -> Any:
        return checkpoint(inner, *arguments, use_reentrant=False, **contexts)

    block.forward = forward


def keep_products(context: Any, operation: Any, *arguments: Any, **options: Any) -> Any:
    """The policy of `selective`."""
    keep = operation in KEPT or "attention" in str(operation)
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE
