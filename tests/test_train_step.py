"""What the benchmark of training steps sets beside our models costs what they cost."""

import pytest
import torch

from benchmarks.baselines import Shape, TransformersLlama, llama_width
from benchmarks.train_step import MODELS, our_config, training_step
from benchmarks.turns import in_turns, timed
from dualpath_cli.config import ModelConfig
from dualpath_cli.flops.count import training_flops_per_token

SHAPE = Shape(d_model=64, n_heads=2, seq_len=32, vocab_size=100)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layers", [4, 20])
def test_a_llama_of_equal_flops_costs_what_our_model_costs(name: str, layers: int) -> None:
    flops = training_flops_per_token(our_config(name, SHAPE, 4, 3_000_000))
    # A block of the wide kind is a layer of Llama; its width is given before the 2/3 of SwiGLU.
    llama = ModelConfig(
        vocab_size=100, n_layers=layers, d_model=64, n_heads=2, n_kv_heads=2, max_seq_len=32,
        block="wide", d_ffn_wide=llama_width(SHAPE, layers, flops) * 3 // 2, ffn_multiple_of=1,
    )  # fmt: skip
    assert training_flops_per_token(llama) == pytest.approx(flops, rel=0.02)


def test_more_layers_than_the_flops_pay_for_are_refused() -> None:
    with pytest.raises(SystemExit, match="20 Llama layers of width 64 cost over 1,000,000 FLOPs"):
        llama_width(SHAPE, 20, 1e6)


def test_a_llama_has_its_width_and_makes_steps() -> None:
    model = TransformersLlama(SHAPE, 2, 3e6)
    width = llama_width(SHAPE, 2, 3e6)
    assert any(width in parameter.shape for parameter in model.parameters())
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step = timed(training_step(model, SHAPE, 2))
    assert len(in_turns({"Llama": step}, rounds=2, warm_up=0)["Llama"]) == 2
    after = list(model.parameters())
    assert not any(torch.equal(*pair) for pair in zip(before, after, strict=True))
