"""Bytes that ranks hold and send in a step, counted, beside `dualpath flops --plan`'s.

python -m benchmarks.scaling --out scaling.json     # counts on 2 and 4 gloo processes here
python -m benchmarks.scaling --plan                 # plans behind docs/scaling.md, to 4,096 GPUs

Each strategy trains two steps of two micro-batches by Lightning, as `dualpath fit` does; the second
one is counted on the first rank. What crosses a wire is not seen: that depends on how a library
carries a collective out.
"""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.pytorch import Trainer
from torch.multiprocessing.spawn import start_processes

from benchmarks.meter import Meter
from benchmarks.results import write
from dualpath_cli.config import ModelConfig
from dualpath_cli.flops.count import parameters
from dualpath_cli.flops.paper import configurations
from dualpath_cli.flops.plan import STRATEGIES, Cluster, Plan, Strategy, plan
from dualpath_cli.output.table import Column, Table, markdown
from dualpath_cli.recipe.optimizer import OptimSettings
from dualpath_cli.recipe.settings import RunSettings
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.strategies import build_strategy, reduce_dtype

MODELS = {
    "small": ModelConfig(vocab_size=1021, n_layers=2, d_model=64, n_heads=4, n_kv_heads=2,
                         max_seq_len=32, loops=2, d_ffn=192, d_ffn_wide=384, ffn_multiple_of=32),
    "middle": ModelConfig(vocab_size=8191, n_layers=4, d_model=258, n_heads=3, n_kv_heads=3,
                          max_seq_len=32, loops=4, d_ffn=768, d_ffn_wide=3072,
                          tie_embeddings=True),
}  # fmt: skip
"""Models whose vocabulary no number of ranks divides, nor 4 the width of the second one."""

MESHES: list[tuple[int, Strategy]] = [(2, "ddp"), (2, "fsdp"), (4, "ddp"), (4, "fsdp"), (4, "hsdp")]
"""Ranks and strategies; hsdp is 2 x 2."""

ACCUMULATE, STEP = 2, 2

PLANNED = "f160m_a25_k4"
GPUS = (8, 16, 64, 256, 512, 1024, 4096)
SEQUENCES = 512
"""Of the paper's step."""

COUNTED = ("weights", "gradients", "moments", "unreduced", "all-gather", "reduce-scatter",
           "all-reduce")  # fmt: skip
"""Bytes that a rank holds, then wholes that it takes part in sending."""

COLUMNS = ("GPUs", "tokens a step", "states, GB", "unreduced, gathered, GB", "activations, GB",
           "sum, GB", "sent within a node, GB", "across, GB", "computing, s", "sending, s",
           "ratio")  # fmt: skip


def cluster_of(ranks: int, run: RunSettings) -> Cluster:
    """The processes as a cluster of one node; nothing is timed."""
    return Cluster(
        gpus=ranks, gpus_per_node=ranks, shard_size=2, micro_batch=1, accumulate=ACCUMULATE,
        tflops=1, node_bandwidth=1, network_bandwidth=1,
        reduce_bytes=2 if run.reduce_dtype else 4,
    )  # fmt: skip


def count(model: str, strategy: Strategy, run: RunSettings, ranks: int, out: Path) -> None:
    """Trains on this rank; the first one writes what it counted."""
    torch.set_num_threads(1)
    config, meter = MODELS[model], Meter(STEP)
    module = DualPathModule(
        config, OptimSettings(), [1] * config.vocab_size, [], seed=0, compile_blocks=False,
        reduce_dtype=reduce_dtype(run),
    )  # fmt: skip
    trainer = Trainer(
        strategy=build_strategy(strategy, run), devices=ranks, accelerator="cpu", max_steps=STEP,
        accumulate_grad_batches=ACCUMULATE, callbacks=[meter], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False,
    )  # fmt: skip
    tokens = torch.randint(config.vocab_size, (STEP * ACCUMULATE, 1, config.max_seq_len + 1))
    batches: Any = [(part[:, :-1], part[:, 1:]) for part in tokens]
    trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))
    if trainer.is_global_zero:
        sent = [[*key, *counted] for key, counted in meter.sent.items()]
        out.write_text(json.dumps({"sent": sent, "held": meter.held}))


def _rank(rank: int, call: partial[None], port: int) -> None:
    os.environ.update(LOCAL_RANK=str(rank), MASTER_PORT=str(port))
    call()


