"""FSDP2 on more ranks than a test can start: a fake process group, and tensors without numbers."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.accelerators.cpu import CPUAccelerator
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from dualpath_cli.flops.paper import configurations
from dualpath_cli.flops.plan import Cluster, plan
from dualpath_cli.recipe.optimizer import OptimSettings
from dualpath_cli.recipe.settings import RunSettings
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.parallel import FullyShardedStrategy, build_strategy
from tests.training.meter import Collectives

NODE = 8
(F160M,) = (
    replace(row.model_config("as_trained"), n_layers=2)
    for row in configurations()
    if row.recipe == "f160m_a25_k4"
)
"""The paper's widths and vocabulary; all of its 16 layers are alike."""


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("fsdp", 8),
        ("fsdp", 64),
        ("hsdp", 1024),
        pytest.param("hsdp", 64, marks=pytest.mark.slow),
        pytest.param("fsdp", 1024, marks=pytest.mark.slow),  # whose gradients are cut in 1,024
    ],
)
def test_a_step_of_the_papers_model_sends_what_is_planned(name, ranks):
    """Two micro-batches, whose gradients travel with the second, in nodes of NODE."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    strategy = build_strategy(name, RunSettings())
    assert isinstance(strategy, FullyShardedStrategy)
    strategy.accelerator = CPUAccelerator()
    strategy.cluster_environment = LightningEnvironment()
    strategy.parallel_devices = [torch.device("cpu")] * NODE
    strategy.num_nodes = ranks // NODE
    module = DualPathModule(
        F160M, OptimSettings(), [1] * F160M.vocab_size, [], seed=None, compile_blocks=False
    )
    strategy.connect(module)
    strategy.setup_environment()
    with FakeTensorMode(), Collectives() as counted:
        module.configure_model()
        assert module.model is not None
        tokens = torch.zeros(1, 16, dtype=torch.long)
        with strategy.block_backward_sync():
            module(tokens, tokens).mean().backward()
        module(tokens, tokens).mean().backward()
    weights = [parameter.to_local() for parameter in module.model.parameters()]

    cluster = Cluster(
        gpus=ranks, gpus_per_node=NODE, shard_size=NODE, micro_batch=1, accumulate=2, tflops=1,
        node_bandwidth=1, network_bandwidth=1,
    )  # fmt: skip
    planned = plan(F160M, name, cluster)
    assert {(kind, group): sent for (kind, group, _), sent in counted.sent.items()} == {
        (call.kind, call.ranks): (call.calls, call.whole_bytes) for call in planned.collectives
    }
    assert sum(weight.untyped_storage().nbytes() for weight in weights) == planned.memory.weights
