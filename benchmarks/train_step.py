"""How fast a training step is on a CPU beside a Llama of equal FLOPs.

python -m benchmarks.train_step

Forward, loss, backward, clipping and AdamW on random tokens, bf16 autocast over float32 weights.
Each model is set beside compiled Llamas whose training FLOPs a token are the same: one with as many
layers and one with as many attention passes. All are timed by turns in one process, in seconds of
its CPU time. A ratio is this model's tokens/s over Llama's in the same round.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median, quantiles
from typing import Any

import torch
from torch import nn

from benchmarks.baselines import Shape, TransformersLlama
from benchmarks.results import show, write
from benchmarks.turns import in_turns, timed
from dualpath_cli.config import ModelConfig
from dualpath_cli.flops.count import passes, training_flops_per_token
from dualpath_cli.flops.widths import Target, solve_widths
from dualpath_cli.sizes import parse_size
from dualpath_cli.training.parallel import build_model

MODELS: dict[str, dict[str, Any]] = {
    "dual K4": {"block": "dual", "loops": 4},
    "dual K2": {"block": "dual", "loops": 2},
    "loop K4": {"block": "loop", "loops": 4},
    "wide": {"block": "wide", "loops": 1},
}
"""Blocks compared, all of one budget of linear FLOPs; dual ones spend half of it on each path."""

Step = Callable[[], None]


def our_config(name: str, shape: Shape, n_layers: int, budget: int) -> ModelConfig:
    """The configuration of one of MODELS at a budget of linear FLOPs per token and layer."""
    heads = {"d_model": shape.d_model, "n_heads": shape.n_heads, "n_kv_heads": shape.n_heads}
    widths = solve_widths(Target(budget, seq_len=shape.seq_len, **heads, **MODELS[name]))
    return ModelConfig(
        vocab_size=shape.vocab_size,
        n_layers=n_layers,
        max_seq_len=shape.seq_len,
        d_ffn=widths.d_ffn,
        d_ffn_wide=widths.d_ffn_wide,
        ffn_multiple_of=64,
        **heads,
        **MODELS[name],
    )


def compiled(model: nn.Module) -> nn.Module:
    """The model with all of its forward pass, and of its backward pass, in one graph."""
    model.compile()
    return model


def training_step(model: nn.Module, shape: Shape, batch: int, documents: int = 0) -> Step:
    """Returns a function that makes one optimizer step on random tokens.

    With `documents` token 0 is drawn once in so many tokens: what documents begin with.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(shape.vocab_size, (batch, shape.seq_len + 1))
    if documents:
        tokens[torch.rand(tokens.shape) < 1 / documents] = 0
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(inputs, targets)
        loss.mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def our_models(name: str, config: ModelConfig, given: argparse.Namespace) -> dict[str, nn.Module]:
    """The model as `fit` compiles it, and the variants of it that were asked for, by name."""
    models = {name: build_model(config, seed=0, compile_blocks=True, checkpointing="selective")}
    if given.eager:
        models[f"{name}, eager"] = build_model(config, seed=0)
    if given.documents:
        models[f"{name}, within documents"] = build_model(
            replace(config, document_start=0),
            seed=0,
            compile_blocks=True,
            checkpointing="selective",
        )
    return models


def llamas(shape: Shape, config: ModelConfig, given: argparse.Namespace) -> dict[str, nn.Module]:
    """Llamas of the FLOPs of one of our models: of as many layers, and of as many passes."""
    flops = training_flops_per_token(config)
    models: dict[str, nn.Module] = {}
    for layers in sorted({1, passes(config.block_kinds[0], config.loops)}):
        layers *= given.n_layers
        sized = f"{layers} layers, {flops / 1e6:.1f}M"
        models[f"transformers, {sized}"] = TransformersLlama(shape, layers, flops)
    return models


def steps_to_compare(given: argparse.Namespace) -> tuple[dict[str, Step], list[tuple[str, str]]]:
    """All steps by the name of their model, and the pairs of names that are set side by side."""
    shape = Shape(given.d_model, given.n_heads, given.seq_len, given.vocab_size)
    steps: dict[str, Step] = {}
    beside: list[tuple[str, str]] = []
    for name in given.models:
        config = our_config(name, shape, given.n_layers, parse_size(given.budget, "--budget"))
        ours, others = our_models(name, config, given), llamas(shape, config, given)
        beside.extend((own, other) for own in ours for other in others)
        for own, model in ours.items():
            steps[own] = training_step(model, shape, given.batch, given.documents)
        for other, model in others.items():
            steps[other] = training_step(compiled(model), shape, given.batch)
    return steps, beside


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--d-model", type=int, default=256, help="Width of the residual stream.")
    parser.add_argument("--n-heads", type=int, default=4, help="Attention heads.")
    parser.add_argument("--n-layers", type=int, default=4, help="Our blocks.")
    parser.add_argument("--seq-len", type=int, default=512, help="Tokens of a sequence.")
    parser.add_argument("--vocab-size", type=int, default=8192, help="Rows of the head.")
    parser.add_argument("--budget", default="9M", help="Linear FLOPs per token and layer.")
    parser.add_argument("--batch", type=int, default=4, help="Sequences of a step.")
    parser.add_argument("--eager", action="store_true", help="Adds our models uncompiled.")
    parser.add_argument(
        "--documents",
        type=int,
        default=0,
        metavar="TOKENS",
        help="Adds our models with attention within documents of that length.",
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", help="JSON file for all timings.")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64  # all models share their code
    steps, beside = steps_to_compare(given)
    seconds = in_turns({name: timed(step) for name, step in steps.items()}, given.rounds, warm_up=2)
    rows = []
    for own, other in beside:
        ratios = [b / a for a, b in zip(seconds[own], seconds[other], strict=True)]
        low, _, high = quantiles(ratios, n=4)
        milliseconds = [f"{median(seconds[name]) * 1000:.0f}" for name in (own, other)]
        rows.append([own, other, *milliseconds, f"{median(ratios):.3f}", f"{low:.3f} {high:.3f}"])
    show(["model", "beside Llama of", "ms", "its ms", "ratio", "quartiles"], rows)
    options = {name: value for name, value in vars(given).items() if name != "out"}
    write(given.out, {"options": options, "cpu_seconds": seconds})


if __name__ == "__main__":
    main()
