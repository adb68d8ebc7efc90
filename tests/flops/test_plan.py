"""The plan of many GPUs: rings send what they are said to send.

That it is what ranks really hold and send, tests/training/test_strategies.py asserts.
"""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dualpath_cli.flops.count import newton_schulz_flops, parameters
from dualpath_cli.flops.paper import configurations
from dualpath_cli.flops.plan import STRATEGIES, Cluster, Collective, plan
from tests.conftest import OutputOf

CLUSTER = Cluster(
    gpus=64, gpus_per_node=8, shard_size=8, micro_batch=2, accumulate=4, tflops=100,
    node_bandwidth=100, network_bandwidth=10,
)  # fmt: skip


def around_rings(call: Collective) -> tuple[float, float]:
    """Bytes that a GPU sends at all and to other nodes, by handing chunks on one by one.

    There are as many rings as GPUs on a node; each goes through the nodes in turn and leaves them
    by another GPU.
    """
    ranks, near = call.ranks, call.on_a_node
    sent, across = [0.0] * ranks, [0.0] * ranks
    chunk = call.whole_bytes / ranks / near  # of a rank, on one of the rings
    for shift in range(near):
        places = [(node, place) for node in range(ranks // near) for place in range(near)]
        ring = [node * near + (shift + place) % near for node, place in places]
        for _ in range(2 if call.kind == "all-reduce" else 1):
            for _ in range(ranks):  # each chunk
                for here, after in itertools.pairwise(ring):
                    sent[here] += chunk
                    across[here] += chunk * (here // near != after // near)
                ring = ring[1:] + ring[:1]  # the next chunk begins a place further on
    assert max(sent) == pytest.approx(min(sent))
    return max(sent), sum(across) / ranks


@pytest.mark.parametrize(("ranks", "near"), [(2, 2), (4, 2), (8, 4), (6, 1)])
@pytest.mark.parametrize("kind", ["all-gather", "all-reduce"])
def test_a_ring_sends_what_handing_on_sends(kind, ranks, near):
    call = Collective(kind, 1, ranks, near, whole_bytes=9600)
    sent, across = around_rings(call)
    assert float(call.sent) == pytest.approx(sent)
    assert float(call.across) == pytest.approx(across if ranks > near else 0)


@pytest.mark.parametrize(("recipe", "gpus"), [("quickstart", 16), ("f80m_wide", 64)])
def test_a_plan_by_itself_is_of_as_many_gpus_as_a_step_can_be_dealt_out_to(recipe, gpus, output_of):
    words = f"flops --config {recipe} --plan --format json"
    assert json.loads(output_of(*words.split()))["plan"]["gpus"] == gpus


(ROW,) = [row for row in configurations() if row.recipe == "f160m_a25_k4"]
F160M = ROW.model_config("as_trained")
OF_RECIPE = "--config f160m_a25_k4"
Planned = Callable[..., dict[str, Any]]


@pytest.fixture
def planned(output_of: OutputOf, tmp_path: Path) -> Planned:
    """`planned(words, overlay)`: the plan of 16 GPUs, with another recipe's text over the first."""

    def plan_of(words: str = OF_RECIPE, overlay: str = "") -> dict[str, Any]:
        (tmp_path / "overlay.yaml").write_text(overlay)
        over = ["--config", tmp_path / "overlay.yaml"] if overlay else []
        words = f"flops --plan --gpus 16 --format json {words}"
        return json.loads(output_of(*words.split(), *over))["plan"]

    return plan_of


def test_a_recipe_says_how_its_steps_are_made_and_options_before_it(planned):
    own = "run: {batch_tokens: 1048576, micro_batch: 4, shard_size: 4, reduce_dtype: bfloat16}"
    names = ("shard_size", "micro_batch", "accumulate", "reduce_bytes")
    for words, numbers_of_steps in (
        (OF_RECIPE, [4, 4, 4, 2]),
        (f"{OF_RECIPE} --shard-size 16 --micro-batch 8", [16, 8, 2, 2]),
    ):
        said = planned(words, own)
        assert [said[name] for name in names] == numbers_of_steps
    assert planned("--budget 160M --alpha 25 --k 4") == planned()


def test_muon_holds_less_gathers_more_and_computes_more(planned):
    plans = planned(), planned(overlay="optim: {name: muon}")
    for strategy in STRATEGIES:
        adamw, muon = (found[strategy] for found in plans)
        moments = [found["memory"]["moments"] for found in (adamw, muon)]
        assert moments[0] / 2 < moments[1] < 0.6 * moments[0]
        seconds = newton_schulz_flops(F160M) / 68e12
        assert muon["compute_seconds"] - adamw["compute_seconds"] == pytest.approx(seconds)
        if strategy != "ddp":
            gathered = [found["sent"]["all-gather"]["whole_bytes"] for found in (adamw, muon)]
            hidden = 2 * adamw["memory"]["weights"] * {"fsdp": 16, "hsdp": 8}[strategy] / 4
            assert 0.9 * hidden < gathered[1] - gathered[0] < hidden


def test_hsdp_on_one_node_is_fsdp():
    node = replace(CLUSTER, gpus=8)
    fsdp, hsdp = (plan(F160M, strategy, node) for strategy in ("fsdp", "hsdp"))
    assert replace(hsdp, strategy="fsdp") == fsdp


def test_hsdp_keeps_weights_within_a_node():
    """Across nodes go the gradients of a shard alone, whatever is accumulated."""
    many = plan(F160M, "hsdp", CLUSTER)
    assert [call.kind for call in many.collectives if call.across] == ["all-reduce"]
    across = sum(call.across for call in many.collectives)
    # Twice 7/8 of an eighth of the weights, which fill their rows up by little.
    assert float(across) == pytest.approx(2 * 7 / 8 * 4 * parameters(F160M) / 8, rel=1e-3)
    fsdp = sum(call.across for call in plan(F160M, "fsdp", CLUSTER).collectives)
    assert fsdp > 4 * across


def test_the_page_of_clusters_has_the_memory_of_a_gpu_as_it_is_planned(output_of):
    page = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text(encoding="utf-8")
    for recipe, name in (("f80m_a50_k4", "F80M a50 K4"), ("f160m_a25_k4", "F160M a25 K4")):
        words = f"flops --plan --gpus 1 --format json --config {recipe} --config cluster_1"
        memory = json.loads(output_of(*words.split()))["plan"]["ddp"]["memory"]["sum"]
        assert f"{memory / 1e9:.1f} GB for {name}" in " ".join(page.split())


def test_the_command_says_it_in_json_and_in_a_table(output_of):
    words = ["flops", "--config", "f160m_a25_k4", "--plan", "--gpus", "16", "--tflops", "100"]
    words += ["--node-bandwidth", "100", "--network-bandwidth", "10"]
    said = json.loads(output_of(*words, "--format", "json"))["plan"]
    cluster = replace(CLUSTER, gpus=16, accumulate=16)
    assert {key: said[key] for key in vars(cluster)} == vars(cluster)
    table = " ".join(output_of(*words).split())
    for strategy in STRATEGIES:
        expected = plan(F160M, strategy, cluster)
        assert said[strategy]["memory"]["weights"] == expected.memory.weights
        assert said[strategy]["sending_seconds"] == pytest.approx(expected.sending_seconds)
        total = said[strategy]["memory"]["sum"]
        assert total == sum(vars(expected.memory).values())
        assert f"{total / 1e9:.3f}" in table
        assert f"{expected.sending_seconds / expected.compute_seconds:.3f}" in table
    assert "accumulated 16 times" in table
    assert "assumed, not measured" in table


def test_time_is_bytes_over_bandwidth():
    planned = plan(F160M, "ddp", CLUSTER)
    (call,) = planned.collectives
    seconds = float(call.sent) * (7 / 8 / 100e9 + 1 / 8 / 10e9)
    assert planned.sending_seconds == pytest.approx(seconds)
