"""Steps whose numbers go wrong: left out, written down, and too many of them end the
run."""

import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dualpath_cli.run.run_folder import WENT_WRONG
from dualpath_cli.training import guard
from dualpath_cli.training import step as training_step
from dualpath_cli.training import tables as tables_of_a_run
from dualpath_cli.training.checkpoints import Checkpoints, finite_weights
from dualpath_cli.training.graphs import Losses
from dualpath_cli.training.guard import HISTORY, PATIENCE, StepGuard
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.step import clip_gradients, losses_of
from tests.cli.processes import run_on_two_ranks
from tests.training.tiny_run import (
    SEQ_LEN,
    Fit,
    back_to_step,
    rows,
    state,
    tables,
    weights,
)

NAN, INF = math.nan, math.inf

# Faults, each at given steps


def scaled_gradient(
    steps: set[int], factor: float
) -> Callable[[DualPathModule], torch.Tensor]:
    """In place of `clip_gradients`: multiplies one parameter's gradient before."""

    def clip(module: DualPathModule) -> torch.Tensor:
        if module.trainer.global_step + 1 in steps:
            next(module.parameters()).grad.mul_(factor)
        return clip_gradients(module)

    return clip


def scaled_loss(
    steps: set[int], factor: float, rank: int = 0, micro_batch: int = 0
) -> Callable[..., Losses]:
    """In place of `losses_of`: multiplies the losses of one micro-batch of one rank."""
    calls: Counter[int] = Counter()  # by step

    def scaled(module: DualPathModule, *batch: torch.Tensor) -> Losses:
        made, step = losses_of(module, *batch), module.trainer.global_step + 1
        calls[step] += 1
        if (
            step in steps
            and module.trainer.global_rank == rank
            and calls[step] == micro_batch + 1
        ):
            return Losses(made.loss * factor, made.nll * factor, made.loads)
        return made

    return scaled


def rest(run: Path, step: int, key: str) -> Any:
    return json.loads((run / f"checkpoints/step-{step:08d}/state.json").read_text())[
        key
    ]


# Judging by the norm


def expected_outliers(norms: list[float], sigma: float) -> list[int]:
    """The definition, by sums over the whole past: plain for HISTORY steps, then
    exponential."""
    kept: list[float] = []
    found = []
    for number, norm in enumerate(norms):
        value = math.log(norm)
        if len(kept) >= HISTORY:
            first, rest = kept[:HISTORY], kept[HISTORY:]
            decay = 1 - 1 / HISTORY
            weight = [decay ** len(rest) / HISTORY] * HISTORY
            weight += [decay ** (len(rest) - 1 - i) / HISTORY for i in range(len(rest))]
            assert sum(weight) == pytest.approx(1)
            mean = sum(w * x for w, x in zip(weight, first + rest, strict=True))
            squares = sum(
                w * (x - mean) ** 2 for w, x in zip(weight, kept, strict=True)
            )
            limit = mean + sigma * math.sqrt(squares)
            if value > limit:
                found.append(number)
            value = min(value, limit)
        kept.append(value)
    return found


@pytest.mark.parametrize("sigma", [2.0, 3.0, 6.0])
def test_outliers_are_those_of_the_definition(sigma):
    draw = random.Random(0)
    norms = [math.exp(draw.gauss(-n / 200, 0.3)) for n in range(400)]
    for spike, factor in (
        (20, 1e3),
        (150, 1e3),
        (151, 1e3),
        (155, 30),
        (200, 15),
        (300, 1e3),
    ):
        norms[spike] *= factor
    judge = StepGuard(sigma)
    found = [n for n, norm in enumerate(norms) if judge.judge(norm) == "outlier"]
    assert found == expected_outliers(norms, sigma)
    assert {150, 300} <= set(found)
    assert min(found) >= HISTORY, "the first steps only teach"


def test_a_norm_that_rises_for_good_becomes_the_usual_one():
    draw, judge = random.Random(0), StepGuard(6.0)
    norms = [math.exp(draw.gauss(5 * (n >= 200), 0.3)) for n in range(600)]
    found = [n for n, norm in enumerate(norms) if judge.judge(norm)]
    assert found[0] == 200
    assert found[-1] < 230
    assert judge.in_a_row == 0


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=HISTORY))
def test_mean_and_variance_of_the_first_steps_are_plain(logarithms):
    """Wherever they lie: the first norm is no distance from zero."""
    judge = StepGuard(6.0)
    for value in logarithms:
        judge.judge(math.exp(value))
    assert judge.mean == pytest.approx(np.mean(logarithms), rel=1e-9, abs=1e-9)
    assert judge.variance == pytest.approx(np.var(logarithms), rel=1e-9, abs=1e-9)


