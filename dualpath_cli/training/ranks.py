"""The ranks of a run meet, and all end with a message if one dies.

Ranks on one machine are children of the first rank, unless SLURM or torchrun starts and
watches them. Lightning checks children every five seconds. If one is dead, Lightning
kills the first rank too, without a message or in the middle of one. PyTorch lets ranks
wait for each other where no signal reaches them. This file replaces both.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import ParallelStrategy

from dualpath_cli.base.errors import RunFailed, UserError
from dualpath_cli.base.output import say
from dualpath_cli.base.processes import children_end_with_us
from dualpath_cli.training import internals

GRACE = 10.0
"""Seconds for the first rank to end by itself, after another rank ended with a shared
error."""
WAIT = 2.0  # seconds from a rank's death to its exit code
SILENCE = 30.0  # seconds to wait for ranks without a message
POLL = 0.1  # seconds between two checks for ranks that have joined or died
NAMED = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
"""Variables with a node's place among the others, without SLURM and torchrun."""


class Ranks(internals.Launcher):
    """Lightning's launcher, for ranks started by it and from outside."""

    def __init__(
        self,
        strategy: ParallelStrategy,
        command: str,
        timeout: timedelta,
        continues: Callable[[], str],
    ) -> None:
        """Ranks wait `timeout` for each other; `continues` ends a death's message."""
        assert strategy.cluster_environment is not None
        nodes = strategy.num_nodes  # type: ignore[attr-defined]
        processes = strategy.num_processes  # type: ignore[attr-defined]
        super().__init__(strategy.cluster_environment, processes, nodes)
        self._command = command
        self._timeout = timeout
        self._continues = continues
        self._before = self.cluster_environment.node_rank() * processes
        self._store: dist.TCPStore | None = None
        self._joined = 0
        self._reported = False

    def launch(
        self,
        function: Callable[..., Any],
        *args: Any,
        trainer: Trainer | None = None,
        **named: Any,
    ) -> Any:
        """Starts this machine's ranks if nobody else does, and calls `function`.

        All ranks wait for each other first.

        Raises:
            RunFailed: if ranks do not join in time.
        """
        cluster = self.cluster_environment
        cluster.validate_settings(self.num_processes, self.num_nodes)
        if not cluster.creates_processes_externally:
            with children_end_with_us():
                internals.start_other_ranks(self)
            threading.Thread(target=self._watch, daemon=True).start()

        internals.share_cores(self.num_processes)
        ranks = self.num_processes * self.num_nodes
        if ranks > 1 and not dist.is_initialized():
            self._meet()

        try:
            return function(*args, **named)
        except Exception:
            if ranks > 1:
                internals.leave_other_ranks()
            raise

    def kill(self, signum: int) -> None:
        """Sends the children a signal; a child that then ends has not failed."""
        self._reported = True
        super().kill(signum)

    def death(self) -> str | None:
        """Returns the message on a child that has ended with an error."""
        self._reported = True
        end = time.monotonic() + WAIT
        while self.procs and time.monotonic() < end:
            if dead := self._dead_child():
                _, fate = dead
                return fate
            time.sleep(POLL)
        return None

    def _dead_child(self) -> tuple[int, str] | None:
        """Exit code of a child that ended with an error, and the message."""
        for rank, process in enumerate(self.procs, self._before + 1):
            code = process.poll()
            if not code:
                continue

            # A negative code is a signal's number.
            name = f"exit code {code}"
            if code < 0:
                name = f"signal {signal.Signals(-code).name}"
            hint = " (out of memory?)" if code == -signal.SIGKILL else ""
            return code, f"rank {rank} ended by {name}{hint}"

        return None

    def _watch(self) -> None:
        while not self._reported:
            if dead := self._dead_child():
                code, fate = dead
                if code > 0:
                    time.sleep(GRACE)
                self._end(fate)
            time.sleep(0.5)

    def _end(self, fate: str) -> None:
        """Ends all ranks: the main thread may wait forever for the dead rank."""
        if self._reported:  # the main thread has reported meanwhile
            return

        with suppress(OSError):  # nobody reads stderr
            say(f"dualpath {self._command}: failed: {fate}{self._continues()}")
        self.kill(signal.SIGKILL)
        os._exit(1)

    def _meet(self) -> None:
        """Waits for all ranks in Python, where signals arrive.

        PyTorch would wait in C++.
        """
        cluster = self.cluster_environment
        local = cluster.local_rank()
        limit = self._timeout.total_seconds()
        begin = time.monotonic()
        reports = local == 0  # once

        while missing := self._missing(self._before + local):
            place = f"{cluster.main_address}:{cluster.main_port}"
            waited = time.monotonic() - begin
            if waited > limit:
                raise RunFailed(
                    f"{missing} did not join at {place} within {limit / 60:g} minutes "
                    f"(run.rank_timeout){self._continues()}"
                )

            if reports and waited > SILENCE:
                reports = False
                with suppress(OSError):  # nobody reads stderr
                    say(f"dualpath {self._command}: waiting at {place} for {missing}")
            time.sleep(POLL)

    def _missing(self, rank: int) -> str:
        """Announces this rank; returns a rank that has not joined yet, or nothing."""
        ranks = self.num_processes * self.num_nodes
        store = self._store
        if store is None:
            store = self._connect(rank)
        if store is None:
            return f"rank 0 of {ranks}"

        # Thousands of ranks may ask: they ask for one key.
        if rank:
            return "" if store.check(["dualpath/all"]) else f"all of {ranks} ranks"

        while self._joined < ranks and store.check([f"dualpath/{self._joined}"]):
            self._joined += 1
        if self._joined < ranks:
            return f"rank {self._joined} of {ranks}"

        store.set("dualpath/all", "")
        return ""

    def _connect(self, rank: int) -> dist.TCPStore | None:
        """Announces this rank in the store; None while rank 0 does not serve it yet."""
        host = self.cluster_environment.main_address
        port = self.cluster_environment.main_port
        # torchrun serves the store: all ranks are clients.
        by_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        serves = rank == 0 and not by_torchrun
        if not serves and not _answers(host, port):
            return None

        self._store = dist.TCPStore(
            host,
            port,
            None,
            serves,
            self._timeout,
            wait_for_workers=False,
            multi_tenant=True,
        )
        self._store.set(f"dualpath/{rank}", "")
        return self._store


