"""Ranks that SLURM or torchrun started, on one node or two, train as one process does."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from lightning.fabric.plugins.environments.lightning import find_free_network_port

from dualpath_cli.recipe.recipes import merge
from tests.processes import start
from tests.tiny_run import rows, tiny_recipe, train


def by_slurm(rank: int, nodes: int) -> dict[str, str]:
    """What srun sets for one of two tasks."""
    per_node = 2 // nodes
    return {
        "SLURM_JOB_ID": "17", "SLURM_JOB_NAME": "dualpath", "SLURM_NODELIST": "127.0.0.1",
        "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": str(per_node), "SLURM_NNODES": str(nodes),
        "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % per_node),
        "SLURM_NODEID": str(rank // per_node),
    }  # fmt: skip


def by_torchrun(rank: int, nodes: int) -> dict[str, str]:
    """What torchrun sets for one of two workers."""
    per_node = 2 // nodes
    return {
        "TORCHELASTIC_RUN_ID": "17", "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2",
        "RANK": str(rank), "LOCAL_RANK": str(rank % per_node),
        "LOCAL_WORLD_SIZE": str(per_node), "GROUP_RANK": str(rank // per_node),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("launcher", "nodes"),
    [
        (by_slurm, 2),
        *(pytest.param(*case, marks=pytest.mark.slow)
          for case in ((by_slurm, 1), (by_torchrun, 1), (by_torchrun, 2))),
    ],
)  # fmt: skip
def test_its_ranks_train_as_one_process_does(
    launcher: Callable[[int, int], dict[str, str]], nodes: int, texts: Path, tmp_path: Path
) -> None:
    recipe = tiny_recipe(texts, tmp_path / "runs")
    one = train(recipe, tmp_path / "one.yaml")
    trainer = {"strategy": "ddp", "num_nodes": nodes, "devices": 2 // nodes}
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump(merge(recipe, {"run": {"name": "two"}, "trainer": trainer})))
    port = str(find_free_network_port())
    logs = [tmp_path / f"rank-{rank}.log" for rank in range(2)]
    ranks = [
        start(["fit", "--config", str(path)], log, MASTER_PORT=port, **launcher(rank, nodes))
        for rank, log in enumerate(logs)
    ]
    for rank in ranks:
        rank.join(timeout=300)
        rank.kill()
    said = [log.read_text() for log in logs]
    assert [rank.exitcode for rank in ranks] == [0, 0], "".join(said)
    assert not said[1].strip(), "the first rank speaks for all"
    two = rows(one.with_name("two") / "metrics.csv")
    for row, wanted in zip(two, rows(one / "metrics.csv"), strict=True):
        assert float(row["loss"]) == pytest.approx(float(wanted["loss"]), rel=3e-6)
