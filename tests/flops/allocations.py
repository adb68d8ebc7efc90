"""Bytes that training saves and takes at its peak, from PyTorch's allocations on a CPU."""

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from dualpath_cli.config import ModelConfig
from dualpath_cli.flops.memory import Execution
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.block import DualPathBlock
from dualpath_cli.model.layer_pass import LayerPass
from dualpath_cli.model.positions import Positions, rope_tables
from dualpath_cli.recipe.optimizer import OptimSettings
from dualpath_cli.training.activation_checkpointing import checkpoint_block
from dualpath_cli.training.optim import build_optimizer
from dualpath_cli.training.parallel import build_model


class Saved(NamedTuple):
    """Bytes that a block saves for its backward pass."""

    a_token: float
    casts: int
    """Of its weights, whatever the number of tokens."""


def autocast(execution: Execution) -> AbstractContextManager[None]:
    """The context that gives products their bytes: bf16 or none."""
    return torch.autocast("cpu", torch.bfloat16, enabled=execution.product_bytes == 2)


def saved(
    config: ModelConfig,
    execution: Execution,
    sequences: int = 2,
    backend: str | Callable[..., object] = "inductor",
) -> Saved:
    """Measures what the last of two blocks saves; `backend` compiles, if anything does."""
    torch._dynamo.reset()
    model = DualPathLM(config, seed=0)
    tokens_BT = torch.randint(config.vocab_size, (sequences, config.max_seq_len))
    block = model.blocks[-1]
    assert isinstance(block, DualPathBlock)
    checkpoint_block(block, execution.checkpointing)
    if execution.compiled:
        block.compile(backend=backend)
    x_BTD = model.embed(tokens_BT)
    positions = Positions(rope_tables(config, config.max_seq_len, like=x_BTD))
    weights = {p.untyped_storage().data_ptr() for p in block.parameters()}
    shapes = {tuple(p.shape) for p in block.parameters() if p.dim() == 2}
    n = config.layers[-1].n_experts
    if n:  # whose products take a matrix for each
        shapes |= {(n, rows // n, columns) for rows, columns in shapes}
    shapes |= {(*shape[:-2], *shape[:-3:-1]) for shape in shapes}
    casts: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if tuple(tensor.shape) in shapes and storage.data_ptr() not in weights:
            casts[storage.data_ptr()] = storage.nbytes()
        return tensor

    def forward() -> torch.Tensor:
        with (
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
            autocast(execution),
        ):
            return block(x_BTD, LayerPass(positions))

    forward().sum().backward()  # compiles
    casts.clear()
    kept: list[torch.Tensor] = []  # until the bytes are counted
    # The output, which is among them, has the size of the input, which is not.
    allocated, _ = allocations(lambda: kept.append(forward()))
    return Saved((allocated - sum(casts.values())) / tokens_BT.numel(), sum(casts.values()))


def allocations(call: Callable[[], object]) -> tuple[int, int]:
    """Returns the bytes that a call allocates: those left at its end, and the most at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    results = profiler.profiler.kineto_results  # type: ignore[union-attr]
    changes = [(e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]"]
    total = list(itertools.accumulate(change for _, change in sorted(changes)))
    return total[-1], max(total)


def training_step(config: ModelConfig, execution: Execution, sequences: int) -> Callable[[], None]:
    """Returns an optimizer step on random tokens that was made twice, so that all is compiled."""
    model = build_model(config, 0, execution.compiled, execution.checkpointing)
    tokens_BT = torch.randint(config.vocab_size, (sequences, config.max_seq_len + 1))
    optimizer = build_optimizer(model.named_parameters(), OptimSettings(), total_steps=1)

    def step() -> None:
        with autocast(execution):
            loss = model(tokens_BT[:, :-1], tokens_BT[:, 1:]).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    step()
    step()
    return step


def peak(config: ModelConfig, execution: Execution, sequences: int) -> int:
    """Measures the most bytes that a step allocates beside weights, gradients and moments."""
    torch._dynamo.reset()
    return allocations(training_step(config, execution, sequences))[1]
