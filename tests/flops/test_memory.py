"""The memory of `flops --plan` is what PyTorch allocates: saved bytes to 2 %, peaks to 12 %."""

import itertools
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from dualpath_cli.config import ModelConfig
from dualpath_cli.flops.paper import configurations
from dualpath_cli.flops.plan import MAX_LOGITS, Cluster, Memory, Optimizer, plan, saved_by_block
from dualpath_cli.model import DualPathLM, loss
from dualpath_cli.model.block import DualPathBlock
from dualpath_cli.model.layer_pass import LayerPass
from dualpath_cli.model.positions import Positions, rope_tables
from dualpath_cli.recipe.settings import OptimSettings
from dualpath_cli.training.module import build_optimizer
from dualpath_cli.training.parallel import build_model, checkpoint_block
from tests.flops.test_count_and_widths import small
from tests.training.test_activation_checkpointing import graphs

FAST_BFLOAT16 = torch.backends.cpu.get_cpu_capability() == "AVX512"
"""Else PyTorch multiplies bfloat16 by another kernel, and compiles it to other buffers."""


def shape(**changes: Any) -> ModelConfig:
    fields = {"vocab_size": 300, "d_model": 96, "max_seq_len": 72, "d_ffn": 240, "d_ffn_wide": 480}
    return small(**fields | changes)


SHAPES = {
    "dual": shape(),
    "dual, one step": shape(loops=1),
    "dual, scale and shift a step": shape(step_conditioning="film"),
    "dual, grouped heads": shape(n_kv_heads=2),
    "loop": shape(block="loop", n_heads=6, n_kv_heads=6),
    "wide": shape(block="wide", d_ffn_wide=960),
    "wide, 8 experts": shape(block="wide", d_ffn_wide=960, n_experts=8),
}


def planned(config: ModelConfig, sequences: int, optimizer: Optimizer = "adamw") -> Memory:
    """On one GPU."""
    cluster = Cluster(1, 1, 1, sequences, 1, 1, 1, 1, optimizer=optimizer)
    return plan(config, "ddp", cluster).memory


def allocations(call: Callable[[], object]) -> tuple[int, int]:
    """The bytes that a call allocates: those left at its end, and the most at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    results = profiler.profiler.kineto_results  # type: ignore[union-attr]
    changes = [(e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]"]
    total = list(itertools.accumulate(change for _, change in sorted(changes)))
    return total[-1], max(total)


def assert_saved(config: ModelConfig, backend: str | Callable[..., object] | None) -> None:
    """Of the last of two blocks; `backend` compiles it."""
    torch._dynamo.reset()
    model = DualPathLM(config, seed=0)
    tokens_BT = torch.randint(config.vocab_size, (6, config.max_seq_len))
    block = model.blocks[-1]
    assert isinstance(block, DualPathBlock)
    checkpoint_block(block, "selective")
    if backend is not None:
        block.compile(backend=backend)
    x_BTD = model.embed(tokens_BT)
    positions = Positions(rope_tables(config, config.max_seq_len, like=x_BTD))

    def forward() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return block(x_BTD, LayerPass(positions))

    forward().sum().backward()  # compiles
    kept: list[torch.Tensor] = []  # until the bytes are counted
    # The output, which is among them, has the size of the input, which is not.
    allocated, _ = allocations(lambda: kept.append(forward()))
    expected = saved_by_block(config.layers[-1])
    assert allocated / tokens_BT.numel() == pytest.approx(expected, rel=0.02, abs=16)


@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_a_block_saves_what_is_planned(config):
    assert_saved(config, backend=None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dual", "dual, one step", "loop", "wide"])
def test_a_compiled_block_does_too(name):
    with graphs() as (backend, _):
        assert_saved(SHAPES[name], backend)


@pytest.mark.slow
@pytest.mark.skipif(not FAST_BFLOAT16, reason="needs a fast kernel for products in bfloat16")
@pytest.mark.parametrize("config", [shape(max_seq_len=200), shape(max_seq_len=200, block="wide")])
def test_a_step_takes_what_is_planned_at_its_peak(config):
    torch._dynamo.reset()
    model = build_model(config, 0, True, "selective")
    tokens_BT = torch.randint(config.vocab_size, (8, config.max_seq_len + 1))
    optimizer = build_optimizer(model.named_parameters(), OptimSettings(), total_steps=1)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            value = model(tokens_BT[:, :-1], tokens_BT[:, 1:]).mean()
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    step()
    step()  # all is compiled
    memory = planned(config, 8)
    assert allocations(step)[1] == pytest.approx(memory.saved + memory.working, rel=0.12)


@pytest.mark.parametrize("name", get_args(Optimizer))
def test_states_are_weights_gradients_and_moments(name):
    config = shape()
    model = DualPathLM(config, seed=0)
    optimizer = build_optimizer(model.named_parameters(), OptimSettings(name=name), 1)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    tensors = [t for p in model.parameters() for t in (p, p.grad)]
    tensors += [t for s in optimizer.state.values() for n, t in s.items() if n != "step"]
    memory = planned(config, 1, name)
    states = memory.weights + memory.gradients + memory.moments
    assert states == sum(t.nbytes for t in tensors if t is not None)


def test_a_block_of_f80m_a50_k4_saves_100_kilobytes_a_token_and_the_loss_as_many_logits():
    assert MAX_LOGITS == loss.MAX_LOGITS_COMPILED
    (row,) = [row for row in configurations() if row.recipe == "f80m_a50_k4"]
    assert saved_by_block(row.model_config("as_trained").layers[0]) == 100_612


def test_all_26_are_planned_to_train_four_sequences_at_once_on_80_gb():
    for row in configurations():
        memory = planned(row.model_config("as_trained"), 4)
        assert sum(vars(memory).values()) < 0.9 * 80e9, row.recipe
