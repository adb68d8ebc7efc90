"""Builds the model for one device or many, and Lightning's strategies.

The order matters: checkpoint, compile, shard, allocate, draw weights. Recomputation
belongs to a block's graph, a compiled block stays one graph within its FSDP unit, and
with sharding on the meta device no rank ever holds the whole model.

`run.activation_checkpointing`: `none` keeps all activations of a block for its backward
pass. `selective` keeps the outputs of matrix products and attention, and recomputes all
else (in eager mode on a GPU not verified for FlexAttention). `full` keeps only
the block's input.

`trainer.strategy`; each reduces gradients with the last micro-batch of a step:

    single   one device
    ddp      each device holds all; gradients are all-reduced
    fsdp     FSDP2: weights, gradients and moments are divided among all devices
    hsdp     the three are divided within a group of devices, a node. Gradients are
             reduce-scattered within groups, then all-reduced across groups
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from dualpath_cli.base.errors import UserError
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.block import DualPathBlock
from dualpath_cli.model.layer_pass import LayerAuxiliary, LayerPass
from dualpath_cli.recipe.settings import RunSettings
from dualpath_cli.run.checkpoint_folder import read_checkpoint, write_checkpoint
from dualpath_cli.run.weights import whole
from dualpath_cli.spec.config import Checkpointing, Kind, ModelConfig
from dualpath_cli.training import internals

KEPT_OPERATIONS = frozenset(
    (
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::_grouped_mm",
        "flex_attention",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_fused_attention_overrideable",
    )
)
"""Operations whose outputs `selective` keeps, without overload names; the operations of
this package are kept as well."""
BY_RULE = {"deterministic": True}
"""Options of torch.compile: kernels that sum are chosen by rule. Chosen by time, as is
the default, they round differently from process to process. Lightning's Trainer resets
the global setting."""


def build_model(
    config: ModelConfig,
    seed: int | None = None,
    compile_blocks: bool = False,
    checkpointing: Checkpointing = "none",
    mesh: DeviceMesh | None = None,
    reduce_dtype: torch.dtype | None = None,
    std_factors: Mapping[Kind, float] = {},
) -> DualPathLM:
    """Returns a model on torch's default device or, sharded, on a mesh.

    Of a mesh of two dimensions the first replicates and the second shards. Gradients
    are reduced in `reduce_dtype`; None is the gradients' type. Initial weights depend
    on `seed` and `std_factors` (of `model.parameters`), not on the number of devices.
    Without a seed weights are undefined until they are loaded (`run/weights.py`).
    """
    with torch.device("meta"):
        model = DualPathLM(config)
    for block in model.blocks:
        assert isinstance(block, DualPathBlock)
        checkpoint_block(block, checkpointing)

    # Block by block: the graph of one layer serves all layers of its kind. In place, so
    # that parameter names do not change.
    if compile_blocks:
        for block in model.blocks:
            block.compile(options=BY_RULE)
        model.loss.compile(options=BY_RULE)
        raise_recompile_limit(len(set(config.layers)))
        internals.keep_blocks_whole()

    # Weights are kept and gathered in float32, and autocast casts them: a unit's
    # `param_dtype` would also round norms, gains and router, which the model keeps in
    # float32.
    if mesh is not None:
        policy = MixedPrecisionPolicy(reduce_dtype=reduce_dtype)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        # The root unit holds embedding, final norm and head: tied weights cannot be
        # split.
        fully_shard(model, mesh=mesh, mp_policy=policy)

    device = torch.get_default_device()
    if mesh is not None:
        device = torch.device(mesh.device_type)
    model.to_empty(device=device)
    model.tie_weights()
    if seed is not None:
        model.init_weights(seed, _copy_sharded, std_factors)
    return model


def sharded_as(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Returns a tensor that each rank has whole, sharded if the parameter is."""
    if not isinstance(parameter, DTensor):
        return value

    return distribute_tensor(
        value.to(parameter.device, parameter.dtype),
        parameter.device_mesh,
        parameter.placements,
        src_data_rank=None,  # each rank cuts its own shard: nothing is sent
    )


