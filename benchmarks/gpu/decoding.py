"""How fast a model decodes beside the Llama of transformers.

Random weights decode as fast as trained ones. All variants take turns in one process.
Shapes: B sequences, T tokens.
"""

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import NamedTuple

import torch

from benchmarks.llama import llama_config
from benchmarks.results import Rows, failed, spread
from benchmarks.turns import Timed, clock, in_turns, ratios
from dualpath_cli.decoding.decoder import OPTIONS, ROOM, Decoder, join_products
from dualpath_cli.flops.count import passes, training_flops_per_token
from dualpath_cli.model import DualPathLM
from dualpath_cli.run.weights import round_weights
from dualpath_cli.spec.config import ModelConfig


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


def decoded(
    config: ModelConfig,
    device: torch.device,
    work: Work,
    rounds: int,
    alone: Callable[[], object] = lambda: None,
) -> Rows:
    """Decodes by turns with a model and a Llama of as many layers and training FLOPs.

    The model as it is and with joined products, each eagerly and compiled; one that fails gives its
    reason. `alone` is called before the time is taken.
    """
    variants, rows = {}, {}
    for compiled in (False, True):
        name = f"dual K{config.loops}"
        builds = ((name, ours), (f"{name}, joined", partial(ours, joined=True)), ("Llama", llama))
        for name, build in builds:
            title = f"{name}, {'compiled' if compiled else 'eager'}"
            try:
                variants[title] = build(config, device, work, compiled)
                variants[title].run()  # compiles
            except Exception as error:  # the others are measured
                variants.pop(title, None)
                rows[title] = failed(error)
    alone()
    seconds = in_turns({title: one.run for title, one in variants.items()}, rounds)
    for title, times in seconds.items():
        steps = work.tokens / median(times)
        rows[title] = {"tokens/s": work.batch * steps, "seconds": times}
        if (theirs := seconds.get(f"Llama, {title.rpartition(' ')[2]}")) is not None:
            rows[title]["Llama, run alike = 1"] = spread(ratios(theirs, times))
        rows[title]["GB/s read at least"] = variants[title].bytes * steps / 1e9
    return {f"context {work.context}, batch {work.batch}: {t}": row for t, row in rows.items()}


def ours(
    config: ModelConfig, device: torch.device, work: Work, compiled: bool, joined: bool = False
) -> Variant:
    """Decodes after a context of random ids."""
    model = DualPathLM(config, seed=0).to(device).requires_grad_(False)
    if work.autocast is not None:
        round_weights(model, work.autocast)
    if joined:
        join_products(model)
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
        graphs = {"triton.cudagraphs": device.type == "cuda"}
        read_on = torch.compile(model, dynamic=False, options=OPTIONS | graphs)

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
