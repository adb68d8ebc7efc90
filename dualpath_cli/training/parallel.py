"""Builds the model for one device or many: checkpoint, compile, shard, allocate, draw weights.

The order matters: recomputation belongs to a block's graph, a compiled block stays one graph within
its FSDP unit, and with sharding on the meta device no rank ever holds the whole model.

`run.activation_checkpointing`: `none` keeps all activations of a block for its backward pass.
`selective` keeps the outputs of matrix products and attention, and recomputes the rest: norms,
rotation, QK-norm, the product in SwiGLU, residual sums, the mixture of steps. No product and no
attention is computed twice (not verified for FlexAttention on a GPU in eager mode). `full` keeps
the block's input alone.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any, ClassVar, Literal

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from dualpath_cli.config import Checkpointing, Kind, ModelConfig
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.block import DualPathBlock
from dualpath_cli.model.layer_pass import LayerAuxiliary, LayerPass
from dualpath_cli.training.state.training_state import sharded_as
from dualpath_cli.training.step_loops import allow_graphs

KEPT_OPERATIONS = frozenset(
    ("aten::mm", "aten::addmm", "aten::bmm", "aten::_grouped_mm", "flex_attention",
     "aten::_scaled_dot_product_flash_attention",
     "aten::_scaled_dot_product_flash_attention_for_cpu",
     "aten::_scaled_dot_product_efficient_attention",
     "aten::_scaled_dot_product_cudnn_attention",
     "aten::_scaled_dot_product_fused_attention_overrideable")
)  # fmt: skip
"""Operations whose outputs `selective` keeps, without the name of an overload."""

OWN_OPERATIONS = "dualpath::"
"""Prefix of this package's custom operations, whose outputs `selective` keeps as well."""


def build_model(
    config: ModelConfig,
    seed: int | None = None,
    compile_blocks: bool = False,
    checkpointing: Checkpointing = "none",
    mesh: DeviceMesh | None = None,
    reduce_dtype: torch.dtype | None = None,
    std_factors: Mapping[Kind, float] = {},
) -> DualPathLM:
    """Returns a model on torch's default device or, sharded by FSDP2, on the devices of a mesh.

    Of a mesh of two dimensions the first replicates and the second shards. Gradients are reduced in
    `reduce_dtype`; None is their own. `seed` and `std_factors` (of `model.parameters`) decide the
    initial weights, not the number of devices. Without a seed weights are undefined until they are
    loaded (`weights.load_weights`).
    """
    device = torch.get_default_device() if mesh is None else torch.device(mesh.device_type)
    with torch.device("meta"):
        model = DualPathLM(config)
    for block in model.blocks:
        assert isinstance(block, DualPathBlock)
        checkpoint_block(block, checkpointing)
    if compile_blocks:
        # Block by block: the graph of one layer serves all layers of its kind. In place, so that
        # parameter names stay as they are.
        for block in model.blocks:
            block.compile()
        model.loss.compile()
        allow_graphs(len(set(config.layers)))
    if mesh is not None:
        # Weights stay and are gathered in float32, for autocast to cast: a unit's `param_dtype`
        # would round its norms, gains and router as well, which the model keeps in float32.
        policy = MixedPrecisionPolicy(reduce_dtype=reduce_dtype)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        # The root unit holds embedding, final norm and head: tied weights cannot be split.
        fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=device)
    model.tie_weights()
    if seed is not None:
        draw_weights(model, seed, std_factors)
    return model


def draw_weights(model: DualPathLM, seed: int, std_factors: Mapping[Kind, float] = {}) -> None:
    """Gives a model, sharded or not, the initial weights of a seed."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # else weights gathered in an earlier forward would be used again
    model.init_weights(seed, copy_whole, std_factors)


def copy_whole(parameter: torch.Tensor, value: torch.Tensor) -> None:
    """Copies a whole tensor, which every rank holds, into a parameter that may be sharded."""
    parameter.copy_(sharded_as(parameter, value))


@cache
def can_compile(device: torch.device) -> bool:
    """Whether torch.compile works, tried once on a tiny function; prints why if it does not.

    On the CPU it needs a C++ compiler and Python's headers, on a GPU Triton.
    """
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.zeros(8, device=device))
    except Exception as error:  # the run can go on without it
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        say = rank_zero_only(print)
        say(f"dualpath: running eagerly: torch.compile does not work here ({reason:.120})")
        return False
    return True


# Activations that are computed again


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