def test_without_sigma_only_what_is_not_finite_is_left_out():
    judge = StepGuard(None)
    norms = [1.0, NAN, INF, 0.0, *[1.0] * 200, 1e30]
    assert [n for n, norm in enumerate(norms) if judge.judge(norm)] == [1, 2]
    assert StepGuard(6.0).judge(0.0) is None, "whose logarithm is none"


# A step that is left out


@pytest.mark.parametrize(("step", "factor"), [(1, NAN), (3, INF)])
def test_a_step_that_is_left_out_changes_nothing_and_the_run_goes_on(
    step, factor, fit, monkeypatch
):
    changes = {
        "optim": {"decay": ["matrices", "embeddings", "norms", "gains", "biases"]}
    }
    with monkeypatch.context() as patch:
        patch.setattr(training_step, "clip_gradients", scaled_gradient({step}, factor))
        run = fit(run={"save_every": 1}, **changes)
    # The reference: the same run, whose optimizer does nothing at that step.
    update, calls = torch.optim.AdamW.step, []

    def update_or_not(optimizer: torch.optim.AdamW, closure: Callable[[], Any]) -> Any:
        calls.append(optimizer)
        return closure() if len(calls) == step else update(optimizer, closure)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", update_or_not)
        reference = fit(run={"save_every": 1, "name": "reference"}, **changes)
    for made in range(1, 7):
        torch.testing.assert_close(
            state(run, made), state(reference, made), rtol=0, atol=0
        )
        for key in ("groups", "lr_schedulers"):
            assert rest(run, made, key) == rest(reference, made, key)
    if step > 1:
        torch.testing.assert_close(
            state(run, step - 1), state(run, step), rtol=0, atol=0
        )
    metrics = rows(run / "metrics.csv")
    assert [row["skipped"] for row in metrics] == [
        "1" if n == step else "0" for n in range(1, 7)
    ]
    same = ("step", "tokens", "loss", "lr")
    assert [[row[k] for k in same] for row in metrics] == [
        [row[k] for k in same] for row in rows(reference / "metrics.csv")
    ]
    (row,) = rows(run / "bad_steps.csv")
    assert (row["step"], row["kind"]) == (str(step), "gradient")
    assert not (reference / "bad_steps.csv").exists()


def test_a_step_that_is_left_out_moves_no_bias_of_experts(fit, monkeypatch):
    monkeypatch.setattr(training_step, "clip_gradients", scaled_gradient({2}, NAN))
    run = fit(model={"n_experts": 3}, run={"save_every": 1})
    first, left_out, made = (
        torch.stack(
            [
                value
                for name, value in state(run, step, "model").items()
                if name.endswith("balance_bias")
            ]
        )
        for step in (1, 2, 3)
    )
    assert torch.equal(first, left_out)
    assert not torch.equal(left_out, made)


def test_a_micro_batch_without_a_loss_is_named_and_left_out_of_the_mean(
    fit, monkeypatch, capsys
):
    losses: dict[int, list[float]] = {}
    losses_with_nan = scaled_loss({3}, NAN, micro_batch=1)

    def watched(module: DualPathModule, *batch: torch.Tensor) -> Losses:
        made = losses_with_nan(module, *batch)
        losses.setdefault(module.trainer.global_step + 1, []).append(
            float(made.loss.detach())
        )
        return made

    monkeypatch.setattr(training_step, "losses_of", watched)
    run = fit()
    (row,) = rows(run / "bad_steps.csv")
    assert row == {"step": "3", "kind": "loss", "loss": "nan", "grad_norm": "nan"}
    logged = rows(run / "metrics.csv")[2]
    assert float(logged["loss"]) == pytest.approx(losses[3][0], rel=1e-5), (
        "of the other one"
    )
    assert float(logged["bits_per_byte"]) > 0
    assert "1 of 6 steps were skipped" in capsys.readouterr().out


