"""Each touch of Lightning's own affairs still does what it is for; no other file has any."""

import ast
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.strategies.launchers import subprocess_script

import dualpath_cli
from dualpath_cli.training import internals


def fitted(*callbacks: Callback, **options: Any) -> Trainer:
    """A trainer that has made two steps of Lightning's own example."""
    trainer = Trainer(
        accelerator="cpu", max_steps=2, limit_val_batches=1, num_sanity_val_steps=0, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=list(callbacks), **options,
    )  # fmt: skip
    trainer.fit(BoringModel())
    return trainer


def test_our_handlers_of_signals_take_the_place_of_lightnings() -> None:
    seen: list[Any] = []

    class Watch(Callback):
        def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
            assert callable(trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor)
            internals.replace_signal_handlers(trainer, lambda: seen.append("listen"))

        def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    fitted(Watch())
    assert seen == ["listen", before]


def test_a_validation_between_batches_leaves_training_as_it_was() -> None:
    seen: list[str] = []

    class Watch(Callback):
        def on_train_batch_start(
            self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
        ) -> None:
            if batch_idx == 1:
                internals.validate_between_batches(trainer)
                assert trainer.training
                assert pl_module.training

        def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            seen.append(f"validated at {trainer.global_step}")

    assert fitted(Watch(), val_check_interval=2).global_step == 2
    assert seen == ["validated at 1", "validated at 2"]


def test_micro_batches_are_counted_anew(tmp_path: Path) -> None:
    trainer = fitted(accumulate_grad_batches=3)
    trainer.save_checkpoint(tmp_path / "checkpoint")
    checkpoint = torch.load(tmp_path / "checkpoint", weights_only=True)
    counts = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]
    assert counts == dict.fromkeys(("ready", "started", "processed", "completed"), 6)
    internals.count_micro_batches_anew(checkpoint, 5)
    assert counts == dict.fromkeys(("ready", "started", "processed", "completed"), 10)


@pytest.fixture
def two_ranks() -> Trainer:
    return Trainer(strategy="ddp", accelerator="cpu", devices=2, logger=False)


def test_a_strategy_takes_another_launcher_for_its_own(two_ranks: Trainer) -> None:
    strategy: Any = two_ranks.strategy
    assert type(strategy.launcher) is internals.launcher_class()
    other = object()
    internals.set_launcher(strategy, other)
    assert strategy.launcher is other


def test_the_launcher_starts_the_other_ranks(
    two_ranks: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []

    def popen(command: list[str], env: dict[str, str], cwd: Any) -> Any:
        started.append((command, env["LOCAL_RANK"], env["WORLD_SIZE"]))
        return SimpleNamespace(pid=1)

    for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "")  # to be put back
        monkeypatch.delenv(name)
    monkeypatch.setattr(subprocess_script, "_basic_subprocess_cmd", lambda: ["command"])
    monkeypatch.setattr(subprocess_script.subprocess, "Popen", popen)
    internals.start_other_ranks(two_ranks.strategy.launcher)
    assert started == [(["command"], "1", "2")]
    assert [process.pid for process in two_ranks.strategy.launcher.procs] == [1]


def test_processes_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    internals.share_cores(10**6)
    assert (threads, os.environ["OMP_NUM_THREADS"]) == ([1], "1")


def test_the_sizes_are_those_that_the_strategy_could_have_been_given() -> None:
    strategy = ModelParallelStrategy()
    internals.set_parallel_sizes(strategy, data=6, tensor=7)
    sizes = [name for name, value in vars(ModelParallelStrategy(6, 7)).items() if value in (6, 7)]
    assert [vars(strategy)[name] for name in sizes] == [6, 7]


def test_strategy_and_module_show_the_mesh_that_takes_the_others_place() -> None:
    strategy, module, mesh = ModelParallelStrategy(), BoringModel(), object()
    strategy.connect(module)
    internals.replace_mesh(strategy, mesh)  # type: ignore[arg-type]
    assert strategy.device_mesh is module.device_mesh is mesh


PUBLIC_DESPITE_THEIR_NAMES = {
    "_exit",  # of `os`
    "_record_memory_history", "_dump_snapshot", "_get_layout",  # of torch, which documents them
}  # fmt: skip


def test_no_other_file_of_training_touches_what_is_not_its_own() -> None:
    package = Path(dualpath_cli.__file__).parent
    files = [path for room in ("training", "session") for path in (package / room).rglob("*.py")]
    for path in files:
        if path.name == "internals.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("li"):
                names = [alias.name for alias in node.names]  # of lightning or litdata
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) != "self":
                names = [node.attr]
            private = {name for name in names if name.startswith("_") and name[1] != "_"}
            assert private <= PUBLIC_DESPITE_THEIR_NAMES, (path, private)
