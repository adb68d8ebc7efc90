"""Every strategy gives one process's losses on the same batches; replayed steps change
no bit.

One, two and four gloo processes train the cases of a group one after the other, when a
test first asks for one of them; the tests read the results. test_distributed.py changes
strategies on the way.
"""

import json
import math
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import SingleDeviceStrategy, Strategy

from dualpath_cli.base.errors import UserError
from dualpath_cli.flops.plan import Cluster, plan
from dualpath_cli.kernels.attention import kernel_on_gpu
from dualpath_cli.recipe.parser import build
from dualpath_cli.recipe.recipes import merge
from dualpath_cli.recipe.settings import RunSettings, Settings
from dualpath_cli.training import fit as fit_module
from dualpath_cli.training import graphs, parallel
from dualpath_cli.training import step as training_step
from dualpath_cli.training.parallel import FullyShardedStrategy, build_strategy
from tests.cli.processes import call_on_ranks
from tests.cli.test_faults import closed_terminal
from tests.training.strategy_cases import SEQUENCES, STEPS, Case, train_all
from tests.training.test_guard import scaled_gradient
from tests.training.tiny_run import back_to_step, rows, saved, tables, tiny_recipe

PAIRS = RunSettings(shard_size=2, rank_timeout=7.0)  # minutes
ROUNDED = RunSettings(shard_size=2, reduce_dtype="bfloat16")

SOME = 5  # steps of what does not give one process's losses to 1e-5

REFERENCES = [
    Case("untied"),
    Case("tied", tied=True),
    Case("scheduled", loops="scheduled"),
    Case("muon", muon=True),
    Case("core", core=True),
]
DRAWN = [Case("drawn", loops="drawn"), Case("core, drawn", core=True, loops="drawn")]
MIXED = [Case("mixed", precision="bf16-mixed", steps=SOME)]

SMOKE = [
    Case("ddp, accumulated, tied", "ddp", accumulate=2, tied=True),
    Case(
        "fsdp, compiled", "fsdp", compiled=True, accumulate=2, checkpointing="selective"
    ),
    Case("ddp, scheduled", "ddp", loops="scheduled", accumulate=2),
    Case("fsdp, muon", "fsdp", muon=True, accumulate=2),
    Case("fsdp, core", "fsdp", core=True, accumulate=2),
]

TWO = [
    Case("ddp", "ddp"),
    Case("ddp, rounded", "ddp", run=ROUNDED, steps=SOME),
    Case("ddp, compiled", "ddp", compiled=True),
    Case("fsdp, tied, full", "fsdp", accumulate=2, tied=True, checkpointing="full"),
    Case("fsdp, mixed", "fsdp", precision="bf16-mixed", steps=SOME),
    Case("fsdp, accumulated, rounded", "fsdp", run=ROUNDED, accumulate=2, steps=SOME),
    Case("fsdp, compiled, own classes", "fsdp", own=True, compiled=True),
    Case("ddp, drawn", "ddp", loops="drawn"),
    Case("fsdp, drawn", "fsdp", loops="drawn", accumulate=2),
    Case("fsdp, scheduled", "fsdp", loops="scheduled", accumulate=2),
    Case("ddp, first phase", "ddp", loops="scheduled", steps=SOME),
    Case("fsdp, first phase", "fsdp", loops="scheduled", steps=SOME),
    Case("ddp, muon", "ddp", muon=True),
    Case("fsdp, muon, mixed", "fsdp", muon=True, precision="bf16-mixed", steps=SOME),
]
CORES = [
    Case("ddp, core", "ddp", core=True, checkpointing="selective"),
    Case("ddp, core, drawn", "ddp", core=True, loops="drawn"),
    Case("fsdp, core, drawn", "fsdp", core=True, loops="drawn", compiled=True),
    Case("fsdp, core, full", "fsdp", core=True, checkpointing="full"),
]

