"""Stopping on a signal: at the end of the same step on all ranks, with a checkpoint.

Preemption sends SIGTERM, SLURM can send SIGUSR1 before the time is up, SIGINT is
Ctrl-C, SIGHUP a closed terminal. Lightning's handler broadcasts while other ranks are
in another collective, and hangs.
"""

import math
import os
import signal
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from dualpath_cli.base.processes import STOPPING, change_end_with_parent
from dualpath_cli.training import internals
from dualpath_cli.training.checkpoints import Checkpoints

# stands for the end of `trainer.max_time`; no signal is sent
TIME_OVER = signal.SIGALRM
SECOND = 1.0
"""Seconds after a signal until another signal ends the process at once; earlier, the
first signal may have been sent twice."""


class StopTraining(BaseException):
    """Ends training on all ranks, with all finished steps in a checkpoint; no error."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class Stopping(Callback):
    """Notes signals, agrees on them with all ranks, saves, and raises StopTraining.

    The last callback, so that all rows of a step are written before training stops.
    """

    def __init__(
        self, checkpoints: Checkpoints, timeout: timedelta, seconds: float | None
    ) -> None:
        """Stops `seconds` from now as after a signal, with None never; ranks wait at
        most `timeout`."""
        self.checkpoints = checkpoints
        self.signum = 0
        self._timeout = timeout
        self._deadline = math.inf if seconds is None else time.monotonic() + seconds
        self._noted = 0.0
        self._replaced: dict[int, Any] = {}

        # of this machine's other ranks, if this process started them
        self._launcher: Any = None
        # whether this process is one of them
        self._follows = False
        # all ranks, on the CPU; None for a single one
        self._group: Any = None
        self._pending: tuple[Any, torch.Tensor] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Replaces Lightning's handlers, at the time when Lightning would set them."""
        internals.replace_signal_handlers(trainer, self._set_handlers)
        self._launcher = trainer.strategy.launcher
        self._follows = trainer.local_rank > 0
        if trainer.world_size > 1:
            # On the CPU, so as not to wait for a GPU.
            self._group = dist.new_group(backend="gloo", timeout=self._timeout)

    def teardown(
        self, trainer: Trainer, pl_module: LightningModule, stage: str
    ) -> None:
        for signum, handler in self._replaced.items():
            signal.signal(signum, handler)
        self._replaced = {}
        if self._follows:
            change_end_with_parent(signal.SIGTERM)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Restores the handlers after a failure.

        The failed run stops at no step, and the process may train again.
        """
        if not isinstance(exception, StopTraining):
            self.teardown(trainer, pl_module, "fit")

    def on_train_batch_end(self, trainer: Trainer, *ignored: Any) -> None:
        self._stop_if_agreed(trainer)

    def on_validation_batch_end(
        self, trainer: Trainer, *ignored: Any, **named: Any
    ) -> None:
        """Stops within a validation; the continued run repeats it."""
        self._stop_if_agreed(trainer)

    def _set_handlers(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for signum in STOPPING:
            # nohup has it ignored: the run goes on when its terminal is closed
            if signum == signal.SIGHUP and signal.getsignal(signum) is signal.SIG_IGN:
                continue
            self._replaced[signum] = signal.signal(signum, self._on_signal)

        # A rank that waits for a dead first rank on a GPU runs no handler.
        if self._follows:
            change_end_with_parent(signal.SIGKILL)

    def _on_signal(self, signum: int, frame: Any) -> None:
        now = time.monotonic()
        # The first signal, perhaps while the end of max_time is being saved.
        if not self._noted:
            self.signum = self.signum or signum
            self._noted = now
        elif now - self._noted > SECOND:
            if self._launcher is not None:
                self._launcher.kill(signal.SIGKILL)
            # safe: a checkpoint gets its name only when it is whole
            os._exit(128 + signum)

    def _stop_if_agreed(self, trainer: Trainer) -> None:
        signum = self._agreed(trainer)
        if not signum:
            return

        is_unsaved = trainer.global_step != self.checkpoints.saved_step
        # By Ctrl-C a user may answer the warning that later checkpoints will go.
        keeps_later = signum == signal.SIGINT and trainer.strategy.broadcast(
            self.checkpoints.drops_later
        )
        if _makes_steps(trainer) and is_unsaved and not keeps_later:
            self.checkpoints.save(trainer)
        raise StopTraining(signum)

    def _agreed(self, trainer: Trainer) -> int:
        """The signal that any rank had noted by the previous call, or 0.

        The same on all ranks. One call late, so that no rank waits: signals are
        exchanged between two calls.
        """
        is_late = time.monotonic() > self._deadline
        # Neither the validation of step 0 nor that of a finished run is cut: the next
        # call would begin it anew, and make no step either.
        if is_late and not self.signum and _makes_steps(trainer):
            self.signum = TIME_OVER
        if trainer.world_size == 1:
            return self.signum

        noted = torch.tensor(self.signum)
        if self._pending is not None:
            work, most = self._pending
            work.wait()
            agreed = int(most)
            if agreed:
                return agreed

        work = dist.all_reduce(
            noted, dist.ReduceOp.MAX, group=self._group, async_op=True
        )
        self._pending = (work, noted)
        return 0


def _makes_steps(trainer: Trainer) -> bool:
    """Not in the validation of a finished run, nor in that of step 0."""
    return trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
