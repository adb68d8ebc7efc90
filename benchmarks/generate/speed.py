"""Decoding with random weights, beside a Llama of equal FLOPs and the bandwidth of the memory."""

import argparse
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch

from benchmarks.baselines import Shape
from benchmarks.generate.decoding import Work, decoder_of, least_bytes, llama, ours
from benchmarks.results import show, spread, write
from benchmarks.turns import bandwidth, in_turns
from dualpath_cli.config import ModelConfig
from dualpath_cli.flops.count import training_flops_per_token
from dualpath_cli.generation.loading import autocast_of
from dualpath_cli.options.values import PRECISIONS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `speed`."""
    parser.add_argument("--d-model", type=int, default=768, help="Width; heads are of 64.")
    parser.add_argument("--n-layers", type=int, default=4)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 4096])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--tokens", type=int, default=16, help="Decoded in a round.")
    parser.add_argument("--precision", choices=PRECISIONS, default=PRECISIONS[0])
    parser.add_argument("--eager", action="store_true", help="Leaves compiled decoding out.")


def run(given: argparse.Namespace) -> None:
    """Prints and writes tokens/s at each batch and context."""
    device = torch.device(given.device)
    config = _config(given)
    bytes_a_second, flops = bandwidth(device), training_flops_per_token(config)
    records = list(_records(given, config, bytes_a_second))
    rows = []
    for record in records:
        times = record["seconds"]
        beside = [b / a for a, b in zip(times, record["llama_seconds"], strict=True)]
        rate = record["batch"] * given.tokens / median(times)
        of_floor = spread([record["floor_seconds"] / seconds for seconds in times])
        rows.append(
            [str(record["context"]), str(record["batch"]), record["name"], f"{rate:,.1f}",
             spread(beside), of_floor]
        )  # fmt: skip
    show(["context", "batch", "model", "tokens/s", "Llama = 1", "its floor = 1"], rows)
    print(f"memory {bytes_a_second / 1e9:.1f} GB/s, {flops / 1e6:.1f}M training FLOPs a token")
    options = {name: value for name, value in vars(given).items() if name not in ("out", "run")}
    write(given.out, {"options": options, "bytes_a_second": bytes_a_second, "runs": records})


def _config(given: argparse.Namespace) -> ModelConfig:
    """A dual-path model with K = 4, half of whose linear FLOPs or so are the wide path's."""
    d, heads = given.d_model, given.d_model // 64
    return ModelConfig(
        vocab_size=given.vocab_size, n_layers=given.n_layers, d_model=d, n_heads=heads,
        n_kv_heads=heads, max_seq_len=max(given.contexts), d_ffn=3 * d // 2, d_ffn_wide=12 * d,
        ffn_multiple_of=64,
    )  # fmt: skip


def _records(
    given: argparse.Namespace, config: ModelConfig, bytes_a_second: float
) -> Iterator[dict[str, Any]]:
    device = torch.device(given.device)
    shape = Shape(config.d_model, config.n_heads, config.max_seq_len, config.vocab_size)
    flops = training_flops_per_token(config)
    for context in given.contexts:
        for batch in given.batches:
            work = Work(context, batch, given.tokens, autocast_of(given.precision))
            variants, bytes_ = {}, {}
            for how in ("eager",) if given.eager else ("eager", "compiled"):
                decoder = decoder_of(config, device, work, how == "compiled")
                variants[f"dual K4, {how}"] = ours(decoder, config.vocab_size, work)
                bytes_[f"dual K4, {how}"] = least_bytes(decoder.model, work)
                other = llama(shape, given.n_layers, flops, device, work, how == "compiled")
                variants[f"Llama, {how}"], bytes_[f"Llama, {how}"] = other
            seconds = in_turns(variants, given.rounds)
            for name, times in seconds.items():
                yield {
                    "context": context, "batch": batch, "name": name, "seconds": times,
                    "llama_seconds": seconds[f"Llama, {name.rpartition(' ')[2]}"],
                    "floor_seconds": bytes_[name] * given.tokens / bytes_a_second,
                }  # fmt: skip
