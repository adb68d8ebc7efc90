"""A run is the same on any number of ranks, by any strategy, also where these change on
its way.

Ranks come together, or say who is missing. Lightning's own affairs are touched by one
file alone; tests of what that gains see them move.
"""

import ast
import atexit
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.fabric.utilities.distributed import _destroy_dist_connection
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers import subprocess_script

import dualpath_cli
from dualpath_cli.recipe.recipes import merge
from dualpath_cli.run.run_folder import newest_checkpoint, read_recipe
from dualpath_cli.run.weights import load_weights
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.training import fit, internals, launch
from dualpath_cli.training import ranks as joining
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.parallel import build_model
from dualpath_cli.training.ranks import Ranks
from tests.cli.processes import (
    SERVER,
    exit_codes,
    run_on_ranks,
    run_on_two_ranks,
    start,
)
from tests.data_prep.web import wait_for
from tests.training.tiny_run import (
    SEQ_LEN,
    Fit,
    back_to_step,
    losses_in,
    prepare,
    rows,
    tables,
    tiny_recipe,
    write_blocks,
    write_text,
)

rare = pytest.mark.slow
STEPS = 9


def log_sequences(folder: Path) -> None:
    """Writes down what each step is trained on, a file a rank."""
    training_step = DualPathModule.training_step

    def logged(module: DualPathModule, batch: Any, batch_idx: int) -> torch.Tensor:
        path = (
            folder
            / f"rank-{os.environ['LOCAL_RANK']}-of-{module.trainer.world_size}.txt"
        )
        with path.open("a") as file:
            for tokens in batch[0].tolist():
                print(module.trainer.global_step + 1, *tokens, file=file)
        return training_step(module, batch, batch_idx)

    DualPathModule.training_step = logged  # type: ignore[method-assign]


VARIANTS: dict[str, dict[str, Any]] = {
    "untied": {"model": {"n_experts": 3}},
    "tied": {"model": {"tie_embeddings": True, "step_conditioning": "film"}},
    "muon": {"optim": {"name": "muon"}},
    "scheduled": {
        "run": {"loop_schedule": [[0, 1], [0.5, 2]]},
        "model": {"step_conditioning": "film"},
    },
}
"""What the recipe of a run changes."""


class Runs:
    """Nine steps of eight sequences of twenty, so that epochs end within a step, two of
    them."""

    def __init__(self, folder: Path, texts: Path) -> None:
        data = prepare(folder / "data", write_blocks(folder / "blocks.jsonl", 20))
        uneven = write_text(folder / "uneven.jsonl", 3, documents=2, words=3)
        batch = 8 * SEQ_LEN
        changes = {
            "run": {
                "batch_tokens": batch,
                "max_tokens": STEPS * batch,
                "save_every": 3,
            },
            # Two documents and batches of two: with two ranks, one batch is padding.
            "data": {
                "path": str(data),
                "max_epochs": 9,
                "val": {"uneven": str(uneven), "folder": str(texts / "train")},
            },
        }
        self.folder = folder
        self.recipe = merge(tiny_recipe(texts, folder / "runs"), changes)
        self.trained: dict[str, Path] = {}

    def words(self, name: str, **changes: Any) -> list[str]:
        """The command that trains a run `name`."""
        path = self.folder / f"{name}.yaml"
        recipe = merge(merge(self.recipe, changes), {"run": {"name": name}})
        path.write_text(yaml.safe_dump(recipe))
        return ["fit", "--config", str(path)]

    def train(
        self,
        name: str,
        ranks: int,
        strategy: str,
        log: Path,
        *more: str,
        **changes: Any,
    ) -> Path:
        """Trains or continues a run on so many ranks, which log their sequences to
        `log`."""
        log.mkdir(exist_ok=True)
        words = self.words(name, trainer={"strategy": strategy}, **changes)
        run_on_ranks(ranks, [*words, *more], self.folder, partial(log_sequences, log))
        return self.folder / "runs" / "tiny" / name

    def single(self, variant: str = "untied") -> Path:
        """The run of one process, which is trained once."""
        name = f"single-{variant}"
        if name not in self.trained:
            log = self.folder / name
            run = self.train(name, 1, "single", log, **VARIANTS[variant])
            self.trained[name] = run
        return self.trained[name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, texts: Path) -> Runs:
    return Runs(tmp_path_factory.mktemp("distributed"), texts)


def sequences(folder: Path, ranks: int) -> dict[int, list[str]]:
    """What all ranks together were trained on in each step."""
    found = defaultdict(list)
    for rank in range(ranks):
        for line in (folder / f"rank-{rank}-of-{ranks}.txt").read_text().splitlines():
            step, tokens = line.split(" ", 1)
            found[int(step)].append(tokens)
    return {step: sorted(tokens) for step, tokens in found.items()}


