"""A core: its equations under forced repetitions, what it is equal to, what it records,
and what its repetitions learn from.

Beside the variants of `test_against_reference.py`.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from dualpath_cli.model import AuxiliaryLoss, DualPathLM, Intervention
from dualpath_cli.model.layer_pass import ModelPass
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.training.parallel import checkpoint_block
from tests.model import reference
from tests.model.layout import stretches
from tests.model.reference import Stream, Weights, difference, random_tokens
from tests.model.small_models import (
    CORES,
    EXACT,
    EXPERTS,
    OUTPUTS,
    SHOWS,
    SMALL,
    STEPS,
    same_weights,
    small,
    streams,
    traced,
    with_weights,
)

TOKENS = random_tokens(SMALL, batch=2, length=5)
TARGETS = random_tokens(SMALL, batch=2, length=5, seed=1)
each_core = pytest.mark.parametrize("changes", CORES.values(), ids=CORES.keys())


@pytest.mark.parametrize("forced", [1, 2, 5])
@each_core
def test_forced_repetitions_follow_the_protocol(changes, forced):
    config = small(**changes)
    weights = reference.random_weights(config, seed=0)
    model = with_weights(config, weights)
    expected = reference.logits(weights, config, TOKENS, core_loops=forced)
    actual = model(TOKENS, intervention=Intervention(core_loops=forced))
    assert difference(actual, expected) <= OUTPUTS
    if forced != config.core_loops:
        assert difference(actual, model(TOKENS)) > SHOWS


# What a core is equal to


def as_loop(name: str) -> str:
    """A name of a wide block's weight in the model of loop blocks."""
    return name.replace("wide.gain", "deep.gains").replace("wide.", "deep.")


@pytest.mark.parametrize("compiled", [False, True])
def test_a_core_of_one_wide_layer_is_a_loop_block_to_the_bit(compiled):
    loops: dict[str, Any] = {"block": ["wide", "loop", "wide"], "n_layers": 3}
    loop = DualPathLM(
        small(**loops, combination="final", d_ffn=48, gain_init=0.0), seed=0
    )
    core = DualPathLM(small(**CORES["one wide layer"], gain_init=0.0), seed=1)
    found = dict(loop.named_parameters())
    gains = found["blocks.1.deep.gains"]
    with torch.no_grad():
        gains.copy_(torch.tensor([-1.0, 0.5, 1.0]))
        for name, parameter in core.named_parameters():
            inside = name.startswith("blocks.1.")
            parameter.copy_(found[as_loop(name) if inside else name])

    logits = []
    for model in (loop, core):
        if compiled:
            for block in model.blocks:
                block.compile(backend="aot_eager")
        logits.append(model(TOKENS))
        logits[-1].square().sum().backward()
    assert torch.equal(*logits)
    for name, parameter in core.named_parameters():
        inside = name.startswith("blocks.1.")
        expected = found[as_loop(name) if inside else name].grad
        assert torch.equal(parameter.grad, expected), name


@pytest.mark.parametrize("injection", ["none", "add", "linear"])
@pytest.mark.parametrize("combination", ["final", "router"])
def test_a_core_that_is_applied_once_is_its_layers(injection, combination):
    plain = DualPathLM(SMALL, seed=0)
    changes: dict[str, Any] = {"injection": injection, "core_combination": combination}
    core = DualPathLM(small(core=[0, 1], **changes), seed=0)
    assert same_weights(plain, core)
    assert torch.equal(plain(TOKENS), core(TOKENS))


def test_an_injection_that_is_learned_starts_as_none():
    changes = CORES["joined input"]
    joined = DualPathLM(small(**changes, gain_init=0.0), seed=0)
    none = DualPathLM(small(**changes | {"injection": "none"}, gain_init=0.0), seed=0)
    assert torch.equal(joined(TOKENS), none(TOKENS))
    joined(TOKENS).square().sum().backward()
    assert joined.core.injection.weight.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("changes", "intervention", "reason"),
    [
        ({}, Intervention(core_loops=2), "the model has no core to repeat"),
        (
            {"core": [0, 1], "core_combination": "router"},
            Intervention(core_loops=2),
            "the core was trained with R = 1, so it has no router",
        ),
        (
            {"core": [0, 1], "injection": "linear"},
            Intervention(core_loops=2),
            "the core was trained with R = 1, so it has no injection",
        ),
        (
            CORES["one wide layer"],
            Intervention(halting=0.5),
            "the model has no router",
        ),
        (
            CORES["routed"] | {"block": "wide"},
            Intervention(halting=0.5, layers=(1,)),
            "that part of the model has no router",
        ),
        (
            CORES["routed"],
            Intervention(kv_slots=1, layers=(0,)),
            "that part of the model has only wide blocks",
        ),
        (
            CORES["one wide layer"] | {"core_combination": "router"},
            Intervention(loops=2),
            "the model has only wide blocks, so it has no loop of steps: R=2 forces",
        ),
        (
            CORES["one wide layer"] | {"core_combination": "router"},
            Intervention(kv_slots=3),
            "a loop of 3 steps needs no more than 3 slots",
        ),
        (
            {"step_kv": "first"},
            Intervention(kv_slots=1),
            "a loop of 1 steps needs no more than 1 slots",
        ),
    ],
)
def test_what_a_core_does_not_have_cannot_be_overridden(changes, intervention, reason):
    assert intervention.problem(small(**changes)).startswith(reason)


