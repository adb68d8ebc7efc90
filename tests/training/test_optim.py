"""Parameter groups, learning rate, weight decay; Muon; the balance of experts by
biases."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from docstring_parser import parse_from_object
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dualpath_cli.model import DualPathLM
from dualpath_cli.model.parameters import kind_of
from dualpath_cli.recipe.schedule import cooldown_start, learning_rate
from dualpath_cli.recipe.settings import OptimSettings, RunSettings
from dualpath_cli.training import muon
from dualpath_cli.training.balance import ExpertLoads, load_statistics
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.muon import COEFFICIENTS, Muon, orthogonal
from dualpath_cli.training.optim import build_optimizer, build_scheduler
from dualpath_cli.training.parallel import build_model
from tests.model.small_models import (
    CORES,
    EXPERTS,
    SMALL,
    same_weights,
    small,
    with_weights,
)

PAPER = OptimSettings()
STEPS = RunSettings().max_tokens // RunSettings().batch_tokens


def test_every_parameter_is_in_one_group_and_the_paper_decays_all_but_embeddings():
    lm = DualPathLM(SMALL)
    groups = build_optimizer(lm.named_parameters(), PAPER, STEPS, SMALL).param_groups
    grouped = [id(p) for group in groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in lm.parameters())
    assert {g["name"]: g["weight_decay"] for g in groups} == {
        "embedding": 0.0,
        "head": 0.3,
        "hidden": 0.3,
        "router": 0.3,
        "gate": 0.3,
        "norms": 0.3,
        "gains": 0.3,
        "biases": 0.3,
    }


def test_the_schedule_passes_through_the_papers_values():
    assert STEPS == 18_360
    assert learning_rate(0, STEPS, PAPER) == pytest.approx(5e-6)
    assert learning_rate(184, STEPS, PAPER) == pytest.approx(5e-4)
    assert learning_rate(STEPS, STEPS, PAPER) == pytest.approx(5e-5)
    assert learning_rate((184 + STEPS) // 2, STEPS, PAPER) == pytest.approx(
        2.75e-4, rel=1e-3
    )


@given(warmup=st.integers(0, 50), rest=st.integers(1, 200))
def test_the_rate_rises_then_falls_and_stays_between_its_ends(warmup, rest):
    settings = OptimSettings(warmup_steps=warmup)
    rates = [
        learning_rate(s, warmup + rest, settings) for s in range(warmup + rest + 1)
    ]
    assert rates[: warmup + 1] == sorted(rates[: warmup + 1])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert rates[warmup] == pytest.approx(settings.lr)
    assert rates[-1] == pytest.approx(settings.lr_end)
    assert min(rates) >= settings.lr_start - 1e-12


@given(
    steps=st.tuples(st.integers(60, 400), st.integers(60, 400)),
    warmup=st.integers(0, 50),
    cooldown=st.floats(0, 1),
)
def test_under_wsd_runs_are_alike_up_to_the_cooldown_of_the_shorter_one(
    steps, warmup, cooldown
):
    settings = OptimSettings(warmup_steps=warmup, schedule="wsd", cooldown=cooldown)
    shorter, longer = sorted(steps)
    start = cooldown_start(shorter, settings)
    before = [
        [learning_rate(s, n, settings) for s in range(start + 1)]
        for n in (shorter, longer)
    ]
    assert before[0] == before[1]
    assert before[0][-1] == settings.lr
    rates = [learning_rate(s, shorter, settings) for s in range(start, shorter + 1)]
    if len(rates) > 1:
        falls = [a - b for a, b in pairwise(rates)]
        assert rates[-1] == pytest.approx(settings.lr_end)
        assert falls == pytest.approx([falls[0]] * len(falls)), "a straight line"


SCALES: dict[str, float] = {"gate": 3.0, "gains": 0.5, "head": 0.0}


@pytest.mark.parametrize("decay_sum", [None, 1.5])
def test_each_kind_has_its_rate_and_shrinks_as_its_decay_says(decay_sum):
    """Without gradients weight_decay shrinks with the rate, decay_sum whatever that
    is."""
    settings = replace(
        PAPER, lr_scale=SCALES, base_width=8, decay_sum=decay_sum, warmup_steps=2
    )
    lm, steps = DualPathLM(SMALL), 30
    optimizer = build_optimizer(lm.named_parameters(), settings, steps, SMALL)
    scheduler = build_scheduler(optimizer, steps, settings)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.fill_(1.0)
            parameter.grad = torch.zeros_like(parameter)
    halved = {"hidden": 0.5, "router": 0.5, "gate": 1.5, "gains": 0.5, "head": 0.0}
    for step in range(steps):
        for group in optimizer.param_groups:
            expected = halved.get(group["name"], 1.0) * learning_rate(
                step, steps, settings
            )
            assert group["lr"] == pytest.approx(expected)
        optimizer.step()
        scheduler.step()
    rates = [learning_rate(step, steps, settings) for step in range(steps)]
    for group in optimizer.param_groups:
        factor = halved.get(group["name"], 1.0)
        if decay_sum is not None:
            logarithm = 0.0 if factor == 0 else -decay_sum
        else:
            logarithm = -factor * 0.3 * sum(rates)
        logarithm *= group["name"] != "embedding"
        for parameter in group["params"]:
            # A step shrinks by 1 - rate x decay, whose logarithm is a little below
            # -rate x decay.
            values = parameter.detach().log()
            assert values.min() == pytest.approx(logarithm, rel=0.1, abs=1e-6), group[
                "name"
            ]
            assert values.max() == values.min()


def test_a_run_starts_from_the_values_of_its_width():
    module = DualPathModule(
        SMALL,
        OptimSettings(base_width=8),
        RunSettings(),
        [1] * SMALL.vocab_size,
        [],
        seed=0,
        compile_blocks=False,
    )
    module.configure_model()
    assert module.model is not None
    plain = build_model(SMALL, 0)
    for layer, own in zip(plain.blocks, module.model.blocks, strict=True):
        assert torch.equal(own.deep.router.weight, layer.deep.router.weight / 2)
        before, after = (one.wide.sublayer.attn.q_proj.weight for one in (layer, own))
        torch.testing.assert_close(after, before / math.sqrt(2))
    assert torch.equal(module.model.head.weight, plain.head.weight / 2)
    assert torch.equal(module.model.embed.weight, plain.embed.weight)


# Muon: its update and its groups

MUON = OptimSettings(name="muon", lr=2e-3, lr_start=0, lr_end=2e-4, warmup_steps=2)
sides = st.integers(1, 12)


def reference(matrix: torch.Tensor) -> torch.Tensor:
    """The same by singular values, each of which goes through the quintic by itself."""
    u, s, vt = torch.linalg.svd(matrix.double(), full_matrices=False)
    a, b, c = COEFFICIENTS
    s = s / s.square().sum().sqrt()
    for _ in range(muon.STEPS):
        s = a * s + b * s**3 + c * s**5
    return (u * s) @ vt


scales = st.sampled_from([1e-15, 1e-6, 1, 1e6])


@given(rows=sides, columns=sides, seed=st.integers(0, 99), scale=scales)
def test_each_singular_value_goes_through_the_quintic_by_itself(
    rows, columns, seed, scale
):
    generator = torch.Generator().manual_seed(seed)
    matrix = scale * torch.randn(
        rows, columns, generator=generator, dtype=torch.float64
    )
    torch.testing.assert_close(
        orthogonal(matrix), reference(matrix), rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(
        orthogonal(matrix.float()).double(), reference(matrix), rtol=0, atol=1e-3
    )


def test_a_matrix_of_zeros_stays_zero_and_no_size_gives_more_than_the_quintic():
    """Down to sizes whose squares are lost in float32."""
    matrix = torch.randn(48, 64, generator=torch.Generator().manual_seed(0))
    assert not orthogonal(torch.zeros(3, 4)).any()
    for exponent in range(-45, -14):
        assert orthogonal(matrix * 10.0**exponent).norm(2) < 1.21 * math.sqrt(48), (
            exponent
        )


def stepped(optimizer: torch.optim.Optimizer, model: nn.Module, seed: int) -> None:
    """A step on random gradients."""
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)
    optimizer.step()


@pytest.mark.parametrize("adjust", ["match_rms_adamw", "original"])
def test_steps_are_those_of_the_equations(adjust):
    """In float64: Nesterov's momentum, decoupled decay, the rate of the schedule."""
    settings = replace(MUON, muon_lr=1e-2, muon_adjust=adjust, weight_decay=0.2)
    model = DualPathLM(SMALL, seed=0).double()
    optimizer = build_optimizer(model.named_parameters(), settings, 4, SMALL)
    scheduler = build_scheduler(optimizer, 4, settings)
    matrix = model.get_parameter("blocks.0.wide.sublayer.ffn.up_proj.weight")
    expected, momentum = matrix.detach().clone(), torch.zeros_like(matrix)
    rows_, columns = matrix.shape
    assert rows_ > columns, "else both factors of original are 1"
    factor = {
        "match_rms_adamw": 0.2 * rows_**0.5,
        "original": (rows_ / columns) ** 0.5,
    }[adjust]
    for step in range(4):
        stepped(optimizer, model, seed=step)
        scheduler.step()
        rate = 5 * learning_rate(step, 4, settings)
        momentum = 0.95 * momentum + 0.05 * matrix.grad
        ahead = 0.95 * momentum + 0.05 * matrix.grad
        expected = (1 - rate * 0.2) * expected - rate * factor * reference(ahead)
    torch.testing.assert_close(matrix.detach(), expected, rtol=1e-9, atol=1e-12)


