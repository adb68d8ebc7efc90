"""recipes/cluster.sbatch: what it starts, and when the job goes back into the queue.

SLURM is two scripts here that write down how they were called; docs/cluster.md says what was run on
the real one.
"""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "recipes" / "cluster.sbatch"

SLURM = {
    "SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NTASKS_PER_NODE": "4", "SLURM_CPUS_PER_TASK": "3",
}  # fmt: skip


def stub(path: Path, lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{lines}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("code", [0, 2, 138])
@pytest.mark.parametrize("warned", [False, True])
def test_a_job_that_was_warned_of_its_end_is_requeued_and_no_other(code, warned, tmp_path):
    # `srun` ends by itself, or once it was passed the warning that the script gets.
    warning = f"trap 'echo passed on > {tmp_path}/warned; exit {code}' USR1; kill -USR1 $PPID"
    lines = f'printf "%s\\n" "$@" > {tmp_path}/srun.txt\n'
    lines += f"{warning}\nwhile :; do sleep 0.01; done" if warned else f"exit {code}"
    stub(tmp_path / "bin/srun", lines)
    stub(tmp_path / "bin/scontrol", f'echo "$@" > {tmp_path}/scontrol.txt')
    stub(tmp_path / "venv/bin/activate", f"export PATH={tmp_path}/bin:$PATH")
    done = subprocess.run(
        ["bash", str(SCRIPT), "--config", "f80m_wide", "--run.name", "a b"],
        env={**os.environ, **SLURM, "DUALPATH_VENV": str(tmp_path / "venv")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert (tmp_path / "warned").exists() == warned
    started = (tmp_path / "srun.txt").read_text().splitlines()
    assert started == [
        "--kill-on-bad-exit=1", "--distribution=block", "--cpus-per-task=3", "dualpath", "fit",
        "--config", "f80m_wide", "--run.name", "a b",
        "--trainer.num_nodes", "2", "--trainer.devices", "4",
    ]  # fmt: skip
    told = tmp_path / "scontrol.txt"
    assert told.exists() == (warned and code != 0)
    if told.exists():
        assert told.read_text() == "requeue 17\n"
