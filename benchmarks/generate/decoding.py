"""Decoding with random weights: a dual-path model beside the Llama of transformers.

Shapes: B sequences, T tokens of a prompt.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from benchmarks.baselines import llama_config
from benchmarks.turns import Timed, clock, in_turns
from dualpath_cli.config import ModelConfig
from dualpath_cli.decoding.decoder import ROOM, Decoder
from dualpath_cli.flops.count import passes, training_flops_per_token
from dualpath_cli.generation.loading import round_weights
from dualpath_cli.model import DualPathLM


@dataclass(frozen=True)
class Work:
    """How much is decoded."""

    context: int
    """Tokens before, of each sequence."""
    batch: int
    tokens: int
    """Decoded after them, of each sequence."""
    autocast: torch.dtype | None = None
    """Type of weights and matrix products where it is not float32."""


class Decoded(NamedTuple):
    """A model's times."""

    name: str
    seconds: list[float]
    """By round."""
    llama_seconds: list[float]
    """Of the Llama that is run alike."""
    bytes: int
    """That one token of each sequence makes a device read at least: every weight but the embedding
    once, however often a loop takes it, and the keys and values of the context in all steps."""


def beside_llama(
    config: ModelConfig,
    device: torch.device,
    work: Work,
    rounds: int,
    hows: Sequence[str] = ("eager", "compiled"),
) -> Iterator[Decoded]:
    """Decodes by turns with a model, and with a Llama of as many layers and training FLOPs."""
    variants: dict[str, Timed] = {}
    bytes_: dict[str, int] = {}
    for how in hows:
        for name, decoder in ((f"dual K{config.loops}", ours), ("Llama", llama)):
            title = f"{name}, {how}"
            variants[title], bytes_[title] = decoder(config, device, work, how == "compiled")
    seconds = in_turns(variants, rounds)
    for name, times in seconds.items():
        yield Decoded(name, times, seconds[f"Llama, {name.rpartition(' ')[2]}"], bytes_[name])


def ours(
    config: ModelConfig, device: torch.device, work: Work, compiled: bool
) -> tuple[Timed, int]:
    """Decodes after a context of random ids; with the bytes it reads at least."""
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
    timed = _timed(begin, lambda ids_B1: decoder.logits(ids_B1, last=1), prompt_BT, device, work)
    return timed, _least_bytes(model, model.embed.weight, kept, work)


def llama(
    config: ModelConfig, device: torch.device, work: Work, compiled: bool
) -> tuple[Timed, int]:
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
        return read_on(ids_B1, past_key_values=past, logits_to_keep=1).logits

    kept = 2 * config.n_layers * config.d_model
    timed = _timed(begin, logits, prompt_BT, device, work)
    return timed, _least_bytes(model, model.get_input_embeddings().weight, kept, work)


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
        ids_B1 = prompt_BT[:, -1:]
        start = clock(device)
        for _ in range(work.tokens):
            ids_B1 = logits(ids_B1).argmax(-1)
        return clock(device) - start

    return run


def _least_bytes(model: torch.nn.Module, embedding: torch.Tensor, kept: int, work: Work) -> int:
    """As `Decoded.bytes`; `kept` are the numbers that the cache holds of a position."""
    weights = sum(p.nbytes for p in model.parameters()) - embedding.nbytes
    itemsize = (work.autocast or embedding.dtype).itemsize
    return weights + work.batch * work.context * kept * itemsize


def _prompt(config: ModelConfig, work: Work) -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    return torch.randint(config.vocab_size, (work.batch, work.context), generator=rng)
