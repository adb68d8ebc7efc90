"""Parameter groups and the learning rate."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.model import DualPathLM
from dualpath_cli.settings import OptimSettings, RunSettings
from dualpath_cli.training.optim import build_optimizer, build_scheduler, learning_rate
from tests.model.small_models import SMALL

PAPER = OptimSettings()
STEPS = RunSettings().max_tokens // RunSettings().batch_tokens


def test_the_papers_run_has_18360_steps() -> None:
    assert STEPS == 18_360


def test_every_parameter_is_in_exactly_one_group() -> None:
    lm = DualPathLM(SMALL)
    optimizer = build_optimizer(lm.named_parameters(), PAPER)
    grouped = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in lm.parameters())


def test_the_paper_decays_everything_but_embeddings() -> None:
    groups = build_optimizer(DualPathLM(SMALL).named_parameters(), PAPER).param_groups
    assert {g["name"]: g["weight_decay"] for g in groups} == {
        "embeddings": 0.0, "matrices": 0.3, "norms": 0.3, "gains": 0.3, "biases": 0.3,
    }  # fmt: skip


def test_the_schedule_passes_through_the_papers_values() -> None:
    assert learning_rate(0, STEPS, PAPER) == pytest.approx(5e-6)
    assert learning_rate(184, STEPS, PAPER) == pytest.approx(5e-4)
    assert learning_rate(STEPS, STEPS, PAPER) == pytest.approx(5e-5)
    assert learning_rate((184 + STEPS) // 2, STEPS, PAPER) == pytest.approx(2.75e-4, rel=1e-3)


def test_decay_alone_opens_the_gains_as_the_paper_notes_compute() -> None:
    """sum of lr x decay is 1.51, which moves a gain's -7 to -1.54."""
    exponent = sum(learning_rate(s, STEPS, PAPER) for s in range(STEPS)) * PAPER.weight_decay
    gain = -7.0
    for step in range(STEPS):
        gain *= 1 - learning_rate(step, STEPS, PAPER) * PAPER.weight_decay
    assert exponent == pytest.approx(1.51, abs=0.005)
    assert gain == pytest.approx(-1.54, abs=0.01)


@given(warmup=st.integers(0, 50), rest=st.integers(1, 200))
def test_the_rate_rises_then_falls_and_stays_between_its_ends(warmup: int, rest: int) -> None:
    settings = OptimSettings(warmup_steps=warmup)
    rates = [learning_rate(s, warmup + rest, settings) for s in range(warmup + rest + 1)]
    assert rates[: warmup + 1] == sorted(rates[: warmup + 1])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert rates[warmup] == pytest.approx(settings.lr)
    assert rates[-1] == pytest.approx(settings.lr_end)
    assert min(rates) >= settings.lr_start - 1e-12


def test_the_scheduler_sets_the_rate_of_each_step() -> None:
    optimizer = build_optimizer(DualPathLM(SMALL).named_parameters(), PAPER)
    scheduler = build_scheduler(optimizer, 300, PAPER)
    for step in range(300):
        rate = optimizer.param_groups[0]["lr"]
        assert math.isclose(rate, learning_rate(step, 300, PAPER), rel_tol=1e-9)
        optimizer.step()
        scheduler.step()