def test_only_the_first_steps_are_told_and_what_is_repeated_is_forgotten(
    fit, monkeypatch, capsys
):
    monkeypatch.setattr(tables_of_a_run, "REPORTED", 2)
    fault = scaled_gradient({2, 4, 5}, NAN)
    with monkeypatch.context() as patch:
        patch.setattr(training_step, "clip_gradients", fault)
        run = fit(run={"log_every": 2})
    assert [row["skipped"] for row in rows(run / "metrics.csv")] == ["1", "1", "1"]
    assert [row["step"] for row in rows(run / "bad_steps.csv")] == ["2", "4", "5"]
    assert re.findall(r"step (\d) is skipped", capsys.readouterr().out) == ["2", "4"]
    back_to_step(run, 2)
    fit(run={"log_every": 2})
    assert [row["step"] for row in rows(run / "bad_steps.csv")] == ["2"]
    assert [row["skipped"] for row in rows(run / "metrics.csv")] == ["1", "0", "0"]


def test_a_continued_run_judges_as_an_uninterrupted_one(fit, monkeypatch):
    monkeypatch.setattr(guard, "HISTORY", 4)
    fault = scaled_gradient({8, 11}, 1e4)
    monkeypatch.setattr(training_step, "clip_gradients", fault)
    changes: dict[str, Any] = {
        "optim": {"skip_sigma": 6},
        "run": {"max_tokens": 14 * 4 * SEQ_LEN, "save_every": 1},
        "data": {"max_epochs": 9},
    }
    run = fit(**changes)
    bad = rows(run / "bad_steps.csv")
    assert [(row["step"], row["kind"]) for row in bad] == [
        ("8", "outlier"),
        ("11", "outlier"),
    ]
    whole, last_weights, last = tables(run), weights(run), rest(run, 14, "guard")
    for step in (3, 8):
        back_to_step(run, step)
        fit(**changes)
        assert tables(run) == whole
        assert rows(run / "bad_steps.csv") == bad
        torch.testing.assert_close(weights(run), last_weights, rtol=0, atol=0)
        assert rest(run, 14, "guard") == last


# Too many of them, and weights that are not numbers


def test_too_many_in_a_row_end_the_run_and_it_can_be_continued(
    refused, fit, monkeypatch, tmp_path
):
    changes = {"run": {"max_bad_steps": 3}}
    with monkeypatch.context() as patch:
        patch.setattr(training_step, "losses_of", scaled_loss({1, 3, 4, 5}, INF))
        said = refused(code=1, **changes)
    run = tmp_path / "runs" / "tiny" / "default"
    assert "steps 3 to 5 were skipped" in said
    assert said.endswith("the same command continues from step 4\n")
    assert (run / WENT_WRONG).read_text() == said.removeprefix("dualpath fit: failed: ")
    skipped = [row["skipped"] for row in rows(run / "metrics.csv")]
    assert skipped == list("10111")

    fit(**changes)
    skipped = [row["skipped"] for row in rows(run / "metrics.csv")]
    assert skipped == list("101100")
    assert not (run / WENT_WRONG).exists(), "it has not ended so this time"


def test_weights_that_are_not_numbers_are_not_saved(refused, monkeypatch, tmp_path):
    save = Checkpoints.save

    def spoil(checkpoints: Checkpoints, trainer: Any) -> None:
        if trainer.global_step == 4:
            with torch.no_grad():
                list(trainer.lightning_module.parameters())[-1].view(-1)[-1] = NAN
        save(checkpoints, trainer)

    monkeypatch.setattr(Checkpoints, "save", spoil)
    assert refused(code=1).endswith("the same command continues from step 2\n")
    run = tmp_path / "runs" / "tiny" / "default"
    names = sorted(p.name for p in (run / "checkpoints").iterdir())
    assert names == ["last", "manifests", "step-00000002"]
    assert (run / WENT_WRONG).exists()


@pytest.mark.parametrize(
    ("values", "finite"),
    [
        ([1.0], True),
        ([3e38, -3e38], True),
        ([0.0, NAN], False),
        ([-INF, 1.0], False),
        ([], True),
    ],
    ids=str,
)
def test_finite_weights_are_told_from_others(values, finite):
    model = nn.ParameterList(
        [nn.Parameter(torch.tensor(part)) for part in ([1.0, 2.0], values)]
    )
    assert finite_weights(model) is finite
    assert finite_weights(model.bfloat16()) is finite


# Two ranks


def spoil_the_second_rank(steps: set[int]) -> None:
    training_step.losses_of = scaled_loss(steps, NAN, rank=1)


@pytest.fixture
def two(trained: Fit, tmp_path: Path) -> list[str]:
    """The command that trains the tiny recipe as a run `two`."""
    trained()  # writes the recipe
    return ["fit", "--config", str(tmp_path / "recipe.yaml"), "--run.name", "two"]


