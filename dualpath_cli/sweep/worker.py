"""The runs of a sweep as processes of this machine, or as tasks of a SLURM array. Torch-free."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from dualpath_cli.ending import of_children
from dualpath_cli.errors import UserError
from dualpath_cli.files import write_text
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
    """Checks that runs can be side by side on the GPUs of this machine."""
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
        names = (name.strip() for name in named.split(","))
        return list(takewhile(lambda n: n.isdecimal() or n.startswith(("GPU-", "MIG-")), names))
    return [str(number) for number in range(visible_gpus() or 0)]


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


SCRIPT = """#!/bin/bash
# {count} runs of {out}, a task each. Options of sbatch before this file's name beat those below:
#
#   sbatch --partition=gpu {script}
#
# Submit it from the folder that the sweep's command was given in; all nodes see it. A task that is
# cut off by the time goes back into the queue and continues; one that is finished ends at once.

# Where the cluster allows shorter arrays alone (MaxArraySize of scontrol show config), submit the
# first part (sbatch --array=0-999) and give the sweep's command again once it is done.

#SBATCH --job-name={name}
#SBATCH --array=0-{last}%{jobs}
#SBATCH --ntasks=1
{gpus}#SBATCH --cpus-per-task=4
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="{logs}/%x-%A_%a.out"

set -u
source "${{DUALPATH_VENV:-.venv}}/bin/activate"

recipes=(
{recipes}
)

# Five minutes before the time is up the run is asked to stop with a checkpoint.
warned=0
trap 'warned=1; kill -USR1 "$run"' USR1
srun dualpath fit --config "${{recipes[$SLURM_ARRAY_TASK_ID]}}" &
run=$!
wait "$run"
code=$?
while kill -0 "$run" 2>/dev/null; do # the warning ends the first wait
    wait "$run"
    code=$?
done
if [ "$warned" -eq 1 ] && [ "$code" -ne 0 ]; then
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
fi
exit "$code"
"""


def write_array(runs: Sequence[Run], jobs: int, out: Path, trials: bool) -> Path:
    """Writes the script for runs that are not finished, `jobs` of them at a time.

    `trials`: they are those of learning rates.
    """
    script = out / ("tune.sbatch" if trials else "jobs.sbatch")
    logs = out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    text = SCRIPT.format(
        count=len(runs), last=len(runs) - 1, jobs=jobs, out=out, script=script,
        name=shlex.quote(out.resolve().name or "sweep"), logs=logs,
        gpus="" if runs[0].settings.trainer.accelerator == "cpu" else "#SBATCH --gpus-per-task=1\n",
        recipes="\n".join(f"    {shlex.quote(str(run.path))}" for run in runs),
    )  # fmt: skip
    write_text(script, text)
    return script
