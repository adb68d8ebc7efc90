"""Bytes that training saves and takes at its peak, as `dualpath_cli.flops.memory` predicts them.

python -m benchmarks.memory --out memory.json

Every kind of block, eager and compiled, by each `run.activation_checkpointing`. Saved bytes are
what the forward pass of one block leaves allocated, a token; casts of its weights to bf16 are
counted apart. Peaks are of a whole optimizer step of two blocks, beside weights, gradients and
moments, both from the allocations on a CPU that PyTorch's profiler sees. `--time` adds the CPU
seconds of a step by each policy, interleaved. `benchmarks.gpu memory` measures peaks on a GPU.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.results import show, spread, write
from benchmarks.turns import in_turns, ratios, timed
from dualpath_cli.config import Checkpointing, ModelConfig
from dualpath_cli.flops.memory import Execution, block_weights, saved_by_block, step_memory
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.block import DualPathBlock
from dualpath_cli.model.layer_pass import LayerPass
from dualpath_cli.model.positions import Positions, rope_tables
from dualpath_cli.recipe.optimizer import OptimSettings
from dualpath_cli.training.activation_checkpointing import checkpoint_block
from dualpath_cli.training.optim import build_optimizer
from dualpath_cli.training.parallel import build_model

POLICIES: tuple[Checkpointing, ...] = ("none", "selective", "full")
MODES = ["eager", "compiled"]

LENGTH = 200
"""Tokens of a sequence; bytes a token do not depend on it."""

SHAPES: dict[str, ModelConfig] = {
    "F80M a50 K4": ModelConfig(d_ffn=1600, d_ffn_wide=11392),
    "dual K2": ModelConfig(d_model=256, n_heads=4, n_kv_heads=4, loops=2, d_ffn=768,
                           d_ffn_wide=3072),
    "loop K3": ModelConfig(block="loop", d_model=256, n_heads=8, n_kv_heads=8, loops=3,
                           d_ffn=1536),
    "wide": ModelConfig(block="wide", d_model=256, n_heads=4, n_kv_heads=4, d_ffn_wide=6144),
    "dual K2, 8 experts": ModelConfig(d_model=256, n_heads=4, n_kv_heads=4, loops=2, d_ffn=768,
                                      d_ffn_wide=3072, n_experts=8),
    "wide, 8 experts": ModelConfig(block="wide", d_model=256, n_heads=4, n_kv_heads=4,
                                   d_ffn_wide=6144, n_experts=8),
}  # fmt: skip
"""Blocks that are measured, by name; length, layers and vocabulary are set below."""

TIMED = ModelConfig(d_model=256, n_heads=4, n_kv_heads=4, loops=4, d_ffn=768, d_ffn_wide=3072,
                    n_layers=4, vocab_size=8192, max_seq_len=512)  # fmt: skip
"""The model whose steps are timed."""


class Saved(NamedTuple):
    """Bytes that a block saves for its backward pass."""

    a_token: float
    casts: int
    """Of its weights, whatever the number of tokens."""


def small(config: ModelConfig, layers: int) -> ModelConfig:
    """The model with few layers, a small vocabulary and short sequences."""
    fields = {**asdict(config), "n_layers": layers, "vocab_size": 512, "max_seq_len": LENGTH}
    return ModelConfig(**fields)


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


def measure(name: str, execution: Execution, sequences: int) -> dict[str, Any]:
    """Measures the bytes that a block saves and the peak of a step, beside the predicted ones."""
    config = small(SHAPES[name], layers=2)
    block = saved(config, execution, sequences)
    predicted = step_memory(config, sequences, execution)
    keeps_casts = execution.checkpointing == "none"
    return {
        "block": name,
        "mode": "compiled" if execution.compiled else "eager",
        "checkpointing": execution.checkpointing,
        "saved": block.a_token,
        "saved_predicted": saved_by_block(config.layers[-1], execution),
        "casts": block.casts,
        "casts_predicted": execution.product_bytes * block_weights(config)[-1] * keeps_casts,
        "peak": peak(config, execution, sequences),
        "peak_predicted": predicted.saved + predicted.working,
    }


def show_memory(results: Sequence[dict[str, Any]]) -> None:
    """Prints saved bytes a token, and casts and peaks in MB."""
    sizes = ("casts", "casts_predicted", "peak", "peak_predicted")
    rows = [
        [row["block"], row["mode"], row["checkpointing"]]
        + [f"{row[key]:,.0f}" for key in ("saved", "saved_predicted")]
        + [f"{row[key] / 1e6:,.1f}" for key in sizes]
        for row in results
    ]
    columns = ["block", "mode", "checkpointing", "saved a token", "predicted"]
    show([*columns, "casts, MB", "predicted", "peak, MB", "predicted"], rows)


def time_policies(rounds: int) -> dict[str, list[float]]:
    """Prints CPU seconds of a compiled step by policy, and their ratios to `none`."""
    steps = {p: timed(training_step(TIMED, Execution(p), 2)) for p in POLICIES}
    seconds = in_turns(steps, rounds, warm_up=0)
    rows = [[p, spread(s), spread(ratios(s, seconds["none"]))] for p, s in seconds.items()]
    show(["checkpointing", "CPU seconds a step", "ratio to none"], rows)
    return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--sequences", type=int, default=8, help="Of each step.")
    parser.add_argument("--time", type=int, default=0, metavar="ROUNDS", help="Also time steps.")
    parser.add_argument("--out", help="A JSON file for the results.")
    options = parser.parse_args(arguments)
    results = []
    for name, mode, policy in itertools.product(options.shapes, options.modes, POLICIES):
        execution = Execution(policy, compiled=mode == "compiled")
        results.append(measure(name, execution, options.sequences))
        print(json.dumps(results[-1]), flush=True)
    if results:
        show_memory(results)
    times = time_policies(options.time) if options.time else {}
    write(options.out, {"memory": results, "seconds": times})


if __name__ == "__main__":
    main()
