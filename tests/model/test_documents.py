"""Attention that stays within documents: each document is as if it were alone."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.kernels.attention import attend
from dualpath_cli.model import positions
from dualpath_cli.model.positions import document_mask, in_document
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.training.parallel import checkpoint_block
from tests.model.reference import difference
from tests.model.small_models import SMALL, with_weights

START = 3
CONFINED = dataclasses.replace(SMALL, document_start=START)


@settings(max_examples=20, derandomize=True, database=None, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    headless=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_document_gives_the_logits_that_it_gives_alone(lengths, headless, seed):
    model = with_weights(CONFINED)
    generator = torch.Generator().manual_seed(seed)
    documents = []
    for number, length in enumerate(lengths):
        tokens = torch.randint(START + 1, SMALL.vocab_size, (1, length), generator=generator)
        if number > 0 or not headless:  # a sequence may begin in the middle of a document
            tokens[0, 0] = START
        documents.append(tokens)
    together = model(torch.cat(documents, dim=1))
    alone = torch.cat([model(tokens) for tokens in documents], dim=1)
    assert difference(together, alone) <= 1e-9


INTERVENTIONS = {
    "none": None,
    "more loops": Intervention(loops=3),
    "halting": Intervention(halting=0.6),
}


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
@pytest.mark.parametrize("intervention", INTERVENTIONS.values(), ids=INTERVENTIONS)
def test_so_it_does_however_the_model_is_run(intervention, checkpointing):
    model = with_weights(CONFINED)
    for block in model.blocks:
        checkpoint_block(block, checkpointing)
    tokens = torch.tensor([[START, 5, 6, START, 7, 8]])
    together = forward(model, tokens, intervention=intervention)
    alone = [forward(model, part, intervention=intervention) for part in tokens.split(3, dim=1)]
    assert difference(together, torch.cat(alone, dim=1)) <= 1e-9
    gradients = torch.autograd.grad(together.square().sum(), list(model.parameters()))
    expected = torch.autograd.grad(sum(x.square().sum() for x in alone), list(model.parameters()))
    for one, other in zip(gradients, expected, strict=True):
        assert (one - other).abs().max() <= 1e-9 * (1 + other.abs().max())


def test_bf16_compiled_is_near_float64():
    config = dataclasses.replace(CONFINED, max_seq_len=200, n_layers=1, loops=2)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocab_size, (2, 201), generator=generator)
    exact = with_weights(config)(tokens[:, :-1], tokens[:, 1:])
    model = with_weights(config).float()
    for block in model.blocks:
        block.compile(backend="aot_eager")
    model.loss.compile(backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        narrow = model(tokens[:, :-1], tokens[:, 1:])
    narrow.mean().backward()
    assert difference(narrow.double(), exact) <= 0.05
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_without_it_a_document_sees_those_before():
    tokens = torch.tensor([[START, 5, 6, START, 7, 8]])
    crossing = with_weights(SMALL)
    assert difference(crossing(tokens)[:, 3:], crossing(tokens[:, 3:])) > 1e-3


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_all_kernels_follow_one_mask(kv_heads):
    """The GPU's is FlexAttention; uncompiled it also runs on a CPU."""
    generator = torch.Generator().manual_seed(0)
    documents = (torch.rand(2, 150, generator=generator) < 0.05).cumsum(1)
    q = torch.randn(2, 150, 4, 8, generator=generator)
    k, v = (torch.randn(2, 150, kv_heads, 8, generator=generator) for _ in range(2))
    mask = document_mask(documents)
    exact = attend(q.double(), k.double(), v.double(), mask)
    assert difference(attend(q, k, v.bfloat16(), mask).double(), exact) <= 0.02
    blocks = create_block_mask(in_document(documents), 2, None, 150, 150, device="cpu")
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    flexible = flex_attention(q, k, v, block_mask=blocks, enable_gqa=kv_heads != 4)
    assert isinstance(flexible, torch.Tensor)
    assert difference(flexible.transpose(1, 2), exact) <= 1e-12


@pytest.mark.parametrize(("device", "trained", "kind"), [
    ("cuda", True, "blocks"), ("cuda", False, "dense"), ("cpu", True, "dense"),
])  # fmt: skip
def test_only_training_on_a_gpu_takes_blocks(device, trained, kind, monkeypatch):
    """Evaluation runs eagerly, where FlexAttention would hold all scores."""
    monkeypatch.setattr(positions, "create_block_mask", lambda *_, **__: "blocks")
    monkeypatch.setattr(positions, "create_mask", lambda *_, **__: "dense")
    documents = SimpleNamespace(shape=(1, 4), device=torch.device(device))
    with torch.set_grad_enabled(trained):
        assert document_mask(documents) == kind


def test_a_start_that_is_no_token_is_refused():
    with pytest.raises(ValueError, match="document_start=9 is no token of vocab_size=9"):
        ModelConfig(vocab_size=9, d_ffn=8, d_ffn_wide=8, document_start=9)
