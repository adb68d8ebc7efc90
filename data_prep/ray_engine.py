"""Tasks on the machines of a Ray cluster, all of which see the files by the same paths.

Only Ray's tasks are used: it finds a free core, and runs a task again whose process or
machine was lost. What was done is known from the files, so nothing is lost with Ray.
"""

import logging
import math
import os
import platform
import signal
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data_prep.engine import Engine, ParallelEngine, Task, run_unwatched
from data_prep.memory import divide_memory
from dualpath_cli.base.errors import UserError
from dualpath_cli.base.output import joined_lines
from dualpath_cli.base.version import __version__
from dualpath_cli.data.hub import FIRST_ANSWER_SECONDS

RETRIES = 3  # of a task whose process or machine was lost


@contextmanager
def ray_engine(
    address: str, memory: int | None, must_see: Sequence[Path]
) -> Iterator[tuple[Engine, int]]:
    """Yields an engine on a cluster, and the bytes of memory for a task.

    `memory` are the bytes of all tasks of a machine together; None: half of this one's.
    All machines must see the paths. Raises UserError where none answers at the address,
    or none has a core.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("--ray needs Ray: in the clone, pip install '.[ray]'") from None

    own_handler = signal.getsignal(signal.SIGTERM)
    try:
        _check_address(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = joined_lines(error)
        raise UserError(
            f"--ray '{address}': {reason}; `ray start --head` starts a cluster and "
            "prints its address"
        ) from None
    signal.signal(signal.SIGTERM, own_handler)  # in place of Ray's

    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        on_one = max(int(node["Resources"].get("CPU", 0)) for node in nodes)
        if not on_one:
            # Tasks would wait, perhaps for ever, for machines of unknown size.
            raise UserError(
                f"--ray '{address}': no machine of the cluster has a core for tasks; "
                "start one first, with `ray start --address` or more --num-cpus"
            )
        at_once, task_bytes = divide_memory(on_one, memory)
        cores_of_task = math.ceil(on_one / at_once)
        yield _Cluster(cores_of_task, must_see), task_bytes
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Raises OSError or ValueError where nobody listens; Ray would take minutes."""
    if address == "auto":
        return

    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("not HOST:PORT, nor `auto`")
    socket.create_connection((host, int(port)), FIRST_ANSWER_SECONDS).close()


class _Cluster(ParallelEngine):
    def __init__(self, cores_of_task: int, must_see: Sequence[Path]) -> None:
        import ray

        self._ray = ray
        self._cores = cores_of_task
        self._must_see = [str(path) for path in must_see]
        self._run = ray.remote(
            num_cpus=cores_of_task, max_retries=RETRIES, scheduling_strategy="SPREAD"
        )(_run_on_machine)

    @property
    def workers(self) -> int:  # type: ignore[override]  # machines come and go
        cores = self._ray.cluster_resources().get("CPU", 1)
        return max(int(cores // self._cores), 1)

    def begin(self, task: Task) -> Any:
        return self._run.remote(task, __version__, os.getcwd(), self._must_see)

    def wait(self, handles: Sequence[Any], seconds: float) -> Iterable[Any]:
        if not handles:
            return []
        ended, _ = self._ray.wait([*handles], timeout=seconds)
        return list(ended)

    def result(self, handle: Any) -> Any:
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(handle)
        except exceptions.RayTaskError as error:
            raise error.cause from None
        except exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0]
            raise OSError(f"Ray lost a task {RETRIES + 1} times: {reason}") from None


def _run_on_machine(
    task: Task, version: str, folder: str, must_see: Sequence[str]
) -> Any:
    """Runs a task, on a machine that can.

    Raises UserError on a machine with another version, or without the files.
    """
    machine = platform.node()
    if version != __version__:
        raise UserError(
            f"machine '{machine}' has dualpath {__version__}, but this command runs "
            f"{version}; install the same version on all machines"
        )

    for path in (folder, *must_see):
        if not os.path.exists(path):
            raise UserError(
                f"machine '{machine}' does not see '{path}'; sources, --downloads and "
                "--out must be on a file system that all machines share"
            )
    os.chdir(folder)  # paths in a task are as they were given
    return run_unwatched(task)
