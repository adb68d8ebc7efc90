"""A small sweep, and what stands in for `dualpath fit` where no model has to be trained."""

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import yaml

from dualpath_cli.sweep import options, request
from dualpath_cli.sweep.request import Request

STEP = 64

FAKE_FIT = """
import os, pathlib, signal, sys, time, yaml
from dualpath_cli.ending import end_with_parent
path = pathlib.Path(sys.argv[1])
recipe = yaml.safe_load(path.read_text())
run = recipe["run"]
folder = pathlib.Path(run["dir"], run["recipe"], run["name"])
(folder / "checkpoints").mkdir(parents=True, exist_ok=True)
(folder / "recipe.yaml").write_text(path.read_text())
steps = run["max_tokens"] // run["batch_tokens"]
done = [int(p.name[5:]) for p in (folder / "checkpoints").glob("step-*")]
start = max(done, default=0)
seconds = float(os.environ.get("FAKE_SECONDS", 0))
def save(step):
    (folder / "checkpoints" / f"step-{step:08d}").write_text("weights")
def stop(*_):
    save(step)
    sys.exit(143)
step = start
signal.signal(signal.SIGTERM, stop)
end_with_parent()
if run["recipe"] in os.environ.get("FAKE_FAILING", "").split():
    print("dualpath fit: failed: broken on purpose", file=sys.stderr)
    sys.exit(1)
if run["recipe"] in os.environ.get("FAKE_DIVERGING", "").split():
    (folder / "went_wrong.txt").write_text("steps 1 to 10 were skipped")
    sys.exit(1)
if any(not p.stat().st_size for p in (folder / "checkpoints").glob("step-*")):
    print("dualpath fit: no whole checkpoint", file=sys.stderr)
    sys.exit(2)
with (folder / "starts").open("a") as file:
    file.write(f"{start} {os.environ.get('OMP_NUM_THREADS')} "
               f"{os.environ.get('CUDA_VISIBLE_DEVICES')} {time.time()}\\n")
columns = "step,tokens,loss,bits_per_byte,tokens_per_second,seconds\\n"
rate = recipe["optim"]["lr"]
bits = abs(rate - 4e-3) + 1
while step < steps:
    time.sleep(seconds / steps)
    step += 1
    rows = [f"{s},{s * run['batch_tokens']},2.0,{bits},1000.0,{s / 10}\\n"
            for s in range(1, step + 1)]
    (folder / "metrics.csv").write_text(columns + "".join(rows))
(folder / "validation.csv").write_text(
    "step,tokens,set,loss,bits_per_byte\\n"
    f"{step},{step * run['batch_tokens']},held_out,2.0,{bits}\\n")
save(step)
with (folder / "ends").open("a") as file:
    file.write(f"{time.time()}\\n")
"""


SWEEP = """
import sys
from dualpath_cli import cli
from dualpath_cli.command import launch
from dualpath_cli.sweep import worker
fake = sys.argv[1:3]
worker.command_of = lambda recipe: [*fake, str(recipe)]
launch.read = lambda *_: None
sys.exit(cli.main(sys.argv[3:]))
"""
"""Runs a sweep as a process of its own: the two words of the stand-in, then the sweep's."""


def write_fake_fit(folder: Path) -> list[str]:
    """The words of a program that writes a run folder as `fit` does, and trains nothing."""
    path = folder / "fake_fit.py"
    path.write_text(FAKE_FIT)
    return [sys.executable, str(path)]


def write_recipe(folder: Path, **sections: Any) -> Path:
    """A recipe for a sweep of small models, ten steps each."""
    recipe: dict[str, Any] = {
        "model": {
            "vocab_size": 272, "n_layers": 2, "d_model": 32, "n_heads": 2, "n_kv_heads": 2,
            "max_seq_len": 16, "ffn_multiple_of": 8,
        },
        "optim": {"lr": 4e-3, "lr_start": 4e-5, "lr_end": 4e-4, "warmup_steps": 2},
        "run": {
            "max_tokens": 10 * STEP, "batch_tokens": STEP, "micro_batch": 2, "compile": False,
            "tensorboard": False, "save_every": 5, "log_every": 1, "validate_every": 0,
            "gates_every": 0,
        },
        "data": {"path": "data", "workers": 0, "val": {"held_out": "val.jsonl"}},
        "trainer": {"accelerator": "cpu", "devices": 1},
    }  # fmt: skip
    for name, section in sections.items():
        recipe[name] = recipe[name] | section
    path = folder / "base.yaml"
    path.write_text(yaml.safe_dump(json.loads(json.dumps(recipe))))
    return path


def starts(out: Path) -> dict[str, list[str]]:
    """What each run says of its starts: step, threads, GPUs, time."""
    return {
        f"{path.parts[-3]}-{path.parts[-2]}": path.read_text().splitlines()
        for path in out.glob("**/starts")
    }


def asked(folder: Path, *words: str, **sections: Any) -> Request:
    """A sweep of PureWide, PureLoop and a dual model; later words win."""
    parser = ArgumentParser()
    options.add_arguments(parser)
    recipe = write_recipe(folder, **sections)
    plain = ["--config", str(recipe), "--budget", "100K", "--alphas", "50", "--loops", "2",
             "--out", str(folder / "sweep"), "--seeds", "2"]  # fmt: skip
    return request.read(parser.parse_args([*plain, *words]))
