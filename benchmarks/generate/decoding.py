"""Decoding with random weights: ours, and the Llama of transformers.

Shapes: B sequences, T tokens of a prompt.
"""

from dataclasses import dataclass

import torch

from benchmarks.baselines import Shape, llama_config
from benchmarks.turns import Timed, clock
from dualpath_cli.config import ModelConfig
from dualpath_cli.decoding.decoder import ROOM, Decoder
from dualpath_cli.flops.count import passes
from dualpath_cli.generation.loading import round_weights
from dualpath_cli.model import DualPathLM


@dataclass(frozen=True)
class Work:
    """What is decoded."""

    context: int
    """Tokens before, of each sequence."""
    batch: int
    tokens: int
    """Decoded after them, of each sequence."""
    autocast: torch.dtype | None = None
    """Type of weights and matrix products where it is not float32."""


def decoder_of(config: ModelConfig, device: torch.device, work: Work, compiled: bool) -> Decoder:
    """Of a model with random weights."""
    model = DualPathLM(config, seed=0).to(device).requires_grad_(False)
    if work.autocast is not None:
        round_weights(model, work.autocast)
    return Decoder(model, autocast=work.autocast, compiled=compiled)


def ours(decoder: Decoder, vocab_size: int, work: Work) -> Timed:
    """Decodes after a context of random ids."""
    prompt_BT = _prompt(vocab_size, work)

    def run() -> float:
        if decoder.length == 0:
            decoder.begin(work.context + work.tokens)
            decoder.logits(prompt_BT, last=1)
        decoder.rewind(work.context)  # the prompt is read once for all rounds
        ids_B1 = prompt_BT[:, -1:]
        start = clock(decoder.device)
        for _ in range(work.tokens):
            ids_B1 = decoder.logits(ids_B1, last=1).argmax(-1)
        return clock(decoder.device) - start

    return run


def llama(
    shape: Shape, n_layers: int, flops: float, device: torch.device, work: Work, compiled: bool
) -> tuple[Timed, int]:
    """The same with transformers' Llama and its own cache, and the bytes it reads at least.

    Compiled it is a graph of static shapes over a cache of fixed size, as ours is.
    """
    from transformers import DynamicCache, LlamaForCausalLM, StaticCache

    config = llama_config(shape, n_layers, flops, work.context + work.tokens)
    model = LlamaForCausalLM(config).to(device, work.autocast).eval()
    prompt_BT = _prompt(shape.vocab_size, work).to(device)
    read_on = model
    if compiled:
        mode = "reduce-overhead" if device.type == "cuda" else None
        read_on = torch.compile(model, dynamic=False, mode=mode)
    room = -(-(work.context + work.tokens) // ROOM) * ROOM

    growing = DynamicCache()

    @torch.no_grad()
    def run() -> float:
        past = StaticCache(config=config, max_cache_len=room) if compiled else growing
        if past.get_seq_length():
            past.crop(-work.tokens)  # which a cache of fixed size cannot
        else:
            model(prompt_BT, past_key_values=past, logits_to_keep=1)
        ids_B1 = prompt_BT[:, -1:].to(device)
        start = clock(device)
        for _ in range(work.tokens):
            ids_B1 = read_on(ids_B1, past_key_values=past, logits_to_keep=1).logits.argmax(-1)
        return clock(device) - start

    embedding = model.get_input_embeddings().weight
    weights = sum(p.nbytes for p in model.parameters()) - embedding.nbytes
    kept = 2 * n_layers * shape.d_model * embedding.itemsize
    return run, weights + work.batch * work.context * kept


def least_bytes(model: DualPathLM, work: Work) -> int:
    """Bytes that one token of each sequence makes a device read at least.

    Every weight but the embedding once, however often a loop takes it, and the keys and values of
    the context in all steps.
    """
    config = model.config
    weights = sum(p.nbytes for p in model.parameters()) - model.embed.weight.nbytes
    slots = sum(passes(kind, config.loops) for kind in config.block_kinds)
    size = (work.autocast or model.embed.weight.dtype).itemsize
    kept = 2 * config.n_kv_heads * config.head_dim * size
    return weights + work.batch * work.context * slots * kept


def _prompt(vocab_size: int, work: Work) -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    return torch.randint(vocab_size, (work.batch, work.context), generator=rng)
