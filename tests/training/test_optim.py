"""Parameter groups, learning rate, weight decay; loss and bits per byte by hand."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.data.metrics import LanguageModelLoss
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.model.parameters import kind_of
from dualpath_cli.recipe.schedule import cooldown_start, learning_rate, std_factors
from dualpath_cli.recipe.settings import OptimSettings, RunSettings
from dualpath_cli.training.module import DualPathModule, build_optimizer, build_scheduler
from dualpath_cli.training.parallel import build_model
from tests.model.small_models import SMALL, TARGETS, TOKENS

PAPER = OptimSettings()
STEPS = RunSettings().max_tokens // RunSettings().batch_tokens


def test_every_parameter_is_in_one_group_and_the_paper_decays_all_but_embeddings():
    lm = DualPathLM(SMALL)
    groups = build_optimizer(lm.named_parameters(), PAPER, STEPS).param_groups
    grouped = [id(p) for group in groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in lm.parameters())
    assert {g["name"]: g["weight_decay"] for g in groups} == {
        "embedding": 0.0, "head": 0.3, "hidden": 0.3, "router": 0.3, "gate": 0.3, "norms": 0.3,
        "gains": 0.3, "biases": 0.3,
    }  # fmt: skip


def test_the_schedule_passes_through_the_papers_values():
    assert STEPS == 18_360
    assert learning_rate(0, STEPS, PAPER) == pytest.approx(5e-6)
    assert learning_rate(184, STEPS, PAPER) == pytest.approx(5e-4)
    assert learning_rate(STEPS, STEPS, PAPER) == pytest.approx(5e-5)
    assert learning_rate((184 + STEPS) // 2, STEPS, PAPER) == pytest.approx(2.75e-4, rel=1e-3)


@given(warmup=st.integers(0, 50), rest=st.integers(1, 200))
def test_the_rate_rises_then_falls_and_stays_between_its_ends(warmup, rest):
    settings = OptimSettings(warmup_steps=warmup)
    rates = [learning_rate(s, warmup + rest, settings) for s in range(warmup + rest + 1)]
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
def test_under_wsd_runs_are_alike_up_to_the_cooldown_of_the_shorter_one(steps, warmup, cooldown):
    settings = OptimSettings(warmup_steps=warmup, schedule="wsd", cooldown=cooldown)
    shorter, longer = sorted(steps)
    start = cooldown_start(shorter, settings)
    before = [[learning_rate(s, n, settings) for s in range(start + 1)] for n in (shorter, longer)]
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
    """Without gradients weight_decay shrinks with the rate, decay_sum whatever that is."""
    settings = replace(PAPER, lr_scale=SCALES, base_width=8, decay_sum=decay_sum, warmup_steps=2)
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
            expected = halved.get(group["name"], 1.0) * learning_rate(step, steps, settings)
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
            # A step shrinks by 1 - rate x decay, whose logarithm is a little below -rate x decay.
            values = parameter.detach().log()
            assert values.min() == pytest.approx(logarithm, rel=0.1, abs=1e-6), group["name"]
            assert values.max() == values.min()


def test_a_frozen_kind_stays_and_the_base_width_itself_changes_no_bit():
    def trained(**changes: Any) -> dict[str, torch.Tensor]:
        settings = replace(OptimSettings(lr=1e-2, warmup_steps=0), **changes)
        lm = build_model(SMALL, 0, std_factors=std_factors(settings, SMALL.d_model))
        optimizer = build_optimizer(lm.named_parameters(), settings, 9, SMALL)
        for _ in range(3):
            optimizer.zero_grad()
            lm(TOKENS, TARGETS).mean().backward()
            optimizer.step()
        return {name: parameter.detach() for name, parameter in lm.named_parameters()}

    start = {name: p.detach() for name, p in build_model(SMALL, 0).named_parameters()}
    plain = trained()
    same = trained(base_width=SMALL.d_model, lr_scale={"router": 1})
    frozen, narrower = trained(lr_scale={"gate": 0}), trained(base_width=8)
    for name, values in plain.items():
        assert torch.equal(values, same[name])
        assert torch.equal(frozen[name], start[name]) == (kind_of(name).kind == "gate"), name
        assert not torch.equal(narrower[name], values), "other kinds get other gradients"


def test_a_run_starts_from_the_values_of_its_width():
    module = DualPathModule(
        SMALL, OptimSettings(base_width=8), [1] * SMALL.vocab_size, [], seed=0, compile_blocks=False
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


TOKEN_BYTES = [1, 3, 2, 0]  # the last one is end-of-text


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 2, 3, IGNORE]), st.floats(0, 20, width=32)),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 5),
)
def test_both_are_the_sums_of_their_definition_however_batched(scored, batch):
    metric = LanguageModelLoss(TOKEN_BYTES)
    for start in range(0, len(scored), batch):
        part = scored[start : start + batch]
        metric.update(torch.tensor([[n for _, n in part]]), torch.tensor([[t for t, _ in part]]))
    result = metric.compute()
    kept = [(t, n) for t, n in scored if t != IGNORE]
    text = [(t, n) for t, n in kept if TOKEN_BYTES[t]]
    if not kept:
        assert math.isnan(result["loss"])
        return
    assert result["loss"].item() == pytest.approx(sum(n for _, n in kept) / len(kept))
    if text:
        n_bytes = sum(TOKEN_BYTES[t] for t, _ in text)
        expected = sum(n for _, n in text) / math.log(2) / n_bytes
        assert result["bits_per_byte"].item() == pytest.approx(expected)
