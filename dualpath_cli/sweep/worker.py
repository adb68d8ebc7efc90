"""A run of a sweep as a process: its command, its share of the machine. Torch-free."""

import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import takewhile

from dualpath_cli.ending import of_children
from dualpath_cli.errors import UserError
from dualpath_cli.machine import cores, visible_gpus
from dualpath_cli.sweep.runs import Run


def command_of(run: Run) -> list[str]:
    return [sys.executable, "-m", "dualpath_cli", *run.words]


def environment(run: Run, slot: int, jobs: int) -> Mapping[str, str]:
    """The environment of the run in a slot, of which there are `jobs`.

    CPUs are shared by threads: OMP_NUM_THREADS, unless it is set. Of several GPUs each slot gets
    one, the first ones again where there are more slots.
    """
    shared = dict(os.environ)
    shared.setdefault("OMP_NUM_THREADS", str(max(1, cores() // jobs)))
    if jobs > 1 and (gpus := _gpus(run)):
        shared["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    return shared


def side_by_side(run: Run, jobs: int) -> int:
    """How many of as many jobs do not share a device with another one."""
    return min(jobs, len(_gpus(run)) or jobs)


def check_sharing(run: Run, jobs: int) -> None:
    """Checks that runs can be side by side on the GPUs of this machine.

    Raises:
        UserError: for several jobs that want more than a GPU each.
    """
    gpus, trainer = _gpus(run), run.settings.trainer
    if jobs == 1 or not gpus:
        return
    if str(trainer.devices) not in ("auto", "1"):
        raise UserError(
            f"--jobs {jobs} gives each run one GPU, but trainer.devices is {trainer.devices}; "
            "take --jobs 1 or trainer.devices 1"
        )


def _gpus(run: Run) -> list[str]:
    """Names of the GPUs that this process may use, if such a run would."""
    if run.settings.trainer.accelerator == "cpu":
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        # As CUDA reads it: what names no GPU, such as -1, ends the list.
        return list(takewhile(_names_gpu, (name.strip() for name in named.split(","))))
    return [str(number) for number in range(visible_gpus() or 0)]


def _names_gpu(name: str) -> bool:
    return name.isdecimal() or name.startswith(("GPU-", "MIG-"))


def start(run: Run, slot: int, jobs: int) -> "subprocess.Popen[bytes]":
    """Starts the run; what it prints goes on in its log.

    It has its own session, so that Ctrl-C reaches the sweep alone, which asks it to stop; it
    stops by itself, with a checkpoint, where the sweep is killed.
    """
    run.log.parent.mkdir(parents=True, exist_ok=True)
    with run.log.open("ab") as log, of_children():
        return subprocess.Popen(
            command_of(run), env=environment(run, slot, jobs), stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def last_words(run: Run) -> str:
    """The last line of a run's log: why it ended."""
    if not run.log.is_file():
        return f"it waits for '{run.settings.run.branch_from}'"
    lines = run.log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no word")