def assert_same_run(run: Path, expected: Path) -> None:
    """Numbers have six digits, the last of which may differ by one: 1.00000 and
    1.00001."""
    wanted = tables(expected)
    for name, logged in tables(run).items():
        for row, other in zip(logged, wanted[name], strict=True):
            for column in row.keys() - {"set"}:
                if other[column]:
                    assert float(row[column]) == pytest.approx(
                        float(other[column]), rel=1e-5
                    ), (name, column, row, other)


WAYS: dict[str, tuple[str, list[tuple[str, int, int]]]] = {
    # The variant; of each third of the run, strategy, ranks and micro-batch.
    "one, fsdp on two, one": (
        "untied",
        [("single", 1, 2), ("fsdp", 2, 4), ("single", 1, 8)],
    ),
    "fsdp": ("untied", [("fsdp", 1, 2), ("fsdp", 4, 1), ("fsdp", 2, 4)]),
    "ddp": ("untied", [("ddp", 1, 2), ("ddp", 4, 1), ("ddp", 2, 4)]),
    "fsdp, ddp, fsdp": ("untied", [("fsdp", 2, 2), ("ddp", 2, 2), ("fsdp", 2, 2)]),
    "tied": ("tied", [("fsdp", 2, 2), ("ddp", 2, 2), ("fsdp", 2, 2)]),
    "hsdp, fsdp, hsdp": ("untied", [("hsdp", 4, 2), ("fsdp", 4, 2), ("hsdp", 4, 1)]),
    "muon": ("muon", [("fsdp", 2, 2), ("ddp", 2, 2), ("hsdp", 4, 1)]),
    "scheduled": ("scheduled", [("fsdp", 2, 2), ("single", 1, 2), ("fsdp", 2, 2)]),
}
SMOKE = ["one, fsdp on two, one"]


@pytest.mark.parametrize(
    "way",
    [*SMOKE, *(pytest.param(way, marks=rare) for way in WAYS if way not in SMOKE)],
)
def test_a_run_is_the_same_however_its_parts_are_trained(way, runs, output_of):
    """Losses, weights and the sequences of each step; and one process reads it."""
    variant, parts = WAYS[way]
    expected = runs.single(variant)
    wanted = sequences(runs.folder / expected.name, 1)
    assert [len(wanted[step]) for step in range(1, STEPS + 1)] == [8] * STEPS
    run = expected.with_name(way)
    for number, (strategy, ranks, micro_batch) in enumerate(parts):
        if number == 0 and strategy == "single":
            shutil.copytree(expected, run, symlinks=True)
            continue
        if number:
            back_to_step(run, 3 * number)
        log = runs.folder / f"{way} {number}"
        more = ["--run.micro_batch", str(micro_batch), "--data.workers", str(number)]
        if strategy == "hsdp":
            more += ["--run.shard_size", "2"]
        runs.train(way, ranks, strategy, log, *more, **VARIANTS[variant])
        wrote = {path.name[:11] for path in newest_checkpoint(run).glob("shard-*")}
        assert len(wrote) == (ranks if strategy in ("fsdp", "hsdp") else 1), (
            "each its shard"
        )
        assert_same_run(run, expected)
        left = range(1 + 3 * number, STEPS + 1)
        assert sequences(log, ranks) == {step: wanted[step] for step in left}

    weights = []
    for folder in (run, expected):
        model = build_model(ModelConfig(**read_recipe(folder)["model"]))
        load_weights(model, newest_checkpoint(folder))
        weights.append(dict(model.named_parameters()))
    for name, parameter in weights[0].items():
        torch.testing.assert_close(parameter, weights[1][name], rtol=1e-3, atol=1e-5)

    losses = losses_in(output_of("validate", "--ckpt_path", run))
    for last in rows(expected / "validation.csv")[-2:]:
        wanted = pytest.approx(float(last["loss"]), rel=1e-4)
        assert losses[last["set"]] == wanted


@rare
def test_where_the_first_ranks_stopped_within_a_validation_the_others_make_it(
    runs, tmp_path
):
    run = runs.train("validated", 2, "ddp", tmp_path, **VARIANTS["untied"])
    back_to_step(run, 6)
    table = run / "validation.csv"
    kept = [
        line
        for line in table.read_text().splitlines()
        if not line.startswith(("6,", "9,"))
    ]
    table.write_text("\n".join(kept) + "\n")
    more = "--run.micro_batch", "8"
    runs.train("validated", 1, "single", tmp_path, *more, **VARIANTS["untied"])
    assert_same_run(run, runs.single())


def see_an_older_checkpoint() -> None:
    """Has the second rank find step 3, as where a file system shows files late."""

    def older(run: Path, name_faults: bool = True) -> Path:
        return run / "checkpoints" / "step-00000003"

    if os.environ["LOCAL_RANK"] == "1":
        launch.newest_checkpoint = fit.newest_checkpoint = older


