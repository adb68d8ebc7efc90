"""How fast a model decodes beside the Llama of transformers, in bf16.

Random weights decode as fast as trained ones. All variants take turns in one process.
Shapes: B sequences, T tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.bench import MAIN, Bench
from benchmarks.llama import llama_config
from benchmarks.results import Rows, failed, spread
from benchmarks.turns import Timed, clock, in_turns, ratios
from dualpath_cli.decoding import decoder as decoder_module
from dualpath_cli.decoding.decoder import OPTIONS, ROOM, Decoder, join_products
from dualpath_cli.flops.count import kv_bytes, training_flops_per_token
from dualpath_cli.model import DualPathLM
from dualpath_cli.run.weights import round_weights
from dualpath_cli.spec.config import ModelConfig


class Variant(NamedTuple):
    """A model at work."""

    run: Timed
    bytes: int
    """What one token of each sequence makes a device read at least: every weight but
    the embedding once, however often a loop takes it, and the keys and values of the
    context in all steps."""


LLAMA: dict[str, dict[str, Any]] = {
    "eager": {},
    "compiled": {"mode": "reduce-overhead"},
    "compiled alike": {"options": {**OPTIONS, "triton.cudagraphs": True}},
}
"""Words of torch.compile for the Llama. `alike` has the options of `generate`, which
try more kernels, and take longer."""


def decode(
    bench: Bench, batch: int, ways: Sequence[str] = ("eager", "compiled")
) -> Rows:
    """Decodes by turns with a model and a Llama of as many layers and training FLOPs,
    each in some of the ways of LLAMA."""
    config, prompt_BT = bench.sizes.model(MAIN), prompt(bench, batch)
    builds: dict[str, Callable[[], Variant]] = {}
    for how in ways:
        compiled = how != "eager"
        builds[f"dual K{config.loops}, {how}"] = partial(
            ours, bench, config, prompt_BT, compiled
        )
        builds[f"Llama, {how}"] = partial(llama, bench, config, prompt_BT, LLAMA[how])
    return measured(bench, prompt_BT, builds)


def room(bench: Bench, batch: int, positions: int) -> Rows:
    """Decodes with compiled passes over caches of a multiple of so many positions."""
    decoder_module.ROOM = positions  # the process is the cell's own
    config, prompt_BT = bench.sizes.model(MAIN), prompt(bench, batch)
    title = f"dual K{config.loops}, compiled, room for a multiple of {positions}"
    build = partial(ours, bench, config, prompt_BT, compiled=True)
    return measured(bench, prompt_BT, {title: build})


def prompt(bench: Bench, batch: int) -> torch.Tensor:
    """Random ids to decode after, (B, T)."""
    rng = torch.Generator().manual_seed(0)
    shape = (batch, bench.sizes.context)
    return torch.randint(bench.sizes.model(MAIN).vocab_size, shape, generator=rng)


def measured(
    bench: Bench, prompt_BT: torch.Tensor, builds: Mapping[str, Callable[[], Variant]]
) -> Rows:
    """Measures variants by turns; one that fails gives its reason."""
    sizes, batch = bench.sizes, len(prompt_BT)
    variants: dict[str, Variant] = {}
    rows: Rows = {}
    for title, build in builds.items():
        try:
            variants[title] = build()
            variants[title].run()  # compiles
        except Exception as error:  # the others are measured
            variants.pop(title, None)
            rows[title] = failed(error)
    bench.alone()
    seconds = in_turns(
        {title: one.run for title, one in variants.items()}, sizes.rounds
    )
    for title, times in seconds.items():
        steps = sizes.decoded / median(times)
        rows[title] = {"tokens/s": batch * steps, "seconds": times}
        if (theirs := seconds.get(f"Llama, {title.partition(', ')[2]}")) is not None:
            rows[title]["Llama, run alike = 1"] = spread(ratios(theirs, times))
        rows[title]["GB/s read at least"] = variants[title].bytes * steps / 1e9
    return {
        f"context {sizes.context}, batch {batch}: {t}": row for t, row in rows.items()
    }


def ours(
    bench: Bench, config: ModelConfig, prompt_BT: torch.Tensor, compiled: bool
) -> Variant:
    """Decodes after a context of random ids, as `generate` does."""
    context = prompt_BT.shape[1]
    model = DualPathLM(config, seed=0).to(bench.device).requires_grad_(False)
    round_weights(model, torch.bfloat16)
    join_products(model)
    decoder = Decoder(model, autocast=torch.bfloat16, compiled=compiled)

    def begin() -> None:
        if decoder.length == 0:
            decoder.begin(context + bench.sizes.decoded)
            decoder.logits(prompt_BT, last=1)
        decoder.rewind(context)  # the prompt is read once for all rounds

    run = _timed(bench, begin, lambda ids_B1: decoder.logits(ids_B1, last=1), prompt_BT)
    weights = sum(p.nbytes for p in model.parameters()) - model.embed.weight.nbytes
    return Variant(run, weights + prompt_BT.numel() * kv_bytes(config))


def llama(
    bench: Bench, config: ModelConfig, prompt_BT: torch.Tensor, words: dict[str, Any]
) -> Variant:
    """The same with transformers' Llama and its own cache.

    With `words` of torch.compile it is a graph of static shapes over a cache of fixed
    size, as ours is.
    """
    from transformers import DynamicCache, LlamaForCausalLM, StaticCache

    length = prompt_BT.shape[1] + bench.sizes.decoded
    theirs = llama_config(
        config, config.n_layers, training_flops_per_token(config), length
    )
    model = LlamaForCausalLM(theirs).to(bench.device, torch.bfloat16).eval()
    prompt_BT = prompt_BT.to(bench.device)
    read_on: Any = model
    past: Any = DynamicCache()
    if words:
        past = StaticCache(config=theirs, max_cache_len=-(-length // ROOM) * ROOM)
        if bench.device.type != "cuda":  # which has no graphs
            words = {"options": OPTIONS}
        read_on = torch.compile(model, dynamic=False, **words)

    @torch.no_grad()
    def begin() -> None:
        if isinstance(past, StaticCache):
            past.reset()  # where it is: of another cache the graph is recorded anew
        elif past.get_seq_length():
            past.crop(-bench.sizes.decoded)
            return
        model(prompt_BT, past_key_values=past, logits_to_keep=1)

    @torch.no_grad()
    def logits(ids_B1: torch.Tensor) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return read_on(ids_B1, past_key_values=past, logits_to_keep=1).logits

    embedding = model.get_input_embeddings().weight
    weights = sum(p.nbytes for p in model.parameters()) - embedding.nbytes
    kept = 2 * config.n_layers * config.d_model * embedding.itemsize  # of a position
    return Variant(
        _timed(bench, begin, logits, prompt_BT), weights + prompt_BT.numel() * kept
    )


def _timed(
    bench: Bench,
    begin: Callable[[], None],
    logits: Callable[[torch.Tensor], torch.Tensor],
    prompt_BT: torch.Tensor,
) -> Timed:
    """Seconds of greedy decoding after `begin`, which reads the prompt or returns to
    its end."""

    def run() -> float:
        begin()
        ids_B1 = prompt_BT[:, -1:].to(bench.device)
        start = clock(bench.device)
        for _ in range(bench.sizes.decoded):
            ids_B1 = logits(ids_B1).argmax(-1)
        return clock(bench.device) - start

    return run
