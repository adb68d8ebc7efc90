"""Every use in this room of private parts of Lightning and of PyTorch, with its gain.

A release that moves a private part fails the test of the gain.
"""

import atexit
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.strategies import launchers

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from lightning.pytorch.strategies import ModelParallelStrategy, ParallelStrategy
    from torch.distributed.device_mesh import DeviceMesh

Launcher = launchers._SubprocessScriptLauncher
"""The launcher that starts a machine's other ranks as processes.

Gains Ctrl-C before training: Lightning ends children only for a launcher of this class.
"""


def replace_signal_handlers(trainer: "Trainer", listen: Callable[[], None]) -> None:
    """Makes a trainer call `listen` instead of setting its own signal handlers.

    Gains an end without a hang: Lightning's handler broadcasts while other ranks are in
    another collective. Gains speed: Lightning broadcasts before every batch, and waits
    for the device.
    """
    trainer._signal_connector.register_signal_handlers = listen  # type: ignore[method-assign]
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]


def validate_between_batches(trainer: "Trainer") -> None:
    """Runs a validation before the next training batch, as the training loop would.

    Gains the validation that an interrupted run did not finish: Lightning counts this
    as done.
    """
    loop = trainer.fit_loop.epoch_loop.val_loop
    connector = trainer._logger_connector
    first = connector._first_loop_iter

    trainer.validating = True
    loop.restarting = False
    loop.run()

    trainer.training = True
    connector._first_loop_iter = first


def begin_steps_outside_of_autocast(trainer: "Trainer") -> None:
    """Makes a `training_step` begin outside of the forward pass's autocast.

    Gains backward passes and optimizer in the types of their tensors: by Lightning's
    manual optimization they would run within autocast.
    """
    trainer.precision_plugin.train_step_context = nullcontext  # type: ignore


def count_steps_anew(checkpoint: dict[str, Any]) -> None:
    """Changes the progress in a loaded checkpoint to one batch an optimizer step.

    Gains runs that continue from checkpoints of earlier versions, in which Lightning
    counted micro-batches. Checkpoints are written between two steps, and training is
    one long epoch.
    """
    steps = checkpoint["global_step"]
    progress = checkpoint["loops"]["fit_loop"]
    batches = progress["epoch_loop.batch_progress"]

    for counts in (batches["total"], batches["current"]):
        # A checkpoint from `on_train_batch_end` counts the last batch as not completed.
        unfinished = counts["ready"] - counts["completed"]
        counts["ready"] = steps
        counts["started"] = steps
        counts["processed"] = steps
        counts["completed"] = steps - unfinished

    made = progress["epoch_loop.manual_optimization.optim_step_progress"]
    for counts in (made["total"], made["current"]):
        counts["ready"] = steps
        counts["completed"] = steps


RESTORING = {"_restore_modules_and_callbacks", "restore_training_state"}
"""Lightning's functions that put the state of a checkpoint back.

Gains one line for a state that does not fit: an error that went through them is of the
checkpoint.
"""


def set_launcher(strategy: "ParallelStrategy", launcher: Any) -> None:
    """Gives a strategy the launcher that starts its ranks and waits for them."""
    strategy._launcher = launcher


def start_other_ranks(launcher: Any) -> None:
    """Starts this machine's other ranks, without watching them.

    The launcher's `launch` would also watch them, and kill the first rank without a
    message.
    """
    launcher._call_children_scripts()


def leave_other_ranks() -> None:
    """Lets a rank that failed end before the others do.

    Gains the end of the job: at exit Lightning destroys the groups of GPUs, and this
    waits for ranks that wait for this one.
    """
    from lightning.fabric.utilities.distributed import _destroy_dist_connection

    atexit.unregister(_destroy_dist_connection)


def share_cores(processes: int) -> None:
    """Gives each process its share of the cores, as the launcher does."""
    from lightning.fabric.strategies.launchers.subprocess_script import (
        _set_num_threads_if_needed,
    )

    _set_num_threads_if_needed(processes)


def set_parallel_sizes(strategy: "ModelParallelStrategy", data: int) -> None:
    """Sets the two sizes of a mesh before it is made: `data` and 1.

    Gains data parallelism over all devices, whose number the trainer knows late.
    Lightning's defaults mean tensor parallelism within a node.
    """
    strategy._data_parallel_size = data
    strategy._tensor_parallel_size = 1


def replace_mesh(strategy: "ModelParallelStrategy", mesh: "DeviceMesh") -> None:
    """Replaces the mesh of a strategy and its module.

    Gains `hsdp`: Lightning makes no mesh of replicas and shards.
    """
    assert strategy.lightning_module is not None
    strategy.lightning_module._device_mesh = mesh
    strategy._device_mesh = mesh


def set_timeout(mesh: "DeviceMesh", timeout: timedelta) -> None:
    """Sets how long the groups of a mesh wait.

    Gains the run's timeout: a mesh gives new groups PyTorch's, 10 minutes on GPUs. The
    public `set_timeout` is newer than the lowest PyTorch allowed.
    """
    for group in mesh.get_all_groups():
        backend = group._get_backend(torch.device(mesh.device_type))
        backend._set_default_timeout(timeout)


def keep_blocks_whole() -> None:
    """Keeps a compiled block one graph under DDP.

    Gains the memory and the speed of one graph: PyTorch would split a block where a
    bucket of gradients is full, to reduce them during the backward pass. Compiled block
    by block, gradients of one block are reduced during the backward pass of the next.
    """
    torch._dynamo.config.optimize_ddp = False