@pytest.mark.parametrize("autocast", [True, False])
def test_a_bfloat16_stream_stays_one_behind_a_routed_core(autocast):
    config = small(
        n_layers=3,
        core=[0, 1],
        core_loops=2,
        injection="linear",
        core_combination="router",
        residual_dtype="bfloat16",
    )
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        seen = streams(DualPathLM(config, seed=0), TOKENS)
    assert len(seen) == 5
    assert all(x.dtype == y.dtype == torch.bfloat16 for x, y in seen)


# What a trace records


@pytest.mark.parametrize("forced", [None, 1, 4])
@each_core
def test_a_trace_has_each_application_and_the_repetitions(changes, forced):
    config = small(**changes)
    change = None if forced is None else Intervention(core_loops=forced)
    weights = reference.random_weights(config, seed=0)
    trace = traced(with_weights(config, weights), TOKENS, intervention=change)
    places = [(layer.layer, layer.repetition) for layer in trace.layers]
    assert places == config.applications(forced)

    prelude, _, _ = stretches(config)
    for row, tokens in enumerate(TOKENS.tolist()):
        stream = [weights["embed.weight"][token] for token in tokens]
        e = reference.layers(weights, config, prelude, stream)
        states = reference.core_states(weights, config, e, forced)
        for t in range(len(tokens)):
            h = [state[t] for state in states]
            shares = [torch.tensor(float(h_r is h[-1])) for h_r in h]
            if config.core_combination == "router":
                own = reference.below(weights, "core")
                shares = reference.routed(own, config, h, config.core_loops)
            before = torch.stack([e[t], *h[:-1]])
            moved = (torch.stack(h) - before).norm(dim=-1) / before.norm(dim=-1)
            assert trace.core.step_weights[row, t].sum().item() == pytest.approx(1)
            expected = torch.stack(shares).double()
            assert difference(trace.core.step_weights[row, t], expected) <= OUTPUTS
            assert difference(trace.core.step_sizes[row, t], moved) <= OUTPUTS


# What repetitions learn from


def gradients(model: DualPathLM, loss: Tensor) -> dict[str, Tensor]:
    """The gradient of each weight by its name, zeros where there is none."""
    model.zero_grad()
    loss.backward()
    return {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad
        for name, weight in model.named_parameters()
    }


def assert_gradients(found: dict[str, Tensor], weights: Weights) -> None:
    """Against those of the reference's weights."""
    for name, gradient in found.items():
        expected = weights[name].grad
        if expected is None:
            assert not gradient.any(), name
            continue
        error = (gradient - expected.view_as(gradient)).abs().max()
        assert error <= 1e-8 * expected.abs().max().clamp(min=1e-6), name


def leaves(config: ModelConfig) -> Weights:
    weights = reference.random_weights(config, seed=0)
    return {name: weight.requires_grad_() for name, weight in weights.items()}


BACKPROP: dict[str, dict[str, Any]] = {
    "deep paths, routed": {},
    "deep paths, last step": {"combination": "final"},
    "deep paths, keys of the first": {"step_kv": "first", "block": "loop"},
    "core, routed": CORES["routed"],
    "core, last repetition": CORES["joined input"],
}


@pytest.mark.parametrize("last", [1, 2])
@pytest.mark.parametrize("changes", BACKPROP.values(), ids=BACKPROP.keys())
def test_only_the_last_steps_and_repetitions_get_gradients(changes, last, monkeypatch):
    config = small(**changes)
    weights = leaves(config)

    def constant(h: Stream, k: int, K: int) -> Stream:
        return [h_t.detach() for h_t in h] if k <= K - last else h

    monkeypatch.setattr(reference, "after_step", constant)
    expected = reference.logits(weights, config, TOKENS)
    expected.square().sum().backward()
    model = with_weights(config)
    actual = model(TOKENS, model_pass=ModelPass(backprop_loops=last))
    assert difference(actual, expected) <= OUTPUTS
    assert_gradients(gradients(model, actual.square().sum()), weights)


