"""How fast a training step is on a CPU beside a Llama of equal FLOPs.

OMP_NUM_THREADS=1 python -m benchmarks.train_step --out docs/benchmarks/speed.json

Forward, loss, backward, clipping and AdamW on random tokens, bf16 autocast over float32
weights. Each model is set beside compiled Llamas whose training FLOPs a token are the
same: one with as many layers and one with as many attention passes. All are timed by
turns in one process, in seconds of its CPU time. A ratio is this model's tokens/s over
Llama's in the same round.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from statistics import median, quantiles
from typing import Any

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.step import TrainingStep
from benchmarks.results import Rows, publish
from benchmarks.turns import in_turns, ratios, timed
from dualpath_cli.flops.count import passes, training_flops_per_token
from dualpath_cli.flops.widths import Target, solve_widths
from dualpath_cli.spec.config import ModelConfig

MODELS: dict[str, dict[str, Any]] = {
    "dual K4": {"block": "dual", "loops": 4},
    "dual K2": {"block": "dual", "loops": 2},
    "loop K4": {"block": "loop", "loops": 4},
    "wide": {"block": "wide", "loops": 1},
}
"""Blocks compared, all of one budget of linear FLOPs; dual ones spend half of it on
each path."""


SHAPE = ModelConfig(
    vocab_size=8192,
    n_layers=4,
    d_model=256,
    n_heads=4,
    n_kv_heads=4,
    max_seq_len=512,
    d_ffn=64,
    d_ffn_wide=64,
    ffn_multiple_of=64,
)
BUDGET = 9_000_000
"""Linear FLOPs per token and layer."""


def our_config(
    name: str, shape: ModelConfig = SHAPE, budget: int = BUDGET
) -> ModelConfig:
    """One of MODELS at a budget of linear FLOPs per token and layer; all else is as in
    `shape`."""
    heads = {key: getattr(shape, key) for key in ("d_model", "n_heads", "n_kv_heads")}
    widths = solve_widths(
        Target(budget, seq_len=shape.max_seq_len, **heads, **MODELS[name])
    )
    return replace(
        shape, d_ffn=widths.d_ffn, d_ffn_wide=widths.d_ffn_wide, **MODELS[name]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--batch", type=int, default=4, help="Sequences of a step.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", help="JSON file of the results.")
    given = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64  # all models share their code
    bench = Bench(torch.device("cpu"))
    steps, pairs = {}, []
    for name in given.models:
        config = our_config(name)
        steps[name] = timed(TrainingStep(bench, config, given.batch))
        flops = training_flops_per_token(config)
        for times in sorted({1, passes(config.block_kinds[0], config.loops)}):
            layers = times * SHAPE.n_layers
            pairs.append((name, f"Llama, {layers} layers, {flops / 1e6:.1f}M FLOPs"))
            llama = TrainingStep(bench, config, given.batch, llama_layers=layers)
            steps[pairs[-1][1]] = timed(llama)
    seconds = in_turns(steps, given.rounds, warm_up=2)
    rows: Rows = {}
    for pair in pairs:
        ours, theirs = (seconds[name] for name in pair)
        speed = ratios(theirs, ours)
        low, _, high = quantiles(speed, n=4)
        rows[" beside ".join(pair)] = {
            "step, ms": 1e3 * median(ours),
            "Llama's, ms": 1e3 * median(theirs),
            "tokens/s, Llama = 1": f"{median(speed):.3f}",
            "quartiles": f"{low:.3f} to {high:.3f}",
            "CPU seconds": ours,
            "Llama's CPU seconds": theirs,
        }
    publish(
        given, {f"{given.batch} sequences of {SHAPE.max_seq_len} tokens a step": rows}
    )


if __name__ == "__main__":
    main()
