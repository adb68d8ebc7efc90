"""Training with a number of loops that is drawn for each step."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from dualpath_cli.config import ModelConfig
from dualpath_cli.flops.count import sampled_training_flops_per_token, training_flops_per_token
from dualpath_cli.intervention import Intervention
from dualpath_cli.model import DualPathLM
from dualpath_cli.training.loop_sampling import LoopSampling
from tests.model.small_models import SMALL
from tests.tiny_run import Fit, Refused, tables


@given(
    choices=st.lists(st.integers(1, 9), min_size=1, max_size=8, unique=True),
    seed=st.integers(0, 2**32 - 1),
)
def test_draws_depend_on_seed_and_step_alone_and_reach_all_choices(
    choices: list[int], seed: int
) -> None:
    sampling = LoopSampling(tuple(choices), seed)
    drawn = [sampling.at(step) for step in range(200)]
    assert drawn == [LoopSampling(tuple(choices), seed).at(step) for step in range(200)]
    assert set(drawn) == set(choices)


def test_all_choices_are_drawn_alike_often() -> None:
    drawn = [LoopSampling((1, 2, 4), seed=0).at(step) for step in range(3000)]
    assert chisquare([drawn.count(k) for k in (1, 2, 4)]).pvalue > 0.001


def test_the_models_own_number_needs_no_intervention() -> None:
    sampling = LoopSampling((2,), seed=0)
    assert sampling.intervention(0, ModelConfig(loops=2, d_ffn=64, d_ffn_wide=64)) is None
    other = ModelConfig(loops=4, d_ffn=64, d_ffn_wide=64)
    assert sampling.intervention(0, other) == Intervention(loops=2)


def test_a_step_trains_with_the_number_that_is_drawn(
    fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses of each step are those of a forward pass with K' forced, on the step's batch."""
    forward, seen = DualPathLM.forward, []

    def watched(model: DualPathLM, tokens: torch.Tensor, *args: Any, **options: Any) -> Any:
        losses = forward(model, tokens, *args, **options)
        if model.training and torch.is_grad_enabled():
            by_loops = {
                k: forward(model, tokens, *args, intervention=Intervention(loops=k)).mean().item()
                for k in (1, 2, 3)
            }
            seen.append((losses.mean().item(), by_loops))
        return losses

    monkeypatch.setattr(DualPathLM, "forward", watched)
    fit(run={"train_loops": [1, 2, 3], "gates_every": 0})
    sampling = LoopSampling((1, 2, 3), seed=1)
    assert len(seen) == 6 * 2, "steps of two micro-batches"
    for place, (loss, by_loops) in enumerate(seen):
        drawn = sampling.at(place // 2)
        assert loss == pytest.approx(by_loops[drawn], rel=1e-6)
        assert all(abs(loss - by_loops[k]) > 1e-6 for k in by_loops if k != drawn)


def test_the_models_own_number_alone_is_training_without_a_choice(fit: Fit) -> None:
    own = fit(run={"name": "own", "train_loops": [2]})
    assert tables(own) == tables(fit(run={"name": "plain"}))


def test_a_continued_run_draws_what_it_would_have_drawn(fit: Fit) -> None:
    whole = fit(run={"train_loops": [1, 2, 3]})
    numbers = tables(whole)
    for step in (4, 6):
        (whole / "checkpoints" / f"step-{step:08d}").unlink()
    fit(run={"train_loops": [1, 2, 3]})
    assert tables(whole) == numbers


def test_compiled_each_number_of_loops_has_a_graph_of_its_own_and_no_more() -> None:
    """More layers and more steps compile nothing new: a graph for each K serves all layers."""
    choices, config = (1, 2, 3), replace(SMALL, n_layers=2)
    model = DualPathLM(config, seed=0)
    graphs = []

    def counting(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    with torch._dynamo.config.patch(recompile_limit=len(choices) - 1):
        LoopSampling(choices, seed=0).allow_graphs()
        for block in model.blocks:
            block.compile(backend=counting, fullgraph=True)
        tokens = torch.arange(8)[None] % config.vocab_size
        for loops in (*choices, *choices):
            forced = None if loops == config.loops else Intervention(loops=loops)
            model(tokens, tokens, intervention=forced).sum().backward()
    assert len(graphs) == len(choices)


def test_flops_are_the_mean_of_the_choices() -> None:
    config = ModelConfig(loops=2, d_ffn=64, d_ffn_wide=64)
    one, two, three = (
        training_flops_per_token(ModelConfig(loops=k, d_ffn=64, d_ffn_wide=64)) for k in (1, 2, 3)
    )
    assert sampled_training_flops_per_token(config, [1, 3]) == (one + three) / 2
    assert sampled_training_flops_per_token(config, [2]) == two


def test_numbers_that_make_no_sense_are_refused(refused: Refused) -> None:
    for choices in ([0, 2], [2, 2], list(range(1, 10))):
        assert "different numbers from 1 on" in refused(run={"train_loops": choices})
    wide = {"model": {"block": "wide"}, "run": {"train_loops": [2]}}
    assert "run.train_loops has 2: the model has only wide blocks" in refused(**wide)
    no_router = {"model": {"loops": 1}, "run": {"train_loops": [1, 2]}}
    assert "no router to weigh more" in refused(**no_router)
    two = {"devices": 2, "strategy": "ddp"}
    assert "choose --trainer.strategy fsdp" in refused(trainer=two, run={"train_loops": [1, 2]})


pytestmark = pytest.mark.filterwarnings("ignore:.*torch.compile.*")