def whole_weight(model: DualPathLM, name: str) -> torch.Tensor:
    """A weight of the model whole on each rank, without gradients; all ranks call."""
    if isinstance(model, FSDPModule):
        # An earlier forward gathered the weight, and may free it.
        model.reshard()
    return whole(model.get_parameter(name)).detach()


def _copy_sharded(parameter: torch.Tensor, value: torch.Tensor) -> None:
    parameter.copy_(sharded_as(parameter, value))


def raise_recompile_limit(variants: int) -> None:
    """Lets torch.compile keep graphs for `variants` of blocks.

    Beyond its limit it would run eagerly. A variant is a kind of block with its widths
    and number of loops.
    """
    config = torch.compiler.config
    # A variant has at most 4 graphs: with and without gradients, of any and of the
    # first length.
    config.recompile_limit = max(config.recompile_limit, 4 * variants)


@cache
def why_not_compiled(device: torch.device) -> str:
    """Why torch.compile does not work, or nothing; tried once.

    On the CPU it needs a C++ compiler and Python's headers, on a GPU Triton.
    """
    try:
        compiled = torch.compile(lambda x: x.sin() + 1)
        compiled(torch.zeros(8, device=device))
    except Exception as error:  # the run can continue eagerly
        lines = str(error).strip().splitlines()
        return lines[0] if lines else repr(error)

    return ""


# Activations that are computed again


def checkpoint_block(block: DualPathBlock, checkpointing: Checkpointing) -> None:
    """Makes a block recompute activations, before compiling and sharding."""
    if checkpointing == "none":
        return

    # Silences a warning of every run: recomputed operations must not work in place.
    logging.getLogger("torch._higher_order_ops.wrap").setLevel(logging.ERROR)
    block.__class__ = SelectiveBlock if checkpointing == "selective" else FullBlock


def resolve_checkpointing(
    setting: Literal["auto"] | Checkpointing, compiled: bool
) -> Checkpointing:
    """Resolves `auto`.

    `selective` costs no time in compiled blocks, within 3 % on an H200.
    """
    if setting != "auto":
        return setting
    return "selective" if compiled else "none"


def keep_or_recompute(
    context: Any, operation: Any, *args: Any, **kwargs: Any
) -> CheckpointPolicy:
    """Torch's policy of `selective`: whether to keep an operation's output."""
    name = operation.name().partition(".")[0]
    if name in KEPT_OPERATIONS or name.startswith("dualpath::"):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


class FullBlock(DualPathBlock):
    options: ClassVar[dict[str, Any]] = {}  # further arguments of torch's `checkpoint`

    def forward(self, x_BTD: torch.Tensor, layer: LayerPass) -> torch.Tensor:
        # Recomputes nothing without gradients, or while a trace is written.
        if layer.writes or not torch.is_grad_enabled():
            return super().forward(x_BTD, layer)

        forward = super().forward

        def with_own_losses(
            x_BTD: torch.Tensor,
        ) -> tuple[torch.Tensor, torch.Tensor | float, torch.Tensor | None]:
            # Recomputed blocks must not add to the caller's again.
            own = LayerAuxiliary()
            y_BTD = forward(x_BTD, replace(layer, auxiliary=own))
            return y_BTD, own.loss, own.load

        y_BTD, loss, load = checkpoint(
            with_own_losses,
            x_BTD,
            use_reentrant=False,
            preserve_rng_state=False,
            **self.options,
        )

        if layer.auxiliary is not None:
            layer.auxiliary.loss = loss
            layer.auxiliary.load = load
        return y_BTD


class SelectiveBlock(FullBlock):
    options: ClassVar = {
        "context_fn": partial(create_selective_checkpoint_contexts, keep_or_recompute)
    }


# Which device holds what


