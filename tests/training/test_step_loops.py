"""Training with numbers of loops that are drawn or grow by a schedule; runs that branch
off one."""

import json
from collections import Counter
from dataclasses import replace
from functools import partialmethod
from shutil import rmtree
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._dynamo.utils import counters

from dualpath_cli.base.errors import UserError
from dualpath_cli.flops.count import over_loops, training_flops_per_token
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.parameters import initial_value
from dualpath_cli.recipe.recipes import merge
from dualpath_cli.recipe.schedule import StepLoops, step_loops
from dualpath_cli.recipe.settings import RunSettings
from dualpath_cli.run.run_folder import read_recipe
from dualpath_cli.run.tables import read_csv
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.training.parallel import build_model
from tests.model.small_models import SMALL
from tests.training.tiny_run import SEQ_LEN, prepare, state, tables, weights


def drawn_from(*choices: int, seed: int = 0, steps: int = 6) -> StepLoops:
    return StepLoops(((0, choices),), steps, seed)


@given(
    choices=st.lists(st.integers(1, 9), min_size=1, max_size=8, unique=True),
    seed=st.integers(0, 2**32 - 2),
)
def test_draws_depend_on_seed_and_step_alone_and_reach_all_choices(choices, seed):
    drawn = [drawn_from(*choices, seed=seed).at(step) for step in range(200)]
    longer = drawn_from(*choices, seed=seed, steps=999)
    assert [longer.at(step) for step in reversed(range(200))] == drawn[::-1]
    assert set(drawn) == set(choices)
    other = [drawn_from(*choices, seed=seed + 1).at(step) for step in range(200)]
    assert (other != drawn) == (len(choices) > 1)


def test_all_numbers_are_drawn_equally_often():
    loops = drawn_from(1, 2, 3, 4, steps=4000)
    counts = Counter(loops.at(step) for step in range(4000))
    # the 99.9 % quantile of chi-squared with 3 degrees of freedom
    assert sum((n - 1000) ** 2 / 1000 for n in counts.values()) < 16.27


SCHEDULES = st.lists(
    st.tuples(st.integers(1, 99), st.integers(1, 5)),
    max_size=7,
    unique_by=lambda pair: pair[0],
).map(
    lambda pairs: list(
        zip(
            [0, *sorted(p / 100 for p, _ in pairs)],
            sorted([1, *(k for _, k in pairs)]),
            strict=True,
        )
    )
)


@given(schedule=SCHEDULES, steps=st.integers(1, 300))
def test_a_schedule_is_the_list_that_its_pairs_write_over(schedule, steps):
    """Each pair overwrites the rest of the run from its own place on."""
    expected = [0] * steps
    for part, loops in schedule:
        first = round(part * steps)
        expected[first:] = [loops] * (steps - first)
    found = step_loops(
        RunSettings(loop_schedule=schedule, batch_tokens=8, max_tokens=8 * steps)
    )
    assert found is not None
    assert [found.at(step) for step in range(steps)] == expected
    assert {loops: n for loops, n in found.counts().items() if n} == Counter(expected)


