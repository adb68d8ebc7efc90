"""The memory that `dualpath export` takes, beside the sizes of checkpoint and file.

A model of 106M parameters, all zeros, with AdamW's moments, is written as shards by four
processes and as one file by one. Each is exported in a process of its own, whose memory is read
from /proc (Linux) 50 times a second: what is its own (RssAnon), and what of files is mapped into it
(RssFile), which the system takes back where memory is short. Beside it the same for a model of
37 thousand parameters: what Python and PyTorch take.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.results import write
from benchmarks.tables import show
from dualpath_cli import run_folder
from dualpath_cli.checkpoint_files import files_of
from dualpath_cli.config import ModelConfig
from dualpath_cli.settings import settings_from
from dualpath_cli.training.optim import build_optimizer
from dualpath_cli.training.parallel import build_model

SMALL = {"vocab_size": 275, "n_layers": 1, "d_model": 32, "n_heads": 1, "n_kv_heads": 1,
         "loops": 2, "d_ffn": 64, "d_ffn_wide": 64, "ffn_multiple_of": 8}  # fmt: skip
LARGE = {"vocab_size": 50_257, "n_layers": 6, "d_model": 640, "n_heads": 10, "n_kv_heads": 10,
         "loops": 4, "d_ffn": 960, "d_ffn_wide": 1920, "ffn_multiple_of": 64}  # fmt: skip
MODELS = {"large": LARGE, "small": SMALL}
RANKS = 4
STEP = "step-00000001"


def write_checkpoint(rank: int, ranks: int, folder: Path, section: dict[str, Any]) -> None:
    """Writes weights and moments of a model, all zeros, as `fit` lays them out."""
    checkpoint = folder / run_folder.CHECKPOINTS / STEP
    mesh = None
    if ranks > 1:
        torch.set_num_threads(1)
        store = dist.FileStore(str(folder / "store"), ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        mesh = init_device_mesh("cpu", (ranks,))
    settings = settings_from({"model": section})
    module = torch.nn.Module()
    module.model = model = build_model(settings.model, mesh=mesh)
    for parameter in model.parameters():
        parameter.detach().zero_()
    optimizer = build_optimizer(model.named_parameters(), settings.optim, total_steps=1)
    weights = get_model_state_dict(module)
    moments = get_optimizer_state_dict(module, optimizer)  # makes them, of zeros
    if ranks > 1:
        dcp.save({"state_dict": weights, "optimizer_0": moments}, checkpoint_id=checkpoint)
        dist.destroy_process_group()
    else:
        checkpoint.parent.mkdir(parents=True)
        torch.save(
            {"state_dict": weights, "optimizer_states": [optimizer.state_dict()]}, checkpoint
        )


def make_run(folder: Path, model: dict[str, Any], ranks: int) -> None:
    """A run folder with such a checkpoint; its tokenizer is none, which `export` does not read."""
    run_folder.start(folder, settings_from({"model": model}).as_recipe(), {})
    (folder / run_folder.TOKENIZER).write_text("{}")
    if ranks == 1:
        write_checkpoint(0, 1, folder, model)
    else:
        torch.multiprocessing.spawn(write_checkpoint, (ranks, folder, model), nprocs=ranks)


def export(run: Path, out: Path) -> dict[str, float]:
    """Exports in a process of its own; returns its peaks in MB and its seconds."""
    words = ["export", "--ckpt_path", str(run), "--format", "consolidated", "--out", str(out)]
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "dualpath_cli", *words], stdout=subprocess.DEVNULL
    )
    peaks = {"RssAnon": 0.0, "RssFile": 0.0}
    while process.poll() is None:
        try:
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            break  # it has just ended
        for line in lines:
            name, _, value = line.partition(":")
            if name in peaks:
                peaks[name] = max(peaks[name], int(value.split()[0]) * 1024 / 1e6)
        time.sleep(0.02)
    if process.wait():
        raise SystemExit("dualpath export failed")
    return peaks | {"seconds": time.perf_counter() - start}


def measure(folder: Path, name: str, ranks: int) -> dict[str, Any]:
    """Makes a run and exports it."""
    run, out = folder / f"{name}-{ranks}", folder / f"{name}-{ranks}.safetensors"
    make_run(run, MODELS[name], ranks)
    sizes = [path.stat().st_size for path in files_of(run / run_folder.CHECKPOINTS / STEP)]
    config = ModelConfig(**MODELS[name])
    largest = 4 * config.vocab_size * config.d_model
    result = {"model": name, "ranks": ranks, "checkpoint": sum(sizes) / 1e6, **export(run, out)}
    return result | {"file": out.stat().st_size / 1e6, "largest_tensor": largest / 1e6}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--out", help="A JSON file for the results.")
    options = parser.parse_args(arguments)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            for ranks in (RANKS, 1):
                results.append(measure(Path(folder), name, ranks))
                print(json.dumps(results[-1]), flush=True)
    keys = ["checkpoint", "file", "largest_tensor", "RssAnon", "RssFile"]
    rows = [
        [row["model"], f"{row['ranks']} shards" if row["ranks"] > 1 else "one file"]
        + [f"{row[key]:,.0f}" for key in keys]
        + [f"{row['seconds']:.1f}"]
        for row in results
    ]
    columns = ["checkpoint, MB", "export", "largest tensor", "own memory", "mapped files"]
    show(["model", "written as", *columns, "seconds"], rows)
    write(options.out, {"results": results})


if __name__ == "__main__":
    main()
