"""A sweep as a SLURM array: one task a run. Torch-free."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from dualpath_cli.files import write_text
from dualpath_cli.sweep.runs import Run

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
