"""How long a training step takes by Muon beside AdamW, on a CPU.

python -m benchmarks.optimizers

The models of `benchmarks.train_step`, each twice in one process: all is the same but the optimizer.
A ratio is the CPU time of Muon's step over that of AdamW's in the same round. Predicted is 1 and
the FLOPs of Newton-Schulz over those of the tokens of a step.
"""

import argparse
from collections.abc import Sequence
from statistics import median
from typing import get_args

import torch

from benchmarks.results import given_options, show, spread, write
from benchmarks.train_step import MODELS, our_config, training_step
from benchmarks.turns import Timed, in_turns, ratios, timed
from dualpath_cli.config import ModelConfig
from dualpath_cli.flops.count import newton_schulz_flops, training_flops_per_token
from dualpath_cli.flops.memory import Optimizer
from dualpath_cli.recipe.settings import OptimSettings
from dualpath_cli.sizes import parse_size
from dualpath_cli.training.optim import build_optimizer
from dualpath_cli.training.parallel import build_model


def step_by(name: Optimizer, config: ModelConfig, batch: int) -> Timed:
    """A step of training in bf16 autocast, as `dualpath fit` would make it."""
    model = build_model(config, seed=0, compile_blocks=True, checkpointing="selective")
    parameters, settings = model.named_parameters(), OptimSettings(name=name, lr=1e-4)
    optimizer = build_optimizer(parameters, settings, total_steps=1, products=torch.bfloat16)
    return timed(training_step(model, config, batch, optimizer=optimizer))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--budget", default="9M", help="Linear FLOPs per token and layer.")
    parser.add_argument("--batches", nargs="+", type=int, default=[4, 16], help="Sequences.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", help="JSON file for all timings.")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64  # all models share their code
    shape = ModelConfig(
        vocab_size=8192, n_layers=4, d_model=256, n_heads=4, n_kv_heads=4, max_seq_len=512,
        d_ffn=64, d_ffn_wide=64, ffn_multiple_of=64,
    )  # fmt: skip
    rows, seconds = [], {}
    for name in given.models:
        config = our_config(name, shape, parse_size(given.budget, "--budget"))
        for batch in given.batches:
            steps = {optimizer: step_by(optimizer, config, batch) for optimizer in
                     get_args(Optimizer)}  # fmt: skip
            took = in_turns(steps, given.rounds, warm_up=2)
            tokens = batch * shape.max_seq_len
            share = newton_schulz_flops(config) / (tokens * training_flops_per_token(config))
            rows.append([
                name, f"{tokens:,}", *(f"{1000 * median(took[one]):.0f}" for one in steps),
                spread(ratios(took["muon"], took["adamw"])), f"{1 + share:.3f}",
            ])  # fmt: skip
            seconds[f"{name}, {batch}"] = took
    show(["model", "tokens a step", "AdamW, ms", "Muon, ms", "ratio", "predicted"], rows)
    write(given.out, {"options": given_options(given), "cpu_seconds": seconds})


if __name__ == "__main__":
    main()
