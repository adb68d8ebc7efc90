"""Parameter groups and the learning rate."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.command.checks import check_schedule
from dualpath_cli.config import ModelConfig
from dualpath_cli.errors import UserError
from dualpath_cli.model import DualPathLM
from dualpath_cli.settings import (
    DataSettings,
    OptimSettings,
    RunSettings,
    Settings,
    TrainerSettings,
)
from dualpath_cli.sizes import Size
from dualpath_cli.training.optim import build_optimizer, build_scheduler, group_of, learning_rate

PAPER = OptimSettings()
STEPS = RunSettings().max_tokens // RunSettings().batch_tokens


def model(**fields: object) -> DualPathLM:
    small = {"vocab_size": 32, "n_layers": 2, "d_model": 8, "n_heads": 2, "n_kv_heads": 2,
             "d_ffn": 12, "d_ffn_wide": 24, "ffn_multiple_of": 8}  # fmt: skip
    return DualPathLM(ModelConfig(**{**small, **fields}))  # type: ignore[arg-type]


def test_the_papers_run_has_18360_steps() -> None:
    assert STEPS == 18_360


def test_every_parameter_is_in_exactly_one_group() -> None:
    lm = model()
    optimizer = build_optimizer(lm.named_parameters(), PAPER)
    grouped = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in lm.parameters())


def test_groups_are_what_their_names_say() -> None:
    kinds = {name: group_of(name) for name, _ in model().named_parameters()}
    assert {n for n, k in kinds.items() if k == "embeddings"} == {"embed.weight"}
    assert {n.split(".", 2)[2] for n, k in kinds.items() if k == "gains"} == {
        "deep.gains",
        "wide.gain",
    }
    assert {n.split(".", 2)[2] for n, k in kinds.items() if k == "biases"} == {
        "deep.router.bias",
        "gate.proj.bias",
    }
    assert all("norm" in n for n, k in kinds.items() if k == "norms")
    assert all(p.ndim == 2 for n, p in model().named_parameters() if kinds[n] == "matrices")
    assert kinds["head.weight"] == kinds["blocks.0.gate.proj.weight"] == "matrices"


def test_a_tied_head_follows_the_embedding() -> None:
    names = [name for name, _ in model(tie_embeddings=True).named_parameters()]
    assert "embed.weight" in names
    assert "head.weight" not in names


def test_the_paper_decays_everything_but_embeddings() -> None:
    groups = build_optimizer(model().named_parameters(), PAPER).param_groups
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
    optimizer = build_optimizer(model().named_parameters(), PAPER)
    scheduler = build_scheduler(optimizer, 300, PAPER)
    for step in range(300):
        rate = optimizer.param_groups[0]["lr"]
        assert math.isclose(rate, learning_rate(step, 300, PAPER), rel_tol=1e-9)
        optimizer.step()
        scheduler.step()


def test_a_warm_up_longer_than_the_run_is_refused() -> None:
    run = RunSettings(max_tokens=Size(184 * 2_097_152 + 5))
    settings = Settings(
        ModelConfig(d_ffn=64, d_ffn_wide=64), PAPER, run, DataSettings(), TrainerSettings()
    )
    with pytest.raises(UserError, match=r"optim.warmup_steps=184 must be less than .* 184"):
        check_schedule(settings)
    check_schedule(replace(settings, optim=OptimSettings(warmup_steps=183)))


@pytest.mark.parametrize(
    ("section", "fields"),
    [
        (OptimSettings, {"lr": 0}),
        (OptimSettings, {"betas": (1.5, 0.9)}),
        (OptimSettings, {"clip": -1}),
        (RunSettings, {"save_every": 0}),
        (RunSettings, {"micro_batch": 0}),
        (RunSettings, {"keep": -1}),
        (RunSettings, {"save_every": 5, "log_every": 2}),
    ],
)
def test_settings_out_of_range_are_refused_by_name(section: type, fields: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        section(**fields)