def test_muon_is_pytorchs_and_the_rest_is_adamw():
    """Products in bfloat16, as in torch.optim.Muon; AdamW to the last bit."""
    ours, muon, adamw = (DualPathLM(SMALL, seed=0) for _ in range(3))
    optimizer = build_optimizer(
        ours.named_parameters(), MUON, 9, SMALL, products=torch.bfloat16
    )
    hidden = [
        p for name, p in muon.named_parameters() if kind_of(name).kind == "hidden"
    ]
    theirs = torch.optim.Muon(
        hidden,
        lr=MUON.lr,
        weight_decay=MUON.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    plain = build_optimizer(
        adamw.named_parameters(), replace(MUON, name="adamw"), 9, SMALL
    )
    for seed in range(3):
        for pair in ((optimizer, ours), (theirs, muon), (plain, adamw)):
            stepped(*pair, seed=seed)
    for name, p in ours.named_parameters():
        if kind_of(name).kind == "hidden":
            torch.testing.assert_close(p, muon.get_parameter(name), rtol=0, atol=1e-4)
            assert not torch.equal(p, adamw.get_parameter(name))
        else:
            assert torch.equal(p, adamw.get_parameter(name)), name


def test_muon_moves_the_injection_of_a_core_as_its_help_says():
    config = small(**CORES["joined input"])
    model = DualPathLM(config, seed=0)
    optimizer = build_optimizer(model.named_parameters(), MUON, 9, config)
    (hidden,) = (g["params"] for g in optimizer.param_groups if g["name"] == "hidden")
    injection = model.get_parameter("core.injection.weight")
    assert any(parameter is injection for parameter in hidden)

    keys = {key.arg_name: key for key in parse_from_object(OptimSettings).params}
    for name in ("name", "lr_scale"):
        help_of_key = " ".join((keys[name].description or "").split())
        assert "a core's injection" in help_of_key, name


def test_a_step_without_gradients_changes_nothing():
    model = DualPathLM(SMALL, seed=0)
    optimizer = build_optimizer(model.named_parameters(), MUON, 9, SMALL)
    stepped(optimizer, model, seed=0)
    before = [p.detach().clone() for p in model.parameters()]
    momenta = [
        s["momentum_buffer"].clone() for s in optimizer.state.values() if len(s) == 1
    ]
    optimizer.zero_grad()
    optimizer.step()
    assert all(map(torch.equal, before, model.parameters()))
    after = [s["momentum_buffer"] for s in optimizer.state.values() if len(s) == 1]
    assert len(momenta) == SMALL.n_layers * 2 * 7, "attention and FFN of both paths"
    assert all(map(torch.equal, momenta, after))


def test_each_expert_is_a_matrix_of_its_own():
    """Three below each other in one parameter, beside the same as three parameters."""
    rng = torch.Generator().manual_seed(0)
    value, grad = (torch.randn(12, 3, generator=rng) for _ in range(2))
    stacked = nn.Parameter(value.clone())
    stacked.grad = grad.clone()
    apart = [nn.Parameter(part.clone()) for part in value.chunk(3)]
    for one, part in zip(apart, grad.chunk(3), strict=True):
        one.grad = part.clone()
    rest = {"params": [nn.Parameter(torch.zeros(1))], "name": "norms"}
    for params, counts in (([stacked], {stacked: 3}), (apart, {})):
        group = {"params": params, "name": "hidden", "lr": 0.1, "weight_decay": 0.1}
        Muon([group, dict(rest)], OptimSettings(name="muon"), stacked=counts).step()
    torch.testing.assert_close(stacked, torch.cat(apart), rtol=1e-6, atol=1e-7)


# The balance of experts: what moves biases, how far, and what stays as it is

RATE = 1e-3  # which float32 would round
LOADS = [torch.tensor([5, 1, 0, 2]), torch.tensor([1, 3, 2, 2])]
"""Of two micro-batches: 6, 4, 2 and 4 of 16, the mean 4."""


def balanced(balance: str) -> DualPathLM:
    return with_weights(small(**EXPERTS, balance=balance, balance_rate=RATE))


def after_step(balance: str, moves: bool) -> tuple[DualPathLM, ExpertLoads]:
    model, loads = balanced(balance), ExpertLoads()
    for load in LOADS:
        loads.add({0: load})
    loads.end_step(model, moves)
    return model, loads


def test_biases_move_by_the_sign_of_the_load_of_a_whole_step():
    before = dict(balanced("bias").named_parameters())
    for name, parameter in after_step("bias", moves=True)[0].named_parameters():
        moved = parameter - before[name]
        if name == "blocks.0.wide.sublayer.ffn.balance_bias":
            expected = torch.tensor([-RATE, 0, RATE, 0], dtype=torch.float64)
            torch.testing.assert_close(moved, expected, rtol=0, atol=1e-15)
        else:
            assert not moved.any(), name


def test_a_step_that_is_left_out_counts_for_nothing():
    model, loads = after_step("bias", moves=False)
    assert same_weights(model, balanced("bias"))
    assert not loads.report()
    loads.add({0: LOADS[0]})
    loads.end_step(model, moves=True)
    assert loads.report()["load_max_0"] == 2.5


def test_without_biases_loads_are_counted_and_nothing_moves():
    model, loads = after_step("loss", moves=True)
    assert same_weights(model, balanced("loss"))
    assert loads.report()["load_max_0"] == 1.5
    assert not loads.report()  # of the steps since


@pytest.mark.parametrize(
    ("load", "expected"),
    [([3, 3, 3], (1, 1, 0)), ([0, 8, 0, 0], (4, 0, 3)), ([7], (1, 1, 0))],
)
def test_the_numbers_of_a_load(load, expected):
    assert load_statistics(torch.tensor(load)) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_optimizers_leave_biases_alone(name):
    model = balanced("bias")
    optimizer = build_optimizer(
        model.named_parameters(), OptimSettings(name=name), 10, model.config
    )
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    left_out = {name for name, p in model.named_parameters() if id(p) not in held}
    assert left_out
    assert all(name.endswith("ffn.balance_bias") for name in left_out)


def test_a_gain_that_joins_late_moves_as_the_page_says():
    gain = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    settings = replace(PAPER, weight_decay=0.0)
    optimizer = build_optimizer([("blocks.0.deep.gains", gain)], settings, STEPS, SMALL)
    moved = []
    for step in range(1010):
        gain.grad = torch.full_like(gain, float(step >= 1000))
        before = gain.item()
        optimizer.step()
        moved.append((before - gain.item()) / PAPER.lr)
    assert not any(moved[:1000])
    assert moved[1000] == pytest.approx(0.45, abs=0.005)
    assert moved[1009] == pytest.approx(1.03, abs=0.005)