class FullyShardedStrategy(ModelParallelStrategy):
    """FSDP2 over all devices, or within groups of devices, each a replica."""

    def __init__(
        self, timeout: timedelta, replicate: bool, shard_size: int | None
    ) -> None:
        """`replicate` makes groups of `shard_size` devices; None: of a node's."""
        super().__init__(timeout=timeout)
        self._replicate = replicate
        self._shard_size = shard_size

    @property
    def shards(self) -> int:
        """The number of devices that share one set of weights."""
        if self._replicate:
            return self._shard_size or self.num_processes
        return self.num_nodes * self.num_processes

    def check_shards(self) -> None:
        devices = self.num_nodes * self.num_processes
        if self.shards == 1 < devices:
            raise UserError(
                "trainer.strategy hsdp shards within a node, but each node has one "
                "device; use ddp or fsdp, or give run.shard_size"
            )

        if devices % self.shards:
            sizes = range(2, devices + 1)
            fitting = [str(size) for size in sizes if devices % size == 0]
            would = f"{' or '.join(fitting)} would, or " if fitting else ""
            raise UserError(
                f"run.shard_size={self.shards} does not divide the {devices} devices "
                f"of this run; {would}null for the devices of a node"
            )

    def setup_environment(self) -> None:
        devices = self.num_nodes * self.num_processes
        internals.set_parallel_sizes(self, data=devices)
        super().setup_environment()
        if self.shards == devices:
            return

        # Neighbouring ranks share a group, as launchers number ranks node by node.
        mesh = init_device_mesh(
            self.root_device.type,
            (devices // self.shards, self.shards),
            mesh_dim_names=("replicate", "shard"),
        )
        assert self._timeout is not None
        internals.set_timeout(mesh, self._timeout)
        internals.replace_mesh(self, mesh)

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return {}  # the module names its tensors itself

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        return {}

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        filepath: str | Path,
        storage_options: Any = None,
    ) -> None:
        folder = Path(self.broadcast(str(filepath)))
        write_checkpoint(checkpoint, folder, alone=False)

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        folder = Path(self.broadcast(str(checkpoint_path)))
        return read_checkpoint(folder)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        Strategy.load_optimizer_state_dict(self, checkpoint)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Keeps gradients on their rank until a step's last micro-batch.

        `training/step.py` enters this context for the other micro-batches.
        """
        assert self.model is not None
        modules = self.model.modules()
        units = [module for module in modules if isinstance(module, FSDPModule)]

        for unit in units:
            unit.set_requires_gradient_sync(False, recurse=False)
        try:
            yield
        finally:
            for unit in units:
                unit.set_requires_gradient_sync(True, recurse=False)


class CompressedDDPStrategy(DDPStrategy):
    """DDP that sends gradients in bfloat16.

    Lightning ignores PyTorch's hook on a CPU.
    """

    def configure_ddp(self) -> None:
        super().configure_ddp()
        assert isinstance(self.model, DistributedDataParallel)
        self.model.register_comm_hook(None, bf16_compress_hook)


def sharding_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The part of a mesh for FSDP2: without Lightning's tensor parallelism."""
    names = mesh.mesh_dim_names or ()
    return mesh["data_parallel"] if "data_parallel" in names else mesh


def build_strategy(name: str, settings: RunSettings) -> Strategy | str:
    """The Lightning strategy for a name in `trainer.strategy`."""
    # after a longer wait all ranks end
    timeout = timedelta(minutes=settings.rank_timeout)
    if name in ("fsdp", "hsdp"):
        return FullyShardedStrategy(timeout, name == "hsdp", settings.shard_size)

    if name == "ddp":
        compressed = settings.reduce_dtype == "bfloat16"
        strategy = CompressedDDPStrategy if compressed else DDPStrategy
        return strategy(
            timeout=timeout, gradient_as_bucket_view=True, broadcast_buffers=False
        )

    return "auto"


def reduce_dtype(settings: RunSettings) -> torch.dtype | None:
    """`run.reduce_dtype` for FSDP2; None keeps the gradients' type."""
    return torch.bfloat16 if settings.reduce_dtype == "bfloat16" else None