FOUR = [
    Case("hsdp", "hsdp", run=PAIRS),
    Case(
        "hsdp, accumulated, tied",
        "hsdp",
        run=PAIRS,
        accumulate=2,
        tied=True,
        checkpointing="selective",
    ),
    Case("hsdp, rounded", "hsdp", run=ROUNDED, steps=SOME),
    Case("hsdp, compiled", "hsdp", run=PAIRS, compiled=True, accumulate=2),
    Case("fsdp on four, accumulated", "fsdp", accumulate=2),
    Case("hsdp, scheduled", "hsdp", run=PAIRS, loops="scheduled"),
    Case("hsdp, first phase", "hsdp", run=PAIRS, loops="scheduled", steps=SOME),
    Case("fsdp on four, first phase", "fsdp", loops="scheduled", steps=SOME),
    Case("hsdp, muon", "hsdp", run=PAIRS, muon=True, accumulate=2),
    Case(
        "fsdp on four, muon, mixed",
        "fsdp",
        muon=True,
        precision="bf16-mixed",
        accumulate=2,
        steps=SOME,
    ),
    Case("fsdp on four, muon", "fsdp", muon=True),
]

EXACT = [
    case
    for case in SMOKE + TWO + CORES + FOUR
    if case.precision == "32-true" and case.steps == STEPS
]
"""Cases whose losses are those of one process to 1e-5."""

GROUPS = [
    (1, REFERENCES),
    (1, DRAWN),
    (1, MIXED),
    (2, SMOKE),
    (2, TWO),
    (2, CORES),
    (4, FOUR),
]
rare = pytest.mark.slow


