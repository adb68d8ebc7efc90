"""How fast a training step is on a CPU beside a Llama of equal FLOPs, and with experts.

python -m benchmarks.train_step

Forward, loss, backward, clipping and AdamW on random tokens, bf16 autocast over float32 weights.
Each model is set beside compiled Llamas whose training FLOPs a token are the same: one with as many
layers and one with as many attention passes. All are timed by turns in one process, in seconds of
its CPU time. A ratio is this model's tokens/s over Llama's in the same round.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median, quantiles
from typing import Any

import torch
from torch import nn

from benchmarks.baselines import TransformersLlama
from benchmarks.results import given_options, show, write
from benchmarks.turns import in_turns, ratios, timed
from dualpath_cli.config import ModelConfig
from dualpath_cli.flops.count import passes, training_flops_per_token
from dualpath_cli.flops.widths import Target, solve_widths
from dualpath_cli.intervention import Intervention
from dualpath_cli.sizes import parse_size
from dualpath_cli.training.parallel import build_model

MODELS: dict[str, dict[str, Any]] = {
    "dual K4": {"block": "dual", "loops": 4},
    "dual K2": {"block": "dual", "loops": 2},
    "loop K4": {"block": "loop", "loops": 4},
    "wide": {"block": "wide", "loops": 1},
}
"""Blocks compared, all of one budget of linear FLOPs; dual ones spend half of it on each path."""


def our_config(name: str, shape: ModelConfig, budget: int) -> ModelConfig:
    """One of MODELS at a budget of linear FLOPs per token and layer; all else is as in `shape`."""
    heads = {key: getattr(shape, key) for key in ("d_model", "n_heads", "n_kv_heads")}
    widths = solve_widths(Target(budget, seq_len=shape.max_seq_len, **heads, **MODELS[name]))
    return replace(shape, d_ffn=widths.d_ffn, d_ffn_wide=widths.d_ffn_wide, **MODELS[name])


def training_step(
    model: nn.Module,
    shape: ModelConfig,
    batch: int,
    documents: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
    forced: Intervention | None = None,
    products: torch.dtype | None = torch.bfloat16,
) -> Callable[[], None]:
    """Returns a function that makes one optimizer step on random tokens, by AdamW if by no other.

    Matrix products are of the type `products`, by autocast, or of that of the weights. With
    `documents` token 0, which begins a document, is drawn once in that many tokens.
    """
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(shape.vocab_size, (batch, shape.max_seq_len + 1))
    if documents:
        tokens[torch.rand(tokens.shape) < 1 / documents] = 0
    more = {} if forced is None else {"intervention": forced}  # of our models alone
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step() -> None:
        with torch.autocast("cpu", products, enabled=products is not None):
            loss = model(inputs, targets, **more)
        loss.mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def models_to_compare(
    given: argparse.Namespace, shape: ModelConfig
) -> Iterator[tuple[dict[str, nn.Module], dict[str, nn.Module]]]:
    """Of each kind our model, with the variants that were asked for, and Llamas of its FLOPs."""
    ours = partial(build_model, seed=0, compile_blocks=True, checkpointing="selective")
    for name in given.models:
        config = our_config(name, shape, parse_size(given.budget, "--budget"))
        models: dict[str, nn.Module] = {name: ours(config)}
        if given.experts and config.block != "loop":
            models[f"{name}, {given.experts} experts"] = ours(
                replace(config, n_experts=given.experts)
            )
        if given.eager:
            models[f"{name}, eager"] = build_model(config, seed=0)
        if given.documents:
            models[f"{name}, within documents"] = ours(replace(config, document_start=0))
        flops, llamas = training_flops_per_token(config), {}
        for times in sorted({1, passes(config.block_kinds[0], config.loops)}):
            layers = times * given.n_layers
            llama = TransformersLlama(shape, layers, flops)
            llama.compile()  # its forward pass in one graph, and its backward pass
            llamas[f"transformers, {layers} layers, {flops / 1e6:.1f}M"] = llama
        yield models, llamas


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
    parser.add_argument("--experts", type=int, default=8,
                        help="Adds wide paths of so many experts, 2 active.")  # fmt: skip
    parser.add_argument("--documents", type=int, default=0, metavar="TOKENS",
                        help="Adds attention within documents of that length.")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", help="JSON file for all timings.")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64  # all models share their code
    shape = ModelConfig(
        vocab_size=given.vocab_size, n_layers=given.n_layers, d_model=given.d_model,
        n_heads=given.n_heads, n_kv_heads=given.n_heads, max_seq_len=given.seq_len, d_ffn=64,
        d_ffn_wide=64, ffn_multiple_of=64,
    )  # fmt: skip
    steps, pairs = {}, []
    for ours, llamas in models_to_compare(given, shape):
        dense, *variants = ours
        pairs += [(one, other) for one in ours for other in llamas]
        pairs += [(one, dense) for one in variants]
        for name, model in ours.items():
            steps[name] = timed(training_step(model, shape, given.batch, given.documents))
        for name, model in llamas.items():
            steps[name] = timed(training_step(model, shape, given.batch))
    seconds = in_turns(steps, given.rounds, warm_up=2)
    rows = []
    for one, other in pairs:
        speed = ratios(seconds[other], seconds[one])
        low, _, high = quantiles(speed, n=4)
        milliseconds = [f"{median(seconds[name]) * 1000:.0f}" for name in (one, other)]
        rows.append([one, other, *milliseconds, f"{median(speed):.3f}", f"{low:.3f} {high:.3f}"])
    show(["model", "beside", "ms", "its ms", "ratio", "quartiles"], rows)
    write(given.out, {"options": given_options(given), "cpu_seconds": seconds})


if __name__ == "__main__":
    main()
