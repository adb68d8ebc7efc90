"""Micro-batches that are recorded once and replayed change no bit of a run.

A CPU has no CUDA graphs: here a record is the work itself, done again on the same memory. What only
a GPU can show, the GPU programme does (benchmarks/gpu/runs.py).
"""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dualpath_cli.kernels.attention import kernel_on_gpu
from dualpath_cli.recipe.parser import build
from dualpath_cli.recipe.recipes import merge
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.training import fit as fit_module
from dualpath_cli.training import graphs
from dualpath_cli.training.module import DualPathModule
from tests.training.test_guard import scaled_gradient
from tests.training.tiny_run import back_to_step, saved, tables, tiny_recipe


def replaying(patch: pytest.MonkeyPatch) -> list[int]:
    """Makes steps replayed ones; the result is how often each record is, in order."""
    replays: list[int] = []

    def record(
        work: Callable[[], object], device: torch.device, warm_up: Callable[[], object]
    ) -> Callable[[], object]:
        warm_up()
        number = len(replays)
        replays.append(0)

        def replay() -> object:
            replays[number] += 1
            return work()

        return replay

    patch.setattr(graphs, "CudaGraph", record)
    patch.setattr(fit_module, "why_launched", lambda *ignored: "")
    return replays


@pytest.mark.parametrize(("loops", "micro_batch"), [(2, 1), (1, 4)])
def test_a_run_of_replayed_steps_is_that_of_launched_ones(loops, micro_batch, fit, monkeypatch):
    """Also where a step is left out, and the run is continued; of one and of four micro-batches,
    with a router and at K = 1, where it gets no gradient."""
    spoiled = scaled_gradient({5}, math.nan)
    monkeypatch.setattr(DualPathModule, "on_before_optimizer_step", spoiled)
    changes, model = {"micro_batch": micro_batch, "save_every": 1}, {"loops": loops}
    expected, parts = fit(run=changes, model=model), 4 // micro_batch
    replays = replaying(monkeypatch)
    run = fit(run={**changes, "name": "replayed"}, model=model)
    assert replays == [3 * parts]  # of the steps after the warm ones

    def check() -> None:
        assert tables(run) == tables(expected)
        for step in range(1, 7):
            mine, theirs = (saved(r / f"checkpoints/step-{step:08d}") for r in (run, expected))
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)

    check()
    back_to_step(run, 1)
    fit(run={**changes, "name": "replayed"}, model=model)
    assert replays == [3 * parts, 2 * parts]
    check()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"model": {"document_start": 1}}, "documents"),
        ({"model": {"n_experts": 2, "top_k": 1}}, "experts"),
        ({"run": {"train_loops": [1, 2]}}, "loops that differ from step to step"),
        ({"trainer": {"detect_anomaly": True}}, "trainer.detect_anomaly"),
        ({"model": {"d_model": 4096, "n_heads": 32}}, "which keeps the GPU busy"),
    ],
)
def test_the_line_says_why_steps_are_launched(changes, reason, texts, tmp_path):
    recipe = merge(tiny_recipe(texts, tmp_path), changes)
    settings = build(Settings, recipe)
    strategy = SimpleNamespace(root_device=torch.device("cuda"))
    trainer: Any = SimpleNamespace(strategy=strategy, world_size=1, precision="bf16-mixed")
    said = graphs.why_launched(settings, trainer, micro_batch=4096)
    assert said.endswith(reason) if reason else not said
    trainer.world_size = 2
    assert graphs.why_launched(settings, trainer, micro_batch=4096) == "several devices"


@pytest.mark.parametrize(
    ("version", "major", "advised"), [(91400, 9, True), (91500, 9, False), (91400, 8, False)]
)
def test_an_old_cudnn_is_named_where_a_newer_one_is_faster(version, major, advised, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: version)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 0))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    kernel, advice = kernel_on_gpu(2, 64, 128, torch.bfloat16, torch.device("cpu"))
    assert kernel == "FlashAttention 2"
    assert ("cuDNN 9.14 is older" in advice) == advised
