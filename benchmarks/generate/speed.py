"""Decoding with random weights, beside a Llama of equal FLOPs and the bandwidth of the memory."""

import argparse
from statistics import median

import torch

from benchmarks.generate.decoding import Work, beside_llama
from benchmarks.results import given_options, show, spread, write
from benchmarks.turns import bandwidth, ratios
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
    device, d = torch.device(given.device), given.d_model
    # K = 4, and half of the linear FLOPs or so are the wide path's.
    config = ModelConfig(
        vocab_size=given.vocab_size, n_layers=given.n_layers, d_model=d, n_heads=d // 64,
        n_kv_heads=d // 64, max_seq_len=max(given.contexts), d_ffn=3 * d // 2, d_ffn_wide=12 * d,
        ffn_multiple_of=64,
    )  # fmt: skip
    bytes_a_second, flops = bandwidth(device), training_flops_per_token(config)
    hows = ("eager",) if given.eager else ("eager", "compiled")
    rows, records = [], []
    for context in given.contexts:
        for batch in given.batches:
            work = Work(context, batch, given.tokens, autocast_of(given.precision))
            for one in beside_llama(config, device, work, given.rounds, hows):
                floor = one.bytes * given.tokens / bytes_a_second
                rate = batch * given.tokens / median(one.seconds)
                beside = spread(ratios(one.llama_seconds, one.seconds))
                of_floor = spread([floor / seconds for seconds in one.seconds])
                rows.append([str(context), str(batch), one.name, f"{rate:,.1f}", beside, of_floor])
                records.append({
                    "context": context, "batch": batch, "name": one.name, "seconds": one.seconds,
                    "llama_seconds": one.llama_seconds, "floor_seconds": floor,
                })  # fmt: skip
    show(["context", "batch", "model", "tokens/s", "Llama = 1", "its floor = 1"], rows)
    print(f"memory {bytes_a_second / 1e9:.1f} GB/s, {flops / 1e6:.1f}M training FLOPs a token")
    result = {"bytes_a_second": bytes_a_second, "runs": records}
    write(given.out, {"options": given_options(given), **result})
