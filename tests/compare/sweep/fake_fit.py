"""Stands in for `dualpath fit`: writes a run folder as that does, and trains nothing.

FAKE_FAILING and FAKE_DIVERGING name recipes whose runs end so. The first step of a run
is done at once; FAKE_SECONDS is how long each further one takes.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

import yaml

from dualpath_cli.base.processes import end_with_parent
from dualpath_cli.run.checkpoint_files import STATE, describe, fault_of, write_manifest


def fit(path: Path, environment: Mapping[str, str], log: TextIO) -> int:
    """Writes the run of a recipe, from its newest checkpoint on; returns the exit
    code."""
    recipe = yaml.safe_load(path.read_text())
    run = recipe["run"]
    folder = Path(run["dir"], run["recipe"], run["name"])
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(path.read_text())
    step = start = max((int(p.name[5:]) for p in checkpoints.glob("step-*")), default=0)

    def save() -> None:
        checkpoint = checkpoints / f"step-{step:08d}"
        checkpoint.mkdir(exist_ok=True)
        (checkpoint / STATE).write_text("{}")
        write_manifest(checkpoint, describe(checkpoint, [checkpoint / STATE]), {})

    def stop(*_: object) -> None:
        save()
        sys.exit(143)

    if __name__ == "__main__":
        signal.signal(signal.SIGTERM, stop)
        end_with_parent()
    if run["recipe"] in environment.get("FAKE_FAILING", "").split():
        print("dualpath fit: failed: broken on purpose", file=log)
        return 1
    if run["recipe"] in environment.get("FAKE_DIVERGING", "").split():
        (folder / "went_wrong.txt").write_text("steps 1 to 10 were skipped")
        print("dualpath fit: failed: steps 1 to 10 were skipped", file=log)
        return 1
    if any(map(fault_of, checkpoints.glob("step-*"))):
        print("dualpath fit: no whole checkpoint", file=log)
        return 2
    gpus = environment.get("CUDA_VISIBLE_DEVICES")
    with (folder / "starts").open("a") as file:
        file.write(
            f"{start} {environment.get('OMP_NUM_THREADS')} {gpus} {time.time()}\n"
        )
    steps, seconds = (
        run["max_tokens"] // run["batch_tokens"],
        environment.get("FAKE_SECONDS", "0"),
    )
    header, rows = "step,tokens,loss,bits_per_byte,tokens_per_second,seconds\n", ""
    for row in range(1, steps + 1):
        rows += f"{row},{row * run['batch_tokens']},2.0,1.0,1000.0,{row / 10}\n"
        if row > start:
            time.sleep(float(seconds) * (row > start + 1))
            step = row
            (folder / "metrics.csv").write_text(header + rows)
    (folder / "validation.csv").write_text(
        "step,tokens,set,loss,bits_per_byte\n"
        f"{step},{step * run['batch_tokens']},held_out,2.0,1.0\n"
    )
    save()
    return 0


if __name__ == "__main__":
    sys.exit(fit(Path(sys.argv[1]), os.environ, sys.stdout))