@pytest.mark.parametrize(
    "strategy", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp"]
)
def test_ranks_agree_where_one_of_them_has_no_loss(strategy, two, tmp_path):
    words = [*two, "--trainer.strategy", strategy]
    run_on_two_ranks(words, tmp_path, partial(spoil_the_second_rank, {3}))
    runs = tmp_path / "runs" / "tiny"
    metrics, whole = (rows(runs / name / "metrics.csv") for name in ("two", "default"))
    assert [row["skipped"] for row in metrics] == ["0", "0", "1", "0", "0", "0"]
    assert all(math.isfinite(float(row["loss"])) for row in metrics), (
        "the first rank's at step 3"
    )
    assert [row["lr"] for row in metrics] == [row["lr"] for row in whole]
    (row,) = rows(runs / "two" / "bad_steps.csv")
    assert (row["step"], row["kind"]) == ("3", "loss")
    assert len(list((runs / "two" / "checkpoints").glob("step-*"))) == 3


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_too_many_in_a_row_end_both_ranks_with_one_line(strategy, two, tmp_path):
    words = [*two, "--trainer.strategy", strategy, "--run.max_bad_steps", "2"]
    spoil = partial(spoil_the_second_rank, set(range(99)))
    first, second = run_on_two_ranks(words, tmp_path, spoil, expected=(1, 1))
    assert first.count("dualpath fit: failed: steps 1 to 2 were skipped") == 1
    assert "failed" not in second
    assert "Traceback" not in first + second


# Matrices that do not train


def zeroed(steps: int, ranks: set[int], compiled: bool = False) -> None:
    """Queries and keys get gradients of exactly zero in the first steps of these
    ranks."""

    def clip(module: DualPathModule) -> torch.Tensor:
        module.compile_blocks = compiled
        if module.trainer.global_step < steps and module.trainer.global_rank in ranks:
            for name, parameter in module.named_parameters():
                if re.search("[qk]_proj", name):
                    parameter.grad.zero_()
        return clip_gradients(module)

    training_step.clip_gradients = clip


@pytest.mark.parametrize("compiled", [True, False])
def test_matrices_without_a_gradient_end_the_run_and_are_named(
    compiled, refused, monkeypatch
):
    monkeypatch.setattr(training_step, "clip_gradients", clip_gradients)  # puts it back
    zeroed(9, {0}, compiled)
    said = refused()
    assert "blocks.*.deep.sublayer.attn.k_proj.weight, blocks.*.deep" in said
    assert ("--run.compile false" in said) == compiled


def test_matrices_may_have_their_first_gradient_late(fit, monkeypatch):
    """As those have that lie behind a matrix that starts at zero."""
    monkeypatch.setattr(training_step, "clip_gradients", clip_gradients)
    zeroed(PATIENCE - 1, {0})
    assert len(rows(fit() / "metrics.csv")) == 6


@pytest.mark.parametrize(
    ("optimizer", "factor", "warned"),
    [("adamw", 1e-9, True), ("muon", 1e-9, False), ("adamw", 1, False)],
)
def test_matrices_with_gradients_below_adams_epsilon_are_named_once(
    optimizer, factor, warned, fit, monkeypatch, capsys
):
    def clip(module: DualPathModule) -> torch.Tensor:
        for name, parameter in module.named_parameters():
            if "q_proj" in name:
                parameter.grad.mul_(factor)
        return clip_gradients(module)

    monkeypatch.setattr(training_step, "clip_gradients", clip)
    fit(optim={"name": optimizer, "eps": 1e-8})
    said = capsys.readouterr().out
    assert said.count("hardly train") == warned
    names = ", ".join(
        f"blocks.*.{path}.sublayer.attn.q_proj.weight" for path in ("deep", "wide")
    )
    assert (f"warning: {names} hardly train" in said) == warned


@pytest.mark.parametrize(("ranks", "code"), [({1}, 0), ({0, 1}, 2)])
def test_two_ranks_agree_on_matrices_without_a_gradient(ranks, code, two, tmp_path):
    """Under fsdp all of one rank's part may be zero."""
    words = [*two, "--trainer.strategy", "fsdp"]
    first, second = run_on_two_ranks(
        words, tmp_path, partial(zeroed, 9, ranks), expected=(code, code)
    )
    assert (first + second).count("do not train") == (code == 2)
    assert "Traceback" not in first + second