def measure(model: str, strategy: Strategy, ranks: int, run: RunSettings) -> dict[str, Any]:
    """Returns the bytes that the first of `ranks` processes counts, and the planned ones."""
    with TemporaryDirectory() as folder:
        out = Path(folder, "counted.json")
        call = partial(count, model, strategy, run, ranks, out)
        start_processes(_rank, (call, find_free_network_port()), ranks, start_method="fork")
        counted = json.loads(out.read_text())
    planned = plan(MODELS[model], strategy, cluster_of(ranks, run))
    names = ["weights", "gradients", "moments", *["unreduced"] * (strategy != "ddp")]
    rows = {name: [counted["held"][name], getattr(planned.memory, name)] for name in names}
    for call_ in planned.collectives:
        found = [row for row in counted["sent"] if row[:2] == [call_.kind, call_.ranks]]
        rows[call_.kind] = [sum(row[4] for row in found), call_.whole_bytes]
    assert len(counted["sent"]) == len(planned.collectives), "and nothing else is sent"
    return {"model": model, "strategy": strategy, "ranks": ranks,
            "reduced_in": run.reduce_dtype or "float32", "bytes": rows}  # fmt: skip


def show_counts(results: Sequence[dict[str, Any]]) -> None:
    """Prints a Markdown table of counted bytes, and by how many the plan is off at the most."""
    rows = []
    for row in results:
        pairs = [row["bytes"].get(name, (0, 0)) for name in COUNTED]
        rows.append([
            f"{row['model']}, {row['strategy']} on {row['ranks']}", row["reduced_in"],
            *(counted for counted, _ in pairs),
            max(abs(counted - planned) for counted, planned in pairs),
        ])  # fmt: skip
    numbers = [Column(name, ",") for name in (*COUNTED, "plan off by")]
    print(markdown(Table([Column("run"), Column("reduced in"), *numbers], rows)), end="")


def paper_cluster(gpus: int) -> Cluster:
    """Nodes of 8 with the paper's step; where it has too few sequences, one for each GPU."""
    each = max(1, SEQUENCES // gpus)
    micro_batch = min(2, each)
    return Cluster(
        gpus=gpus, gpus_per_node=8, shard_size=8, micro_batch=micro_batch,
        accumulate=each // micro_batch, tflops=300, node_bandwidth=450, network_bandwidth=50,
    )  # fmt: skip


def show_plans(config: ModelConfig) -> None:
    """Prints a Markdown table a strategy, with a row a number of GPUs."""
    print(f"{parameters(config) / 1e6:,.0f}M parameters, {config.n_layers} layers")
    for strategy in STRATEGIES:
        rows = [row_of(config, gpus, plan(config, strategy, paper_cluster(gpus))) for gpus in GPUS]
        table = Table([Column(heading) for heading in COLUMNS], rows)
        print(f"\n**{strategy}**\n\n{markdown(table, escape=str)}", end="")


def row_of(config: ModelConfig, gpus: int, planned: Plan) -> list[str]:
    """The cells of a plan; a star marks a step that the paper did not train with."""
    memory, cluster = planned.memory, paper_cluster(gpus)
    across = sum(float(call.across) for call in planned.collectives)
    within = sum(float(call.sent) for call in planned.collectives) - across
    star = "" if cluster.sequences == SEQUENCES else " *"
    gigabytes = (
        memory.weights + memory.gradients + memory.moments,
        memory.unreduced + memory.gathered,
        memory.saved + memory.working,
        memory.total,
        within,
        across,
    )
    return [
        f"{gpus:,}",
        f"{cluster.sequences * config.max_seq_len:,}{star}",
        *(f"{amount / 1e9:.2f}" for amount in gigabytes),
        f"{planned.compute_seconds:.3f}",
        f"{planned.sending_seconds:.3f}",
        f"{planned.sending_seconds / planned.compute_seconds:.2f}",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plan", action="store_true", help="Print plans, behind docs/scaling.md.")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--out", help="A JSON file for the results.")
    options = parser.parse_args(arguments)
    if options.plan:
        (row,) = [row for row in configurations() if row.recipe == PLANNED]
        show_plans(row.model_config("as_trained"))
        return
    full = RunSettings(shard_size=2)
    results = []
    for model in options.models:
        for run in (full, replace(full, reduce_dtype="bfloat16")):
            for ranks, strategy in MESHES:
                if run is full or (ranks, strategy) == (4, "hsdp"):
                    results.append(measure(model, strategy, ranks, run))
                    print(json.dumps(results[-1]), flush=True)
    show_counts(results)
    write(options.out, {"scaling": results})


if __name__ == "__main__":
    main()
