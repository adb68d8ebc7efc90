"""How fast a model decodes on a CPU, beside the Llama of transformers and the memory's bandwidth.

OMP_NUM_THREADS=1 python -m benchmarks.decoding --out docs/benchmarks/decoding.json

Random weights, which decode as fast as trained ones, in float32. All variants take turns in one
process, in seconds of its CPU time. The floor is the time of reading each weight and the caches of
the context once. The GPU programme measures the same. Shapes: B sequences, T tokens.
"""

import argparse
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

import torch

from benchmarks.llama import llama_config
from benchmarks.results import Rows, publish, spread
from benchmarks.turns import Timed, bandwidth, clock, in_turns, ratios
from dualpath_cli.config import ModelConfig
from dualpath_cli.decoding.decoder import ROOM, Decoder
from dualpath_cli.flops.count import passes, training_flops_per_token
from dualpath_cli.generation.loading import round_weights
from dualpath_cli.model import DualPathLM


class Work(NamedTuple):
    """How many tokens are decoded of each sequence of a batch, after how many."""

    context: int
    batch: int
    tokens: int
    autocast: torch.dtype | None = None
    """Type of weights and matrix products where it is not float32."""


class Variant(NamedTuple):
    """A model at work."""

    run: Timed
    bytes: int
    """What one token of each sequence makes a device read at least: every weight but the embedding
    once, however often a loop takes it, and the keys and values of the context in all steps."""


def variants(config: ModelConfig, device: torch.device, work: Work) -> dict[str, Variant]:
    """A model, and a Llama of as many layers and training FLOPs, `eager` and `compiled`."""
    return {
        f"{name}, {'compiled' if how else 'eager'}": decoder(config, device, work, how)
        for how in (False, True)
        for name, decoder in ((f"dual K{config.loops}", ours), ("Llama", llama))
    }


def beside_llama(seconds: dict[str, list[float]], name: str) -> list[float]:
    """Tokens/s of a variant over those of the Llama that is run alike, by round."""
    return ratios(seconds[f"Llama, {name.rpartition(' ')[2]}"], seconds[name])


def ours(config: ModelConfig, device: torch.device, work: Work, compiled: bool) -> Variant:
    """Decodes after a context of random ids."""
    model = DualPathLM(config, seed=0).to(device).requires_grad_(False)
    if work.autocast is not None:
        round_weights(model, work.autocast)
    decoder = Decoder(model, autocast=work.autocast, compiled=compiled)
    prompt_BT = _prompt(config, work)

    def begin() -> None:
        if decoder.length == 0:
            decoder.begin(work.context + work.tokens)
            decoder.logits(prompt_BT, last=1)
        decoder.rewind(work.context)  # the prompt is read once for all rounds

    caches = sum(passes(kind, config.loops) for kind in config.block_kinds)
    kept = 2 * config.n_kv_heads * config.head_dim * caches
    run = _timed(begin, lambda ids_B1: decoder.logits(ids_B1, last=1), prompt_BT, device, work)
    return Variant(run, _least_bytes(model, model.embed.weight, kept, work))


def llama(config: ModelConfig, device: torch.device, work: Work, compiled: bool) -> Variant:
    """The same with transformers' Llama and its own cache.

    Compiled it is a graph of static shapes over a cache of fixed size, as ours is.
    """
    from transformers import DynamicCache, LlamaForCausalLM, StaticCache

    length = work.context + work.tokens
    theirs = llama_config(config, config.n_layers, training_flops_per_token(config), length)
    model = LlamaForCausalLM(theirs).to(device, work.autocast).eval()
    prompt_BT = _prompt(config, work).to(device)
    read_on, past = model, DynamicCache()
    if compiled:
        mode = "reduce-overhead" if device.type == "cuda" else None
        read_on = torch.compile(model, dynamic=False, mode=mode)

    @torch.no_grad()
    def begin() -> None:
        nonlocal past
        if compiled:
            past = StaticCache(config=theirs, max_cache_len=-(-length // ROOM) * ROOM)
        elif past.get_seq_length():
            past.crop(-work.tokens)  # which a cache of fixed size cannot
            return
        model(prompt_BT, past_key_values=past, logits_to_keep=1)

    @torch.no_grad()
    def logits(ids_B1: torch.Tensor) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return read_on(ids_B1, past_key_values=past, logits_to_keep=1).logits

    kept = 2 * config.n_layers * config.d_model
    run = _timed(begin, logits, prompt_BT, device, work)
    return Variant(run, _least_bytes(model, model.get_input_embeddings().weight, kept, work))


def _timed(
    begin: Callable[[], None],
    logits: Callable[[torch.Tensor], torch.Tensor],
    prompt_BT: torch.Tensor,
    device: torch.device,
    work: Work,
) -> Timed:
    """Seconds of greedy decoding after `begin`, which reads the prompt or returns to its end."""

    def run() -> float:
        begin()
        ids_B1 = prompt_BT[:, -1:].to(device)
        start = clock(device)
        for _ in range(work.tokens):
            ids_B1 = logits(ids_B1).argmax(-1)
        return clock(device) - start

    return run


def _least_bytes(model: torch.nn.Module, embedding: torch.Tensor, kept: int, work: Work) -> int:
    """As `Variant.bytes`; `kept` are the numbers that the cache holds of a position."""
    weights = sum(p.nbytes for p in model.parameters()) - embedding.nbytes
    itemsize = (work.autocast or embedding.dtype).itemsize
    return weights + work.batch * work.context * kept * itemsize


def _prompt(config: ModelConfig, work: Work) -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    return torch.randint(config.vocab_size, (work.batch, work.context), generator=rng)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--d-model", type=int, default=256, help="Width; heads are of 64.")
    parser.add_argument("--contexts", type=int, nargs="+", default=[512])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--tokens", type=int, default=16, help="Decoded in a round.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", help="JSON file of the results.")
    given = parser.parse_args(arguments)
    torch.manual_seed(0)
    device, d = torch.device("cpu"), given.d_model
    # K = 4, and half of the linear FLOPs or so are the wide path's.
    config = ModelConfig(
        vocab_size=8192, n_layers=4, d_model=d, n_heads=d // 64, n_kv_heads=d // 64,
        max_seq_len=max(given.contexts), d_ffn=3 * d // 2, d_ffn_wide=12 * d, ffn_multiple_of=64,
    )  # fmt: skip
    bytes_a_second, flops = bandwidth(device), training_flops_per_token(config)
    rows, measured = [], []
    for context in given.contexts:
        for batch in given.batches:
            work = Work(context, batch, given.tokens)
            found = variants(config, device, work)
            seconds = in_turns({name: one.run for name, one in found.items()}, given.rounds)
            for name, times in seconds.items():
                floor = found[name].bytes * given.tokens / bytes_a_second
                rows.append([
                    f"{context:,}", str(batch), name,
                    f"{batch * given.tokens / median(times):,.1f}",
                    spread(beside_llama(seconds, name)), spread([floor / t for t in times]),
                ])  # fmt: skip
            measured.append({"context": context, "batch": batch, "seconds": seconds})
    title = f"{flops / 1e6:.1f}M training FLOPs a token; memory {bytes_a_second / 1e9:.1f} GB/s"
    columns = ["context", "batch", "model", "tokens/s", "Llama, run alike = 1", "its floor = 1"]
    publish(given, [Rows(columns, rows, title)], measured)


if __name__ == "__main__":
    main()
