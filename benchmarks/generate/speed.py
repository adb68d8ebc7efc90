"""Decoding with random weights, beside a Llama of equal FLOPs and the bandwidth of the memory."""

import argparse
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch

from benchmarks.baselines import Shape, llama_width
from benchmarks.generate.turns import Timed, bandwidth, clock, in_turns
from benchmarks.results import spread, write
from benchmarks.tables import show
from dualpath_cli.config import ModelConfig
from dualpath_cli.flops.count import passes, training_flops_per_token
from dualpath_cli.generation.decoder import Decoder
from dualpath_cli.model import DualPathLM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `speed`."""
    parser.add_argument("--d-model", type=int, default=768, help="Width; heads are of 64.")
    parser.add_argument("--n-layers", type=int, default=4)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 4096])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--tokens", type=int, default=16, help="Decoded in a round.")
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
            model = DualPathLM(config, seed=0).to(device)
            work = (context, batch, given.tokens)
            variants = {"dual K4": ours(Decoder(model), *work)}
            if not given.eager:
                again = DualPathLM(config, seed=0).to(device)
                variants["dual K4, compiled"] = ours(Decoder(again, compiled=True), *work)
            other, read = llama(shape, given.n_layers, flops, device, *work)
            variants["Llama"] = other
            seconds = in_turns(variants, given.rounds)
            for name, times in seconds.items():
                bytes_ = read if name == "Llama" else least_bytes(model, context, batch)
                yield {
                    "context": context, "batch": batch, "name": name, "seconds": times,
                    "llama_seconds": seconds["Llama"],
                    "floor_seconds": bytes_ * given.tokens / bytes_a_second,
                }  # fmt: skip


def ours(decoder: Decoder, context: int, batch: int, tokens: int) -> Timed:
    """Decodes `tokens` ids of each sequence after a context of random ones."""
    rng = torch.Generator().manual_seed(0)
    prompt_BT = torch.randint(1000, (batch, context), generator=rng)

    def run() -> float:
        decoder.begin(context + tokens)
        ids_B1 = decoder.logits(prompt_BT, last=1).argmax(-1)
        start = clock(decoder.device)
        for _ in range(tokens):
            ids_B1 = decoder.logits(ids_B1, last=1).argmax(-1)
        return clock(decoder.device) - start

    return run


def llama(
    shape: Shape,
    n_layers: int,
    flops: float,
    device: torch.device,
    context: int,
    batch: int,
    tokens: int,
) -> tuple[Timed, int]:
    """The same with transformers' Llama and its own cache, and the bytes it reads at least."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.d_model,
            intermediate_size=llama_width(shape, n_layers, flops),
            num_hidden_layers=n_layers,
            num_attention_heads=shape.n_heads,
            num_key_value_heads=shape.n_heads,
            max_position_embeddings=context + tokens,
            tie_word_embeddings=False,
            attn_implementation="sdpa",
        )
    )
    model = model.to(device).eval()
    rng = torch.Generator().manual_seed(0)
    prompt_BT = torch.randint(1000, (batch, context), generator=rng).to(device)

    @torch.no_grad()
    def run() -> float:
        past = DynamicCache()
        ids_B1 = model(prompt_BT, past_key_values=past, logits_to_keep=1).logits.argmax(-1)
        start = clock(device)
        for _ in range(tokens):
            ids_B1 = model(ids_B1, past_key_values=past, logits_to_keep=1).logits.argmax(-1)
        return clock(device) - start

    embedding = model.get_input_embeddings().weight
    weights = sum(p.nbytes for p in model.parameters()) - embedding.nbytes
    kept = 2 * n_layers * shape.d_model * embedding.itemsize
    return run, weights + batch * context * kept


def least_bytes(model: DualPathLM, context: int, batch: int) -> int:
    """Bytes that one token of each sequence makes a device read at least.

    Every weight but the embedding once, however often a loop takes it, and the keys and values of
    the context in all steps.
    """
    config = model.config
    weights = sum(p.nbytes for p in model.parameters()) - model.embed.weight.nbytes
    slots = sum(passes(kind, config.loops) for kind in config.block_kinds)
    kept = 2 * config.n_kv_heads * config.head_dim * model.embed.weight.itemsize
    return weights + batch * context * slots * kept
