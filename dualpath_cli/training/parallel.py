"""Builds the model for one device or many: checkpoint, compile, shard, allocate, draw weights.

The order matters: recomputation belongs to a block's graph, a compiled block stays one graph within
its FSDP unit, and with sharding on the meta device no rank ever holds the whole model.
"""

from collections.abc import Mapping
from functools import cache

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from dualpath_cli.config import Checkpointing, Kind, ModelConfig
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.block import DualPathBlock
from dualpath_cli.training.activation_checkpointing import checkpoint_block
from dualpath_cli.training.state.training_state import sharded_as


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