def test_ranks_that_see_different_checkpoints_train_no_step(runs):
    run = runs.single().with_name("unseen")
    shutil.copytree(runs.single(), run, symlinks=True)
    back_to_step(run, 6)
    words = runs.words("unseen", trainer={"strategy": "ddp"}, **VARIANTS["untied"])
    said = run_on_two_ranks(
        words, runs.folder, see_an_older_checkpoint, expected=(2, 2)
    )
    line = (
        "ranks differ: the checkpoint is step-00000006 on rank 0 and step-00000003 on "
        "rank 1; make the machines alike"
    )
    assert line in said[0]


@rare
def test_the_command_starts_the_ranks_itself(runs):
    plan = {"strategy": "ddp", "devices": 2}
    words = runs.words("launched", trainer=plan, **VARIANTS["untied"])
    subprocess.run([sys.executable, "-m", "dualpath_cli", *words], check=True)
    run = runs.folder / "runs" / "tiny" / "launched"
    assert_same_run(run, runs.single())
    assert (run / "curve.png").is_file()


# Ranks that SLURM or torchrun starts


def by_slurm(rank: int, nodes: int) -> dict[str, str]:
    """What srun sets for one of two tasks."""
    per_node = 2 // nodes
    return {
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NAME": "dualpath",
        "SLURM_NODELIST": "127.0.0.1",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": str(per_node),
        "SLURM_NNODES": str(nodes),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % per_node),
        "SLURM_NODEID": str(rank // per_node),
    }


def by_torchrun(rank: int, nodes: int) -> dict[str, str]:
    """What torchrun sets for one of two workers."""
    per_node = 2 // nodes
    return {
        "TORCHELASTIC_RUN_ID": "17",
        "MASTER_ADDR": "127.0.0.1",
        "WORLD_SIZE": "2",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % per_node),
        "LOCAL_WORLD_SIZE": str(per_node),
        "GROUP_RANK": str(rank // per_node),
    }


@pytest.mark.parametrize("nodes", [2, pytest.param(1, marks=rare)])
@pytest.mark.parametrize("launcher", [by_slurm, pytest.param(by_torchrun, marks=rare)])
def test_ranks_of_a_launcher_train_as_one_process_does(launcher, nodes, runs, tmp_path):
    name = f"{launcher.__name__}-{nodes}"
    trainer = {"strategy": "ddp", "num_nodes": nodes, "devices": 2 // nodes}
    words = runs.words(name, trainer=trainer, **VARIANTS["untied"])
    port = str(find_free_network_port())
    logs = [tmp_path / f"rank-{rank}.log" for rank in range(2)]
    ranks = [
        start(words, log, MASTER_PORT=port, **launcher(rank, nodes))
        for rank, log in enumerate(logs)
    ]
    codes, said = exit_codes(ranks), [log.read_text() for log in logs]
    assert codes == [0, 0], "".join(said)
    assert not said[1].strip(), "the first rank speaks for all"
    assert_same_run(runs.folder / "runs" / "tiny" / name, runs.single())


# Ranks that come together: what is said, and who is left, where one does not come


@pytest.fixture
def words(trained: Fit, tmp_path: Path) -> list[str]:
    """The command that trains the tiny recipe on two ranks."""
    trained()  # writes the recipe
    ranks = "--trainer.strategy ddp --trainer.devices 2 --run.micro_batch 1"
    recipe = str(tmp_path / "recipe.yaml")
    return ["fit", "--config", recipe, "--run.name", "two", *ranks.split()]


IN_SHORT = [
    sys.executable,
    "-c",
    """
import sys, time
from dualpath_cli.base.processes import Terminated, end_with_parent
try:
    end_with_parent()
except Terminated:
    sys.exit(143)
time.sleep(999)
""",
]


def by_command(command: list[str]) -> None:
    """Has the first rank, a fork, start the second one by a command."""
    subprocess_script._basic_subprocess_cmd = lambda: command
    joining.SILENCE = float("inf")  # on a busy machine the second one takes its time


def rank_1_of(first: int) -> int:
    """The process of the second rank, as soon as it is there."""

    def found() -> int | None:
        with suppress(OSError):  # another child, which is gone by now
            for child in (
                Path(f"/proc/{first}/task/{first}/children").read_text().split()
            ):
                if b"LOCAL_RANK=1" in Path(f"/proc/{child}/environ").read_bytes():
                    return int(child)
        return None

    return wait_for(found)


@pytest.mark.parametrize(
    ("whose", "signum", "code", "said"),
    [
        (0, signal.SIGTERM, 143, "stopped by SIGTERM"),
        pytest.param(0, signal.SIGKILL, -signal.SIGKILL, None, marks=rare),
        (
            1,
            signal.SIGKILL,
            1,
            "failed: rank 1 ended by signal SIGKILL (out of memory?)",
        ),
    ],
)
@pytest.mark.parametrize("delay", [0.0, pytest.param(1.0, marks=rare)])
def test_a_signal_while_the_second_rank_starts_leaves_none_and_says_one_line(
    delay, whose, signum, code, said, words, tmp_path
):
    log = tmp_path / "log"
    # At first the second rank is its beginning and its end alone: the rest takes
    # seconds.
    command = [sys.executable, "-m", "dualpath_cli", *words] if delay else IN_SHORT
    first = start(words, log, partial(by_command, command))
    assert first.pid is not None
    second = rank_1_of(first.pid)
    time.sleep(delay)
    os.kill((first.pid, second)[whose], signum)
    ended = exit_codes([first], 200)
    wait_for(lambda: not Path(f"/proc/{second}").exists())
    assert ended == [code], log.read_text()
    _, _, after = log.read_text().partition(f"folder  {tmp_path}/runs/tiny/two\n")
    line = f"dualpath fit: {said}; the same command continues from the start\n"
    assert after == ("" if said is None else line)


def test_a_process_ends_where_its_parent_ended_and_nobody_has_waited_for_it():
    parent = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
    environment = os.environ | {"DUALPATH_PARENT": str(parent.pid)}
    assert subprocess.run(IN_SHORT, env=environment, check=False).returncode == 143
    parent.wait()


def in_a_hurry() -> None:
    joining.SILENCE = 0.0


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=rare)])
def test_a_missing_rank_is_named_while_it_is_waited_for_and_after_the_timeout(
    rank, words, tmp_path
):
    port = str(find_free_network_port())
    # As the first of its node, each of them speaks.
    nodes = "--trainer.devices 1 --trainer.num_nodes 2 --run.rank_timeout 0.1"
    words += nodes.split()
    log = tmp_path / "log"
    process = start(
        words,
        log,
        in_a_hurry,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
        NODE_RANK=str(rank),
        LOCAL_RANK="0",
    )
    codes, said, place = exit_codes([process]), log.read_text(), f"127.0.0.1:{port}"
    assert codes == [1], said
    assert said.splitlines()[-2:] == [
        f"dualpath fit: waiting at {place} for rank {1 - rank} of 2",
        f"dualpath fit: failed: rank {1 - rank} of 2 did not join at {place} within "
        "0.1 minutes (run.rank_timeout); the same command continues from the start",
    ]
    assert "frame #" not in said


