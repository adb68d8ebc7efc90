"""Joined products give what the parts give, in the same memory and under the same names."""

import copy

import pytest
import torch

from dualpath_cli.decoding.decoder import Decoder
from dualpath_cli.decoding.joined import JoinedAttention, JoinedSwiGLU, join_products
from dualpath_cli.model import DualPathLM
from dualpath_cli.run.weights import round_weights
from tests.model.reference import random_tokens
from tests.model.small_models import ALL_KINDS, EXPERTS, small

VARIANTS = [
    ALL_KINDS,
    {"n_kv_heads": 4},
    {"n_kv_heads": 1, "qk_norm": "none"},
    {"qk_norm": "before_rope"},
    {"step_conditioning": "film"},
    EXPERTS,
]


def pair(changes: dict[str, object]) -> tuple[DualPathLM, DualPathLM]:
    """A model, and the same one with joined products."""
    model = DualPathLM(small(**changes, gain_init=0.0, init_std=0.3), seed=0).requires_grad_(False)
    joined = copy.deepcopy(model)
    join_products(joined)
    return model, joined


def decode(model: DualPathLM, compiled: bool = False, **options: object) -> torch.Tensor:
    """Logits of a prompt and of three tokens after it."""
    decoder, tokens = (
        Decoder(model, compiled=compiled, **options),
        random_tokens(model.config, 2, 8),
    )
    decoder.begin(8)
    parts = [tokens[:, :5], *tokens[:, 5:].split(1, 1)]
    return torch.cat([decoder.logits(part) for part in parts], 1)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_logits_and_names_are_the_same(changes):
    model, joined = pair(changes)
    wanted, found = decode(model), decode(joined)
    assert (found - wanted).abs().max() <= 1e-6 * wanted.abs().max()
    torch.testing.assert_close(joined.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_so_they_are_compiled_after_the_model_itself(monkeypatch):
    """One model's compiled code is not the other's."""
    compile_ = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module,
        "compile",
        lambda self, options, **o: compile_(self, **o, backend="aot_eager"),
    )
    graphs = torch._dynamo.utils.counters["stats"]
    model, joined = pair({})
    wanted, before = decode(model, compiled=True), graphs["unique_graphs"]
    found = decode(joined, compiled=True)
    assert graphs["unique_graphs"] > before
    assert (found - wanted).abs().max() <= 1e-6 * wanted.abs().max()


def test_they_take_no_more_memory():
    _, joined = pair(ALL_KINDS)
    stores = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
              for x in [*joined.parameters(), *joined.buffers()]}  # fmt: skip
    assert sum(stores.values()) == sum(x.nbytes for x in joined.parameters())
    kinds = [type(module) for module in joined.modules()]
    assert JoinedAttention in kinds
    assert JoinedSwiGLU in kinds


def test_they_are_in_the_type_of_rounded_weights():
    model = DualPathLM(small(), seed=0).requires_grad_(False)
    round_weights(model, torch.bfloat16)
    wanted = decode(model, autocast=torch.bfloat16)
    join_products(model)
    found = decode(model, autocast=torch.bfloat16)
    assert (found - wanted).abs().max() <= 0.02 * wanted.abs().max()