def marked(cases: list[Case]) -> list[Any]:
    """Cases as parameters of a test; those outside of SMOKE are rare."""
    marks = [() if case in SMOKE else rare for case in cases]
    return [
        pytest.param(c, marks=m, id=c.name) for c, m in zip(cases, marks, strict=True)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each case has a folder of its results."""
    return tmp_path_factory.mktemp("strategies")


def trained(folder: Path, name: str) -> Path:
    """The folder of a case, whose group is trained if it was not before."""
    for ranks, group in GROUPS:
        names = {case.name for case in group}
        if name in names and not (folder / group[0].name).exists():
            call_on_ranks(ranks, partial(train_all, group, ranks, folder), folder)
    return folder / name


def result(folder: Path, name: str) -> Any:
    return json.loads((trained(folder, name) / "result.json").read_text())


def weights(folder: Path, name: str, when: str) -> dict[str, torch.Tensor]:
    return torch.load(trained(folder, name) / "weights.pt")[when]


@pytest.mark.parametrize("case", marked(EXACT))
def test_twenty_steps_are_those_of_one_process(case, folder):
    """Losses, gradient norms, validation, and the weights at the start and at the
    end."""
    reference = case.reference
    found, wanted = result(folder, case.name), result(folder, reference)
    assert wanted["rows"][-1]["loss"] < 0.85 * wanted["rows"][0]["loss"], "it learns"
    assert len(found["rows"]) == STEPS
    for row, expected in zip(found["rows"], wanted["rows"], strict=True):
        assert row == pytest.approx(expected, rel=1e-5)
    assert found["validation"]["held_out"] == pytest.approx(
        wanted["validation"]["held_out"], rel=1e-5
    )
    for when, rtol, atol in (("start", 0.0, 0.0), ("end", 1e-4, 1e-5)):
        own, other = (weights(folder, name, when) for name in (case.name, reference))
        torch.testing.assert_close(own, other, rtol=rtol, atol=atol)


FIRST_PHASE = [case for case in TWO + FOUR if "first phase" in case.name]


def rows_of_first_phase(name: str) -> int | None:
    """How many rows of a weight one step uses; None: all of it."""
    if name.endswith((".gains", ".film")):
        return 1  # a row a step
    if ".router." in name:
        return 0  # one step leaves nothing to choose
    return None


@pytest.mark.parametrize("case", marked(FIRST_PHASE))
def test_weights_of_steps_that_are_not_run_rest_wherever_they_lie(case, folder):
    """Two rows on two ranks, or on four, two of which have none: equal bits; the others
    move."""
    start, end = (weights(folder, case.name, when) for when in ("start", "end"))
    for name in start:
        used = rows_of_first_phase(name)
        if used != 0:
            assert not torch.equal(start[name][:used], end[name][:used]), name
        if used is not None:
            assert torch.equal(start[name][used:], end[name][used:]), name


PLANNED = [
    case
    for case in SMOKE + TWO + CORES + FOUR
    # Muon's matrices travel in bfloat16, as planned, where products are in it.
    if case.loops is None and (not case.muon or case.precision == "bf16-mixed")
]


@pytest.mark.parametrize("case", marked(PLANNED))
def test_a_rank_holds_what_is_planned_and_gradients_travel_once_a_step(case, folder):
    """To the byte: no number of ranks divides the vocabulary, and 4 do not divide the
    norms."""
    ranks, sharded = 4 if case in FOUR else 2, case.strategy != "ddp"
    cluster = Cluster(
        gpus=ranks,
        shard_size=2,
        accumulate=case.accumulate,
        micro_batch=SEQUENCES // ranks // case.accumulate,
        reduce_bytes=4 if case.run.reduce_dtype is None else 2,
        optimizer=case.optim.name,
    )
    planned, found = (
        plan(case.config, case.strategy, cluster),
        result(folder, case.name),
    )
    reducing = "reduce-scatter" if sharded else "all-reduce"
    calls = [
        n for kind, dtype, n in found["sent"] if kind == reducing and dtype != "int64"
    ]
    # Where gradients accumulate, FSDP2 reduces a unit after each of its applications.
    applied = case.config.n_layers
    if case.core and case.accumulate > 1:
        _, _, coda = case.config.stretches
        applied = len(case.config.applications())
        applied += len(coda)  # reads out the first repetition
    assert calls == [applied + 1 if sharded else 1]
    for name in ("weights", "gradients", "moments"):
        assert found["held"][name] == getattr(planned, name), name
    if case.accumulate > 1 and sharded:
        assert found["held"]["unreduced"] == planned.unreduced


@rare
def test_gradients_travel_in_bfloat16_where_asked(folder):
    exact = result(folder, "untied")["rows"]
    for name in ("ddp, rounded", "fsdp, accumulated, rounded", "hsdp, rounded"):
        for kind, dtype, _ in result(folder, name)["sent"]:
            assert dtype == ("float32" if kind == "all-gather" else "bfloat16")
        rows = result(folder, name)["rows"]
        assert rows[0]["norm"] != pytest.approx(exact[0]["norm"], rel=1e-6), (
            "it is rounded"
        )
        for row, expected in zip(rows, exact[:SOME], strict=True):
            assert row == pytest.approx(expected, rel=2e-3)


@rare
def test_mixed_precision_keeps_weights_in_float32(folder):
    found, wanted = result(folder, "fsdp, mixed"), result(folder, "mixed")
    assert found["dtypes"] == ["torch.float32"]
    assert {dtype for _, dtype, _ in found["sent"]} == {"float32"}
    # Nothing is rounded by being sharded. Later steps part by the order of sums in
    # bfloat16.
    assert found["rows"][0]["loss"] == pytest.approx(
        wanted["rows"][0]["loss"], rel=1e-7
    )
    assert found["rows"][0]["loss"] != result(folder, "untied")["rows"][0]["loss"]
    for row, expected in zip(found["rows"], wanted["rows"], strict=True):
        assert row == pytest.approx(expected, rel=0.02)


@rare
def test_hsdp_shards_within_neighbours_and_replicates_across(folder):
    assert result(folder, "hsdp")["mesh"] == [[0, 1], [2, 3]]
    assert result(folder, "fsdp on four, accumulated")["mesh"] == [0, 1, 2, 3]


@rare
def test_all_groups_wait_as_long_as_the_run_says(folder):
    assert result(folder, "hsdp")["timeouts"] == [PAIRS.rank_timeout] * 2


def test_pytorch_splits_no_compiled_block_into_buckets_of_ddp():
    with torch._dynamo.config.patch(optimize_ddp=True):
        parallel.build_model(Case("ddp").config, compile_blocks=True)
        assert torch._dynamo.config.optimize_ddp is False


def strategy_of(nodes: int, devices: int, **settings: Any) -> FullyShardedStrategy:
    strategy: Strategy | str = build_strategy("hsdp", RunSettings(**settings))
    assert isinstance(strategy, FullyShardedStrategy)
    strategy.num_nodes = nodes
    strategy.parallel_devices = [torch.device("cpu")] * devices
    return strategy


def test_a_group_is_a_node_by_default():
    assert strategy_of(16, 4).shards == 4
    assert strategy_of(16, 4, shard_size=8).shards == 8


def test_groups_that_do_not_make_up_all_devices_are_refused():
    with pytest.raises(
        UserError, match="does not divide the 6 devices of this run; 2 or 3 or 6"
    ):
        strategy_of(3, 2, shard_size=4).check_shards()
    with pytest.raises(UserError, match="each node has one device; use ddp or fsdp"):
        strategy_of(4, 1).check_shards()


def test_where_compiling_fails_the_run_says_so_once_and_goes_on(
    fit, monkeypatch, capsys
):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("No working C++ compiler found\nand much more")

    monkeypatch.setattr(torch, "compile", broken)
    parallel.why_not_compiled.cache_clear()
    try:
        runs = [fit(run={"compile": True})]
        with closed_terminal() as terminal, redirect_stdout(terminal):
            runs.append(fit(run={"compile": True, "name": "unseen"}))
    finally:
        parallel.why_not_compiled.cache_clear()  # other tests can compile
    assert [len(rows(run / "metrics.csv")) for run in runs] == [6, 6]
    assert capsys.readouterr().out.count("(No working C++ compiler found)\n") == 1


# Micro-batches that are recorded once and replayed. A CPU has no CUDA graphs: a record
# is the work itself, done again on the same memory. What only a GPU can show,
# benchmarks/gpu/runs.py does.


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
    patch.setattr(fit_module, "why_no_graph", lambda *ignored: "")
    return replays


@pytest.mark.parametrize(("loops", "micro_batch"), [(2, 1), (1, 4)])
def test_a_run_of_replayed_steps_is_that_of_launched_ones(
    loops, micro_batch, fit, monkeypatch
):
    """Also where a step is left out, and the run is continued; of one and of four
    micro-batches, with a router and at K = 1, where it gets no gradient."""
    monkeypatch.setattr(training_step, "clip_gradients", scaled_gradient({5}, math.nan))
    changes, model = {"micro_batch": micro_batch, "save_every": 1}, {"loops": loops}
    expected, parts = fit(run=changes, model=model), 4 // micro_batch
    replays = replaying(monkeypatch)
    run = fit(run={**changes, "name": "replayed"}, model=model)
    assert replays == [3 * parts]  # of the steps after the warm ones

    def check() -> None:
        assert tables(run) == tables(expected)
        for step in range(1, 7):
            mine, theirs = (
                saved(r / f"checkpoints/step-{step:08d}") for r in (run, expected)
            )
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
        ({"model": {"n_experts": 1, "top_k": 1}}, "experts"),
        ({"run": {"train_loops": [1, 2]}}, "loops that differ from step to step"),
        ({"trainer": {"detect_anomaly": True}}, "trainer.detect_anomaly"),
        ({"model": {"d_model": 4096, "n_heads": 32}}, "which keeps the GPU busy"),
    ],
)
def test_the_line_says_why_steps_are_launched(changes, reason, texts, tmp_path):
    recipe = merge(tiny_recipe(texts, tmp_path), changes)
    settings = build(Settings, recipe)
    settings = replace(settings, run=replace(settings.run, micro_batch=4096))
    trainer: Any = SimpleNamespace(
        strategy=SingleDeviceStrategy(torch.device("cuda")),
        world_size=1,
        precision="bf16-mixed",
    )
    said = graphs.why_no_graph(settings, trainer)
    assert said.endswith(reason) if reason else not said
    trainer.world_size = 2
    assert graphs.why_no_graph(settings, trainer) == "several devices"


@pytest.mark.parametrize("name", ["fsdp", "ddp"])
def test_no_graph_is_recorded_of_a_strategy_with_hooks_on_one_gpu(
    name, texts, tmp_path
):
    recipe = tiny_recipe(texts, tmp_path)
    settings = build(Settings, merge(recipe, {"trainer": {"strategy": name}}))
    strategy = build_strategy(name, settings.run)
    strategy.parallel_devices = [torch.device("cuda")]
    strategy.cluster_environment = LightningEnvironment()
    trainer: Any = SimpleNamespace(
        strategy=strategy, world_size=1, precision="bf16-mixed"
    )
    said = graphs.why_no_graph(settings, trainer)
    assert said == f"trainer.strategy {name}"


@pytest.mark.parametrize(
    ("version", "major", "advised"),
    [(91400, 9, True), (91500, 9, False), (91400, 8, False)],
)
def test_an_old_cudnn_is_named_where_a_newer_one_is_faster(
    version, major, advised, monkeypatch
):
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: version)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 0))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    kernel, advice = kernel_on_gpu(4, 2, 64, 128, torch.bfloat16, torch.device("cpu"))
    assert kernel == "FlashAttention 2"
    assert ("cuDNN 9.14 is older" in advice) == advised