def test_several_nodes_that_nothing_tells_of_each_other_are_refused(
    refused, monkeypatch
):
    for name in joining.NAMED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_PORT", "29500")
    said = refused(trainer={"num_nodes": 2, "strategy": "ddp"})
    assert "trainer.num_nodes=2, but this node has no address of the others" in said
    assert "(MASTER_ADDR, NODE_RANK lacking here)" in said


def test_processes_share_the_cores(monkeypatch):
    threads: list[int] = []
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    internals.share_cores(10**6)
    assert (threads, os.environ["OMP_NUM_THREADS"]) == ([1], "1")


def fail_as_a_rank(log: Path) -> None:
    """Runs a rank that fails, and what is registered for its exit."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group = lambda: log.write_text("waits")  # type: ignore
    # As Lightning does where groups are of GPUs.
    atexit.register(_destroy_dist_connection)

    device = torch.device("cpu")
    strategy = DDPStrategy(parallel_devices=[device])
    strategy.cluster_environment = LightningEnvironment()
    launcher = Ranks(strategy, "fit", timedelta(minutes=1), lambda: "")
    launcher.num_nodes = 2
    with pytest.raises(OSError, match="the disk is full"):
        launcher.launch(fail_for_want_of_room)
    atexit._run_exitfuncs()


def fail_for_want_of_room() -> None:
    raise OSError("the disk is full")


def test_a_rank_that_failed_does_not_wait_at_exit_for_the_others(tmp_path: Path):
    log = tmp_path / "log"
    process = SERVER.Process(target=fail_as_a_rank, args=(log,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert not log.exists()


PUBLIC_DESPITE_THEIR_NAMES = {
    "_exit",  # of `os`
    # Of torch, which documents them.
    "_record_memory_history",
    "_dump_snapshot",
    "_get_layout",
    "_foreach_zero_",
}


def test_no_other_file_of_training_touches_what_is_not_its_own():
    package = Path(dualpath_cli.__file__).parent
    files = (package / "training").rglob("*.py")
    for path in files:
        if path.name == "internals.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("li"):
                names = [alias.name for alias in node.names]  # of lightning or litdata
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) != "self":
                names = [node.attr]
            private = {
                name for name in names if name.startswith("_") and name[1] != "_"
            }
            assert private <= PUBLIC_DESPITE_THEIR_NAMES, (path, private)