def test_a_step_trains_with_the_number_that_is_drawn(fit, monkeypatch):
    """Losses of each step are those of a forward pass with K' forced, on the step's
    batch."""
    forward, seen = DualPathLM.forward, []

    def watched(
        model: DualPathLM, tokens: torch.Tensor, *args: Any, **options: Any
    ) -> Any:
        losses = forward(model, tokens, *args, **options)
        if model.training and torch.is_grad_enabled():
            by_loops = {
                k: forward(model, tokens, *args, intervention=Intervention(loops=k))
                .mean()
                .item()
                for k in (1, 2, 3)
            }
            seen.append((losses.mean().item(), by_loops))
        return losses

    monkeypatch.setattr(DualPathLM, "forward", watched)
    fit(run={"train_loops": [1, 2, 3], "gates_every": 0})
    sampling = drawn_from(1, 2, 3, seed=1)
    assert len(seen) == 6 * 2, "steps of two micro-batches"
    for place, (loss, by_loops) in enumerate(seen):
        drawn = sampling.at(place // 2)
        assert loss == pytest.approx(by_loops[drawn], rel=1e-6)
        assert all(abs(loss - by_loops[k]) > 1e-6 for k in by_loops if k != drawn)


SCHEDULE = {"loop_schedule": [[0, 1], [0.5, 3]]}
GROWING = {"model": {"loops": 3, "step_conditioning": "film"}, "run": SCHEDULE}
"""One loop in steps 0 to 2 of six, then three."""


def test_a_phase_of_one_loop_trains_the_model_of_one_loop_and_moves_nothing_else(fit):
    """Its twin has no router, one gain and one FiLM a layer; losses and weights are
    equal bits.

    The weights that the twin lacks keep their initial values, although gains and router
    decay, and AdamW's moments of them are zero.
    """
    optim = {
        "optim": {"decay": ["matrices", "norms", "gains", "biases", "conditioning"]}
    }
    growing = fit(**GROWING, **optim)
    settings = {
        "model": GROWING["model"] | {"loops": 1},
        "run": {"name": "twin", "save_every": 3},
    }
    twin = fit(**settings, **optim)
    losses = [
        [row["loss"] for row in tables(run)["metrics.csv"]] for run in (growing, twin)
    ]
    assert losses[0][:3] == losses[1][:3]
    assert losses[0][3:] != losses[1][3:], "three loops"

    growing = fit(
        **GROWING | {"run": {**SCHEDULE, "name": "saved", "save_every": 3}}, **optim
    )
    for name in ("gains", "film"):
        last, third = (state(growing, n, "model.") for n in (6, 3))
        key = f"model.blocks.0.deep.{name}"
        assert (last[key][1:] != third[key][1:]).any(), (
            "they begin to move when they run"
        )
    found, wanted = (state(run, 3, "model.") for run in (growing, twin))
    config = ModelConfig(**read_recipe(growing)["model"])
    untouched = 0
    for key, weight in found.items():
        name = key.removeprefix("model.")
        start = initial_value(name, weight.shape, config, seed=1)
        own = wanted.get(key, weight[:0])
        assert torch.equal(weight[: len(own)], own), name
        assert torch.equal(weight[len(own) :], start[len(own) :]), name
        untouched += weight[len(own) :].numel()
    assert untouched == 2 * (2 + 2 * 4 * 16 + 16 + 1 + 1), (
        "gains, FiLM, router, its bias"
    )

    moments = (state(run, 3, "optimizer.0.exp_avg_sq.") for run in (growing, twin))
    idle, twins = (sum((m == 0).sum().item() for m in own.values()) for own in moments)
    assert idle - twins == untouched


def test_each_row_of_metrics_counts_the_flops_of_its_own_steps(fit):
    run = fit(**GROWING | {"run": {**SCHEDULE, "log_every": 2}})
    config = ModelConfig(**read_recipe(run)["model"])
    by_loops = {k: training_flops_per_token(replace(config, loops=k)) for k in (1, 3)}
    expected = [by_loops[1], (by_loops[1] + by_loops[3]) / 2, by_loops[3]]
    found = [
        1e12 * float(row["tflops_per_second"]) / float(row["tokens_per_second"])
        for row in read_csv(run / "metrics.csv")
    ]
    assert found == pytest.approx(expected, rel=2e-5)


def test_compiled_layers_that_differ_have_a_graph_each_and_equal_ones_share_it(
    monkeypatch,
):
    # Graphs alone: their kernels take a minute.
    eager = partialmethod(nn.Module.compile, backend="eager")
    monkeypatch.setattr(nn.Module, "compile", eager)
    config = replace(SMALL, n_layers=6, d_ffn=[12 * (1 + n // 2) for n in range(6)])
    with torch._dynamo.config.patch(recompile_limit=2):
        model = build_model(config, seed=0, compile_blocks=True)
        counters.clear()
        tokens = torch.arange(8)[None] % config.vocab_size
        with (
            torch._dynamo.config.patch(fail_on_recompile_limit_hit=True),
            torch.no_grad(),
        ):
            model(tokens)
    assert counters["stats"]["unique_graphs"] == 3


@given(SCHEDULES, st.integers(1, 50))
def test_flops_are_those_of_all_steps_over_their_number(schedule, steps):
    config = ModelConfig(loops=2, d_ffn=64, d_ffn_wide=64)
    loops = step_loops(
        RunSettings(loop_schedule=schedule, batch_tokens=1, max_tokens=steps)
    )
    assert loops is not None
    flops = [
        training_flops_per_token(replace(config, loops=loops.at(s)))
        for s in range(steps)
    ]
    found = over_loops(training_flops_per_token, config, loops.counts())
    assert found == pytest.approx(sum(flops) / steps, rel=1e-12)
    assert over_loops(training_flops_per_token, config, {}) == training_flops_per_token(
        config
    )


pytestmark = pytest.mark.filterwarnings("ignore:.*torch.compile.*")


WSD = {"schedule": "wsd", "cooldown": 0.5, "warmup_steps": 2}
STEP = 4 * SEQ_LEN


def length(steps: int, **run: Any) -> dict[str, Any]:
    return {"optim": WSD, "run": {"max_tokens": steps * STEP, "save_every": 1, **run}}


def test_a_branch_equals_a_run_of_its_length_and_continues_from_its_own_checkpoints(
    fit, capsys
):
    long, short = fit(**length(12, name="long")), fit(**length(6, name="short"))
    shorter = length(6, name="shorter", recipe="other", branch_from=str(long))
    longer = length(12, name="longer", branch_from=str(short))
    assert tables(fit(**longer)) == tables(long)
    branch = fit(**shorter)
    assert tables(branch) == tables(short)
    assert tables(branch)["metrics.csv"] != tables(long)["metrics.csv"][:6], (
        "another cool-down"
    )
    facts = json.loads((branch / "versions.json").read_text())
    assert facts["branched_from"] == f"{long} at step 3"
    assert not (branch / "checkpoints" / "step-00000003").exists(), (
        "the trunk's stays where it is"
    )
    for step in (5, 6):
        rmtree(branch / "checkpoints" / f"step-{step:08d}")
    capsys.readouterr()
    fit(**shorter)
    assert "continued from step 4\n" in capsys.readouterr().out
    assert tables(branch) == tables(short)


def test_a_branch_that_ended_before_its_first_step_begins_again(
    fit, refused, monkeypatch
):
    trunk = fit(**length(12, name="long"))
    start = length(6, name="branch", branch_from=str(trunk))

    def offline(*ignored: Any) -> None:
        raise UserError("no network")

    with monkeypatch.context() as patch:
        patch.setattr("dualpath_cli.training.fit.begin_wandb", offline)
        assert "no network" in refused(**start)
    fit(**start)


def test_a_branch_has_no_step_whose_loops_its_own_length_would_not_give(fit):
    """Its second phase begins at step 3, the trunk's at step 6: it takes over the
    checkpoint of 3.

    The cool-down begins at step 5.
    """
    changes = {"optim": WSD | {"cooldown": 0.2}}
    schedule = {"loop_schedule": [[0, 1], [0.5, 2]]}
    long = fit(**length(12, name="long", **schedule) | changes)
    short = fit(**length(6, name="short", **schedule) | changes)
    branch = fit(
        **length(6, name="branch", branch_from=str(long), **schedule) | changes
    )
    facts = json.loads((branch / "versions.json").read_text())
    assert facts["branched_from"] == f"{long} at step 3"
    assert tables(branch) == tables(short)
    for name, weight in weights(short).items():
        assert torch.equal(weights(branch)[name], weight), name


def test_a_branch_makes_its_last_step_itself(fit):
    """Without a cool-down it would begin at the trunk's checkpoint of its last step."""
    changes = {"optim": WSD | {"cooldown": 0.0}}
    trunk = fit(**length(6, name="long") | changes)
    branch = fit(**length(4, name="branch", branch_from=str(trunk)) | changes)
    facts = json.loads((branch / "versions.json").read_text())
    assert facts["branched_from"] == f"{trunk} at step 3"
    assert tables(branch)["metrics.csv"] == tables(trunk)["metrics.csv"][:4]


def test_what_would_not_be_alike_is_no_trunk(refused, fit, texts, tmp_path):
    shorter = prepare(tmp_path / "shorter", texts / "train.jsonl", "--tokens", "700")
    trunk = fit(**length(6, name="long"))
    start = {"branch_from": str(trunk), "name": "branch"}
    other = merge(length(6, **start), {"optim": {"lr": 1e-3}})
    assert (
        "optim.lr=0.003, this one has 0.001; give the trunk's value, or leave "
        "run.branch_from out\n"
    ) in refused(**other)
    other = merge(length(6, **start), {"trainer": {"precision": "64-true"}})
    assert "it is 64-true; restore the former or leave run.branch_from" in refused(
        **other
    )
    other = merge(length(6, **start), {"data": {"path": str(shorter)}})
    assert "; restore the old data, leave run.branch_from out, or" in refused(**other)
    for step in (1, 2):
        rmtree(trunk / "checkpoints" / f"step-{step:08d}")
    assert "no checkpoint up to step 2" in refused(**length(4, **start))
