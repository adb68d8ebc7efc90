"""Micro-batches that are recorded once and replayed change no bit of a run.

A CPU has no CUDA graphs: here a record is the work itself, done again on the same memory. What only
a GPU can show, the GPU programme does (benchmarks/gpu/small.py).
"""

import math
from collections.abc import Callable

import pytest
import torch

from dualpath_cli.training import fit as fit_module
from dualpath_cli.training import graphs
from dualpath_cli.training.module import DualPathModule
from tests.training.test_guard import scaled_gradient
from tests.training.tiny_run import back_to_step, saved, tables


def replaying(patch: pytest.MonkeyPatch) -> list[int]:
    """Makes steps replayed ones; the result is how often each record is, in order."""
    replays: list[int] = []

    def record(work: Callable[[], None], begin: Callable[[], None]) -> Callable[[], None]:
        begin()
        number = len(replays)
        replays.append(0)

        def replay() -> None:
            replays[number] += 1
            work()

        return replay

    patch.setattr(graphs, "record", record)
    patch.setattr(fit_module, "why_launched", lambda *ignored: "")
    return replays


def test_a_run_of_replayed_steps_is_that_of_launched_ones(fit, monkeypatch):
    """Also where a step has several micro-batches, one is left out, and the run is continued."""
    spoiled = scaled_gradient({5}, math.nan)
    monkeypatch.setattr(DualPathModule, "on_before_optimizer_step", spoiled)
    changes = {"micro_batch": 1, "save_every": 1}
    expected = fit(run=changes)
    replays = replaying(monkeypatch)
    run = fit(run={**changes, "name": "replayed"})
    assert replays == [3 * 4]  # of the steps after the warm ones, four micro-batches each

    def check() -> None:
        assert tables(run) == tables(expected)
        for step in range(1, 7):
            mine, theirs = (saved(r / f"checkpoints/step-{step:08d}") for r in (run, expected))
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)

    check()
    back_to_step(run, 1)
    fit(run={**changes, "name": "replayed"})
    assert replays == [12, 8]
    check()