@each_core
def test_losses_of_earlier_repetitions_are_read_out_through_the_coda(changes):
    config = small(**changes)
    weights = leaves(config)
    prelude, _, coda = stretches(config)
    nats = []
    for tokens, targets in zip(TOKENS.tolist(), TARGETS.tolist(), strict=True):
        stream = [weights["embed.weight"][token] for token in tokens]
        e = reference.layers(weights, config, prelude, stream)
        for state in reference.core_states(weights, config, e)[:-1]:
            read = reference.layers(weights, config, coda, state)
            for x, target in zip(read, targets, strict=True):
                logits = reference.say(weights, config, x)
                nats.append(-torch.log(reference.softmax(logits)[target]))
    expected = 0.25 * sum(nats) / len(nats)
    expected.backward()

    model = with_weights(config)
    auxiliary = AuxiliaryLoss(loop_losses=0.25)
    losses = model(TOKENS, TARGETS, auxiliary=auxiliary)
    assert torch.equal(losses, model(TOKENS, TARGETS))
    assert len(auxiliary.earlier) == config.core_loops - 1
    assert auxiliary.total.item() == pytest.approx(expected.item(), rel=1e-10)
    assert_gradients(gradients(model, auxiliary.total), weights)


SPARSE = small(
    **EXPERTS,
    n_layers=3,
    core=[1, 1],
    core_loops=3,
    core_combination="router",
    injection="add",
    balance="loss",
    balance_rate=0.5,
)


def test_each_application_of_experts_has_its_load_and_loss():
    model, auxiliary = with_weights(SPARSE), AuxiliaryLoss()
    model(TOKENS, TARGETS, auxiliary=auxiliary)
    layers = [layer.layer for layer in auxiliary.layers]
    assert layers == [layer for layer, _ in SPARSE.applications()]
    assert auxiliary.total.item() == pytest.approx(
        sum(layer.loss.item() for layer in auxiliary.layers), rel=1e-12
    )
    assert {n: load.sum().item() for n, load in auxiliary.loads.items()} == {
        layer: times * TOKENS.numel() * SPARSE.top_k
        for layer, times in {0: 1, 1: 3, 2: 1}.items()
    }
    chosen = traced(model, TOKENS).layers
    for layer, load in auxiliary.loads.items():
        of_layer = [one.experts.flatten() for one in chosen if one.layer == layer]
        assert torch.equal(load, torch.cat(of_layer).bincount(minlength=4))


@pytest.mark.parametrize("policy", ["selective", "full"])
@pytest.mark.parametrize(
    "config", [SPARSE, small(**CORES["routed"], **STEPS["keys of the first step"])]
)
def test_what_is_computed_again_gives_the_same_gradients(config, policy):
    runs = []
    for chosen in ("none", policy):
        model, auxiliary = with_weights(config), AuxiliaryLoss(loop_losses=0.1)
        for block in model.blocks:
            checkpoint_block(block, chosen)
        losses = model(TOKENS, TARGETS, auxiliary=auxiliary)
        loss = losses.mean() + auxiliary.total
        found = gradients(model, loss)
        loads = {layer: load.tolist() for layer, load in auxiliary.loads.items()}
        runs.append((loss.item(), found, loads))
    (plain, wanted, loads), (again, found, same) = runs
    assert again == pytest.approx(plain, rel=EXACT)
    assert same == loads
    for name, gradient in found.items():
        scale = wanted[name].abs().max().clamp(min=1e-6)
        assert (gradient - wanted[name]).abs().max() <= 1e-10 * scale, name


def test_graphs_do_not_depend_on_the_number_of_repetitions():
    counts = {}
    for loops in (2, 4):
        changes = CORES["one wide layer"] | {"core_loops": loops}
        model, counter = with_weights(small(**changes)), CompileCounter()
        torch._dynamo.reset()
        for block in model.blocks:
            block.compile(backend=counter, fullgraph=True)
        model(TOKENS)
        counts[loops] = counter.frame_count
        for forced in (2, 1, 6):
            model(TOKENS, intervention=Intervention(core_loops=forced))
        assert counter.frame_count == counts[loops]
    assert counts[2] == counts[4] == 2  # of layers that are applied once, and of those
