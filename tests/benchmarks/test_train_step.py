"""What the benchmark of training steps sets beside our models costs what they cost."""

from dataclasses import replace

import pytest
import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.step import TrainingStep
from benchmarks.llama import llama_width
from benchmarks.train_step import MODELS, our_config
from benchmarks.turns import in_turns, timed
from dualpath_cli.flops.count import training_flops_per_token
from dualpath_cli.spec.config import ModelConfig

SHAPE = ModelConfig(
    vocab_size=100, n_layers=4, d_model=64, n_heads=2, n_kv_heads=2, max_seq_len=32, d_ffn=64,
    d_ffn_wide=64, ffn_multiple_of=64,
)  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layers", [4, 20])
def test_a_llama_of_equal_flops_costs_what_our_model_costs(name, layers):
    flops = training_flops_per_token(our_config(name, SHAPE, 3_000_000))
    # A block of the wide kind is a layer of Llama; its width is given before the 2/3 of SwiGLU.
    wide = llama_width(SHAPE, layers, flops) * 3 // 2
    llama = replace(SHAPE, n_layers=layers, block="wide", d_ffn_wide=wide, ffn_multiple_of=1)
    assert training_flops_per_token(llama) == pytest.approx(flops, rel=0.005)


@pytest.mark.parametrize("llama_layers", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_steps_of_a_model_and_of_a_llama_change_every_parameter(llama_layers):
    bench, config = Bench(torch.device("cpu")), our_config("dual K2", SHAPE, 3_000_000)
    step = TrainingStep(bench, config, 2, compiled=False, llama_layers=llama_layers)
    if llama_layers:
        width = llama_width(config, llama_layers, training_flops_per_token(config))
        assert any(width in parameter.shape for parameter in step.model.parameters())
    before = [parameter.detach().clone() for parameter in step.model.parameters()]
    assert len(in_turns({"": timed(step)}, rounds=2, warm_up=0)[""]) == 2
    assert not any(map(torch.equal, before, step.model.parameters()))
    assert step.tokens_per_step == 2 * SHAPE.max_seq_len
