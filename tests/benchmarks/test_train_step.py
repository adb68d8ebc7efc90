"""What the benchmark of training steps sets beside our models costs what they cost."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from benchmarks.llama import TransformersLlama, llama_width
from benchmarks.train_step import MODELS, our_config, training_step
from benchmarks.turns import Timed, in_turns, timed
from dualpath_cli.flops.count import training_flops_per_token
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.training.parallel import build_model

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


def test_steps_learn_and_are_timed_by_turns():
    model = build_model(our_config("dual K2", SHAPE, 3_000_000), seed=0)
    assert learns(model, timed(training_step(model, SHAPE, 2)))


@pytest.mark.slow  # it imports transformers
def test_a_llama_has_its_width_and_makes_steps():
    model = TransformersLlama(SHAPE, 2, 3e6)
    width = llama_width(SHAPE, 2, 3e6)
    assert any(width in parameter.shape for parameter in model.parameters())
    assert learns(model, timed(training_step(model, SHAPE, 2)))


def learns(model: nn.Module, step: Timed) -> bool:
    """Whether two rounds of steps change every parameter."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    assert len(in_turns({"model": step}, rounds=2, warm_up=0)["model"]) == 2
    return not any(map(torch.equal, before, model.parameters()))
