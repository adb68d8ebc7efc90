"""A blind schedule has the mean steps of an exit, and knows nothing but positions."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.data.windows import collate
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.model import Intervention, RoutingTrace
from dualpath_cli.study.ablation.schedules import (
    StepCounts,
    bins_of,
    means_of,
    planned_steps,
    schedule_of,
)
from tests.model.reference import random_tokens
from tests.model.small_models import CORES, SMALL, small, with_weights

MEANS = st.lists(st.floats(1, 4), min_size=1, max_size=30)


def test_positions_share_bins_that_double():
    assert bins_of(9).tolist() == [0, 1, 2, 2, 3, 3, 3, 3, 4]
    for position in (2**20 - 1, 2**20):
        assert bins_of(position + 1)[-1] == position.bit_length()


@given(MEANS, st.floats(0, 1, exclude_max=True))
def test_steps_are_the_mean_rounded_and_in_sum_within_one_step(means, offset):
    means_1T = np.array([means])
    ((planned_T,),) = planned_steps(means_1T, np.array([[offset]]))
    sums = np.cumsum(means)
    near = 1e-9  # sums of fractions are rounded
    assert (planned_T >= np.floor(means) - near).all()
    assert (planned_T <= np.ceil(np.array(means) + near)).all()
    assert (np.abs(planned_T.cumsum() - sums) <= 1 + near).all()


def test_each_token_has_its_mean_over_offsets():
    means_1T = np.array([[1.25, 1.25, 3.5, 2.0, 1.9]])
    offsets_B1 = (np.arange(2000)[:, None] + 0.5) / 2000
    (planned_BT,) = planned_steps(means_1T, offsets_B1)
    np.testing.assert_allclose(planned_BT.mean(0), means_1T[0], atol=1e-3)


CONFIGS = {"deep paths": small(loops=4), "core": small(**CORES["routed"])}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_means_are_those_of_the_tokens_that_take_a_step_or_a_repetition(config):
    model = with_weights(config)
    tokens = random_tokens(SMALL, batch=6, length=16)
    scored = torch.ones_like(tokens, dtype=torch.bool)
    scored[4:, 9:] = False
    exit_ = Intervention(halting=0.3)
    counts = StepCounts(config)
    traces = []
    for rows in (slice(0, 2), slice(2, 6)):  # two batches
        trace = RoutingTrace()
        forward(model, tokens[rows], trace=trace, intervention=exit_)
        counts.add(trace, scored[rows])
        traces.append(trace)

    sums, takers = counts.steps_AP.numpy(), counts.takers_AP.numpy()
    every = means_of(sums, takers, "all")
    placed = means_of(sums, takers, "position")
    for place, (number, repetition) in enumerate(config.applications()):
        taken: dict[int, list[int]] = {}
        for trace, row0 in zip(traces, (0, 2), strict=True):
            (layer,) = [
                layer
                for layer in trace.layers
                if (layer.layer, layer.repetition) == (number, repetition)
            ]
            if layer.steps_taken is None:
                continue
            for b, t in np.ndindex(tuple(layer.steps_taken.shape)):
                left = trace.core is not None and repetition > 0
                left = left and trace.core.steps_taken[b, t] <= repetition
                if scored[row0 + b, t] and not left:
                    steps = int(layer.steps_taken[b, t])
                    taken.setdefault(t.bit_length(), []).append(steps)
        of_all = [steps for of_bin in taken.values() for steps in of_bin]
        assert every[place] == pytest.approx(np.mean(of_all) if of_all else 1)
        for number_of_bin, of_bin in taken.items():
            assert placed[place, number_of_bin] == pytest.approx(np.mean(of_bin))
    assert (counts.takers_AP[-1].sum() > 0) == (config.core is not None)


def test_a_batch_of_a_short_model_is_padded_beyond_its_length():
    config = small(loops=4, max_seq_len=4)
    tokens, _ = collate([np.arange(1 + config.max_seq_len)])
    trace = RoutingTrace()
    forward(with_weights(config), tokens, trace=trace)
    counts = StepCounts(config)
    counts.add(trace, torch.ones_like(tokens, dtype=torch.bool))
    assert counts.takers_AP.sum(1).tolist() == [16.0, 16.0, 0.0]


def test_a_schedule_depends_on_the_window_and_not_on_its_batch():
    config = CONFIGS["deep paths"]
    means = np.full((3, 5), 2.4)
    cpu = torch.device("cpu")

    def steps(windows: list[int], source: str = "text") -> torch.Tensor:
        schedule = schedule_of(config, means, source, windows, 16, cpu)
        assert schedule.core is None
        return torch.stack([*schedule.layers.values()], dim=1)

    together = steps([3, 1, 2])
    assert torch.equal(together[1:2], steps([1]))
    assert not torch.equal(steps([1]), steps([2]))
    assert not torch.equal(steps([1]), steps([1], "other"))
    assert not torch.equal(together[:, 0], together[:, 1])  # layers apart
    assert set(together.unique().tolist()) == {2, 3}
    routed = CONFIGS["core"]
    means = np.full((1 + len(routed.applications()), 5), 1.5)
    of_core = schedule_of(routed, means, "text", [0], 16, cpu).core
    assert of_core is not None
    assert of_core.unique().tolist() == [1, 2]