def _answers(host: str, port: int) -> bool:
    """Whether a server listens; PyTorch's client would log each failed try."""
    with suppress(OSError):
        socket.create_connection((host, port), timeout=1.0).close()
        return True
    return False


def launch_by(
    trainer: Trainer, command: str, timeout: timedelta, continues: Callable[[], str]
) -> None:
    """Replaces a trainer's launcher by `Ranks`, if its ranks are processes."""
    strategy = trainer.strategy
    if not isinstance(strategy, ParallelStrategy):
        return

    lacking = [name for name in NAMED if name not in os.environ]
    alone = isinstance(strategy.cluster_environment, LightningEnvironment)
    if trainer.num_nodes > 1 and alone and lacking:
        raise UserError(
            f"trainer.num_nodes={trainer.num_nodes}, but this node has no address of "
            "the others; start ranks by srun or torchrun, or set MASTER_ADDR=HOST "
            f"MASTER_PORT=29500 NODE_RANK=N on each node ({', '.join(lacking)} lacking "
            "here)"
        )

    internals.set_launcher(strategy, Ranks(strategy, command, timeout, continues))


def lost_contact(error: BaseException) -> bool:
    """Whether an error means that another rank cannot be reached."""
    if isinstance(error, dist.DistError):
        return True

    # gloo has no exception class for it.
    marks = (
        "Connection closed by peer",
        "Timed out",
        "Connection reset",
        "gloo/transport",
    )
    text = str(error)
    return isinstance(error, RuntimeError) and any(mark in text for mark in marks)
