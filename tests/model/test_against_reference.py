"""The model agrees with a float64 reference written from the equations, gradients
included."""

import dataclasses
import math
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.kernels.attention import attend
from dualpath_cli.model import positions
from dualpath_cli.model.positions import document_mask, in_document
from dualpath_cli.spec.config import COMBINATIONS, GATE_OUTPUTS, BlockKind, ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.training.parallel import checkpoint_block
from tests.conftest import examples
from tests.model import reference
from tests.model.reference import difference, random_tokens
from tests.model.small_models import (
    CORES,
    EXPERTS,
    OUTPUTS,
    SMALL,
    STEPS,
    UNEVEN,
    traced,
    with_weights,
)

GRADIENTS = 1e-8
"""Largest difference of a parameter's gradient allowed, relative to its largest
entry."""
WRONG = 1e-6
"""Least difference that a wrong reading of the paper makes, on the scale of OUTPUTS."""

TINY = ModelConfig(
    vocab_size=13,
    n_layers=2,
    d_model=12,
    n_heads=2,
    n_kv_heads=2,
    max_seq_len=8,
    loops=2,
    d_ffn=17,
    d_ffn_wide=31,
    ffn_multiple_of=4,
)

VARIANTS = {
    "dual, one loop": {"loops": 1},
    "dual, two loops": {"loops": 2},
    "dual, four loops": {"loops": 4, "n_layers": 1},
    "loop": {"block": "loop", "loops": 3},
    "loop, one loop": {"block": "loop", "loops": 1},
    "wide": {"block": "wide"},
    "loops and widths by layer": UNEVEN,
    "experts": EXPERTS,
    "experts by layer": EXPERTS | {"n_experts": [3, 0], "balance": "none"},
    "experts, each token one": EXPERTS | {"top_k": 1, "block": "wide"},
    "mixed blocks": {"block": ["wide", "dual", "loop"], "n_layers": 3},
    **{f"gate {gate}": {"gate": gate} for gate in GATE_OUTPUTS},
    **{
        f"combination {name}": {"combination": name, "loops": 3}
        for name in COMBINATIONS
    },
    "QK-norm before RoPE": {"qk_norm": "before_rope"},
    "no QK-norm": {"qk_norm": "none"},
    "step index from one": {"step_index": "one_based", "loops": 3},
    "step index from one, one loop": {"step_index": "one_based", "loops": 1},
    "scale and shift a step": {"step_conditioning": "film", "loops": 3},
    "scale and shift, loop": {"step_conditioning": "film", "block": "loop"},
    "grouped queries": {"d_model": 16, "n_heads": 4, "n_kv_heads": 2},
    "one key-value head": {"d_model": 16, "n_heads": 4, "n_kv_heads": 1},
    "tied": {"tie_embeddings": True},
    "RoPE base 100": {"rope_base": 100.0},
    "RoPE frequencies in bfloat16": {"rope_dtype": "bfloat16"},
    "large epsilon": {"norm_eps": 0.1},
    **STEPS,
    **{f"core, {name}": core for name, core in CORES.items()},
    "core, applied once": {
        "core": [0, 1],
        "injection": "linear",
        "core_combination": "router",
    },
    "core, experts": EXPERTS | {"core": [1, 1], "core_loops": 2},
    "core, scale and shift": {
        "core": [0, 1],
        "core_loops": 2,
        "step_conditioning": "film",
        "core_combination": "router",
        "step_index": "one_based",
    },
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_and_all_gradients_follow_the_equations(changes):
    config = dataclasses.replace(TINY, **changes)
    weights = reference.random_weights(config, seed=0)
    outputs, gradients = errors(
        config, weights, random_tokens(config, batch=2, length=5)
    )
    assert outputs <= OUTPUTS
    assert max(gradients.values()) <= GRADIENTS, max(
        gradients, key=gradients.__getitem__
    )


@st.composite
def small_configs(draw) -> ModelConfig:
    n_layers = draw(st.integers(1, 2))
    n_kv_heads = draw(st.integers(1, 2))
    n_heads = n_kv_heads * draw(st.integers(1, 2))
    kind = st.sampled_from(get_args(BlockKind))
    loops, deep, wide = st.integers(1, 3), st.integers(2, 20), st.integers(2, 40)
    step_kv = st.sampled_from(["own", "first"])
    core = draw(st.lists(st.integers(0, n_layers - 1), min_size=2, max_size=2))

    def by_layer(values):
        return st.lists(values, min_size=n_layers, max_size=n_layers)

    return ModelConfig(
        vocab_size=draw(st.integers(2, 9)),
        n_layers=n_layers,
        d_model=n_heads * 2 * draw(st.integers(1, 3)),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        max_seq_len=6,
        block=draw(kind | by_layer(kind)),
        loops=draw(loops | by_layer(loops)),
        untied_steps=draw(st.booleans() | by_layer(st.booleans())),
        step_kv=draw(step_kv | by_layer(step_kv)),
        deep_ffn=draw(st.booleans() | by_layer(st.booleans())),
        core=draw(st.none() | st.just(sorted(core))),
        core_loops=draw(loops),
        injection=draw(st.sampled_from(["none", "add", "linear"])),
        core_combination=draw(st.sampled_from(["final", "router"])),
        d_ffn=draw(deep | by_layer(deep)),
        d_ffn_wide=draw(wide | by_layer(wide)),
        ffn_multiple_of=draw(st.sampled_from([1, 4])),
        tie_embeddings=draw(st.booleans()),
        rope_base=draw(st.sampled_from([50.0, 500000.0])),
        qk_norm=draw(st.sampled_from(["after_rope", "before_rope", "none"])),
        norm_eps=draw(st.sampled_from([1e-5, 1e-2])),
        gate=draw(st.sampled_from(list(GATE_OUTPUTS))),
        combination=draw(st.sampled_from(["router", *COMBINATIONS])),
        step_index=draw(st.sampled_from(["zero_based", "one_based"])),
        step_conditioning=draw(st.sampled_from(["none", "film"])),
        rope_dtype=draw(st.sampled_from(["float32", "bfloat16"])),
    )


@settings(max_examples=examples(25))
@given(
    config=small_configs(),
    seed=st.integers(0, 99),
    batch=st.integers(1, 2),
    length=st.integers(1, 4),
)
def test_any_small_model_follows_the_equations(config, seed, batch, length):
    weights = reference.random_weights(config, seed)
    outputs, gradients = errors(config, weights, random_tokens(config, batch, length))
    assert outputs <= OUTPUTS
    assert max(gradients.values()) <= GRADIENTS, max(
        gradients, key=gradients.__getitem__
    )


@pytest.mark.parametrize("bias", [-1000.0, 1000.0])
def test_saturated_routers_and_gates_follow_the_equations(bias):
    """Routers that stop never or at once; one gate shut, the other open."""
    config = dataclasses.replace(TINY, loops=3)
    weights = reference.random_weights(config, seed=0)
    filling = {"router.bias": [bias], "gate.proj.bias": [bias, -bias]}
    for name in weights:
        for end in filter(name.endswith, filling):
            weights[name] = torch.tensor(filling[end], dtype=torch.float64)
    tokens = random_tokens(config, batch=2, length=5)
    expected = reference.logits(weights, config, tokens)
    assert difference(with_weights(config, weights)(tokens), expected) <= OUTPUTS


def test_far_positions_follow_the_equations():
    config = dataclasses.replace(TINY, n_layers=1, max_seq_len=70)
    weights = reference.random_weights(config, seed=0)
    tokens = random_tokens(config, batch=1, length=70)
    expected = reference.logits(weights, config, tokens)
    assert difference(with_weights(config, weights)(tokens), expected) <= OUTPUTS


@pytest.mark.parametrize(
    "changes",
    [{"loops": 1}, {"loops": 2}, {"loops": 4}, {"loops": 3, "gate": "fixed"}],
    ids=str,
)
def test_what_is_recorded_is_that_of_the_equations(changes):
    config = dataclasses.replace(TINY, n_layers=1, **changes)
    weights = reference.random_weights(config, seed=1)
    tokens = random_tokens(config, batch=1, length=5)
    (recorded,) = traced(with_weights(config, weights), tokens).layers

    deep, wide, gate = (
        reference.below(weights, f"blocks.0.{part}")
        for part in ("deep", "wide", "gate")
    )
    x = [weights["embed.weight"][token] for token in tokens[0].tolist()]
    states = reference.deep_states(deep, config, x)
    h_deep = reference.deep_path(deep, config, x)
    h_wide = reference.wide_path(wide, config, x)
    for t in range(len(x)):
        g_d, g_w = reference.gates(gate, config, x[t])
        steps = reference.step_weights(deep, config, [h[t] for h in states])
        delta_d, delta_w = h_deep[t] - x[t], h_wide[t] - x[t]
        norm_d, norm_w = math.sqrt(delta_d @ delta_d), math.sqrt(delta_w @ delta_w)
        for field, expected in {
            "gate_deep": g_d,
            "gate_wide": g_w,
            "step_weights": torch.stack(steps),
            "expected_loops": sum(k * weight for k, weight in enumerate(steps, 1)),
            "update_deep": norm_d,
            "update_wide": norm_w,
            "cosine": delta_d @ delta_w / (norm_d * norm_w),
            "deep_share": g_d * norm_d / (g_d * norm_d + g_w * norm_w),
        }.items():
            actual = getattr(recorded, field)[0, t]
            assert (
                difference(actual, torch.as_tensor(expected, dtype=torch.float64))
                <= OUTPUTS
            ), field


# The controls: what is not in the paper must not pass for it.

WRONG_SETTINGS = {
    "RoPE base 10000": {"rope_base": 10000.0},
    "QK-norm before RoPE": {"qk_norm": "before_rope"},
    "no QK-norm": {"qk_norm": "none"},
    "step index from one": {"step_index": "one_based"},
    "epsilon 1e-6": {"norm_eps": 1e-6},
    "RoPE frequencies in bfloat16": {"rope_dtype": "bfloat16"},
    **{f"gate {gate}": {"gate": gate} for gate in GATE_OUTPUTS if gate != TINY.gate},
    **{
        f"combination {c}": {"combination": c}
        for c in COMBINATIONS
        if c != TINY.combination
    },
}


@pytest.mark.parametrize("changes", WRONG_SETTINGS.values(), ids=WRONG_SETTINGS.keys())
def test_a_wrong_setting_does_not_agree(changes):
    """Also shows that each of these settings changes something."""
    config = dataclasses.replace(TINY, loops=3)
    weights = reference.random_weights(config, seed=0)
    tokens = random_tokens(config, batch=1, length=6)
    wrong = reference.logits(weights, dataclasses.replace(config, **changes), tokens)
    assert difference(with_weights(config, weights)(tokens), wrong) >= WRONG


def with_silu_on_the_other_matrix(weights: reference.Weights) -> reference.Weights:
    swap = {"gate_proj": "up_proj", "up_proj": "gate_proj"}
    return {
        name: weights[".".join(swap.get(part, part) for part in name.split("."))]
        for name in weights
    }


def with_neighbouring_channels_turned(weights: reference.Weights) -> reference.Weights:
    """Interleaved RoPE is half-split RoPE of channels in the order 0, 2, .. 1, 3, .."""
    reordered = dict(weights)
    for name, weight in weights.items():
        if any(part in name for part in ("q_proj", "k_proj", "q_norm", "k_norm")):
            heads = weight.unflatten(0, (-1, 8))  # head size 8
            reordered[name] = torch.cat(
                [heads[:, 0::2], heads[:, 1::2]], dim=1
            ).flatten(0, 1)
    return reordered


def with_heads_sharing_keys_in_turns(weights: reference.Weights) -> reference.Weights:
    """Query head j reading key and value head ``j % Hkv``: query heads 1 and 2 of 4
    swapped."""
    swapped = dict(weights)
    for name, weight in weights.items():
        if "q_proj" in name:
            swapped[name] = weight.unflatten(0, (4, -1))[[0, 2, 1, 3]].flatten(0, 1)
        if "o_proj" in name:
            swapped[name] = weight.unflatten(1, (4, -1))[:, [0, 2, 1, 3]].flatten(1, 2)
    return swapped


WRONG_WEIGHTS = {
    "SiLU on the other matrix": with_silu_on_the_other_matrix,
    "neighbouring channels turned": with_neighbouring_channels_turned,
    "heads sharing keys in turns": with_heads_sharing_keys_in_turns,
    "gates in the order wide, deep": lambda weights: {
        name: weight.flip(0) if "gate.proj" in name else weight
        for name, weight in weights.items()
    },
    "step index in front of the state": lambda weights: {
        name: weight.roll(1, dims=1) if name.endswith("router.weight") else weight
        for name, weight in weights.items()
    },
    "gains from the last step to the first": lambda weights: {
        name: weight.flip(0) if name.endswith("gains") else weight
        for name, weight in weights.items()
    },
    "gains without softplus": lambda weights: {
        name: weight.expm1().abs().log() if "gain" in name else weight
        for name, weight in weights.items()
    },
}


@pytest.mark.parametrize("misread", WRONG_WEIGHTS.values(), ids=WRONG_WEIGHTS.keys())
def test_a_wrong_reading_of_the_weights_does_not_agree(misread):
    config = dataclasses.replace(TINY, d_model=32, n_heads=4, n_kv_heads=2, loops=3)
    weights = reference.random_weights(config, seed=0)
    tokens = random_tokens(config, batch=1, length=6)
    model = with_weights(config, weights)
    assert (
        difference(model(tokens), reference.logits(weights, config, tokens)) <= OUTPUTS
    )
    wrong = reference.logits(misread(weights), config, tokens)
    assert difference(model(tokens), wrong) >= WRONG


def errors(
    config: ModelConfig, weights: reference.Weights, tokens: Tensor
) -> tuple[float, dict[str, float]]:
    """Errors of the model's logits, and of its gradients under a random cotangent, by
    name."""
    weights = {
        name: weight.clone().requires_grad_() for name, weight in weights.items()
    }
    expected = reference.logits(weights, config, tokens)
    model = with_weights(config, weights)
    assert dict(model.named_parameters()).keys() == weights.keys()
    actual = model(tokens)
    rng = torch.Generator().manual_seed(2)
    cotangent = torch.randn(expected.shape, generator=rng, dtype=expected.dtype)
    expected.backward(cotangent)
    actual.backward(cotangent)
    gradients = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        assert parameter.grad is not None, f"{name} gets no gradient"
        gradient = weights[name].grad.view_as(parameter)
        # Absolute where a gradient vanishes, as a query's does over a single key.
        scale = gradient.abs().max().clamp(min=1e-6)
        gradients[name] = ((parameter.grad - gradient).abs().max() / scale).item()
    return difference(actual, expected), gradients


# Attention that stays within documents: each document is as if it were alone


START = 3
CONFINED = dataclasses.replace(SMALL, document_start=START)


@settings(max_examples=examples(20))
@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    headless=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_document_gives_the_logits_that_it_gives_alone(lengths, headless, seed):
    model, plain = with_weights(CONFINED), with_weights(SMALL)
    generator = torch.Generator().manual_seed(seed)
    documents = []
    for number, length in enumerate(lengths):
        tokens = torch.randint(
            START + 1, SMALL.vocab_size, (1, length), generator=generator
        )
        # a sequence may begin in the middle of a document
        if number > 0 or not headless:
            tokens[0, 0] = START
        documents.append(tokens)
    together = model(torch.cat(documents, dim=1))
    alone = torch.cat([plain(tokens) for tokens in documents], dim=1)
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
    alone = [
        forward(model, part, intervention=intervention)
        for part in tokens.split(3, dim=1)
    ]
    assert difference(together, torch.cat(alone, dim=1)) <= 1e-9
    gradients = torch.autograd.grad(together.square().sum(), list(model.parameters()))
    expected = torch.autograd.grad(
        sum(x.square().sum() for x in alone), list(model.parameters())
    )
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
    assert all(
        p.grad is not None and p.grad.isfinite().all() for p in model.parameters()
    )


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


@pytest.mark.parametrize(
    ("device", "trained", "kind"),
    [("cuda", True, "blocks"), ("cuda", False, "dense"), ("cpu", True, "dense")],
)
def test_only_training_on_a_gpu_takes_blocks(device, trained, kind, monkeypatch):
    """Evaluation runs eagerly, where FlexAttention would hold all scores."""
    monkeypatch.setattr(positions, "create_block_mask", lambda *_, **__: "blocks")
    monkeypatch.setattr(positions, "create_mask", lambda *_, **__: "dense")
    documents = SimpleNamespace(shape=(1, 4), device=torch.device(device))
    with torch.set_grad_enabled(trained):
        assert document_mask(documents) == kind
