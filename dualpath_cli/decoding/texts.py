"""The texts of a call, written in batches, and the time that they took."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.decoding.decoder import Decoder
from dualpath_cli.decoding.request import Generate, Prompt
from dualpath_cli.decoding.writing import (
    Drafts,
    End,
    Limits,
    Sampler,
    batches,
    write_on,
    write_on_drafts,
)
from dualpath_cli.report.seeds import seed_from


@dataclass
class Text:
    prompt: Prompt
    ids: list[int]  # those of the prompt, end-of-text before them
    number: int  # of its prompt, from 1
    sample: int  # its number among those of the prompt, from 1
    text: str = ""
    new_tokens: int = 0  # end-of-text among them
    end: End | None = None  # why it has ended; None until it has


@dataclass
class Took:
    """Time, tokens and memory of the writing so far."""

    first_seconds: list[float] = field(default_factory=list)
    """From the beginning of each batch to its first token: the time of its prompts."""
    later_seconds: float = 0.0  # of all tokens after the first of each text, but for these:
    preparing_seconds: float = 0.0  # in which passes were compiled or recorded
    tokens: int = 0
    later_tokens: int = 0  # those after the first of each text
    drafts: Drafts = field(default_factory=Drafts)  # ids that were drafted, where any were
    cache_bytes: int = 0  # keys and values of the largest batch


def write(
    options: Generate, decoder: Decoder, tokenizer: Tokenizer, texts: list[Text], took: Took
) -> Iterator[tuple[Text, str]]:
    """Writes the texts, those of the longest prompts first; yields a text and its new piece.

    Raises:
        RunFailed: where the model gives no numbers.
    """
    sampler = Sampler(options, tokenizer.vocab_size)
    token_values = tokenizer.token_values()
    limits = Limits(
        options.max_new_tokens,
        decoder.model.config.max_seq_len,
        None if options.ignore_eot else tokenizer.eot_id,
        tuple(options.stop),
    )
    lengths = [len(text.ids) for text in texts]
    for rows in batches(lengths, options.together):
        batch = [texts[row] for row in rows]
        prompts = [text.ids for text in batch]
        decoder.begin(capacity=limits.positions([lengths[row] for row in rows]))
        seeds = [seed_from(options.seed, text.number, text.sample) for text in batch]
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        if options.compile:  # a smaller batch would be compiled anew
            prompts += [prompts[-1][:1]] * (min(options.together, len(texts)) - len(prompts))
        start = last = time.perf_counter()
        prepared = decoder.preparing_seconds
        pieces = (
            write_on_drafts(
                decoder, prompts[0], sampler, generators[0], token_values, limits,
                options.speculate, took.drafts,
            )
            if options.speculate
            else write_on(
                decoder.next_logits, prompts, sampler, generators, token_values, limits,
                None if options.compile else decoder.select,  # so would be the rest of one
            )
        )  # fmt: skip
        for piece in pieces:
            now, text = time.perf_counter(), batch[piece.row]
            if start == last:
                took.first_seconds.append(now - start)
                took.cache_bytes = max(took.cache_bytes, decoder.cache_bytes)
            elif text.new_tokens:
                took.later_seconds += now - last - (decoder.preparing_seconds - prepared)
                took.later_tokens += 1
            took.preparing_seconds += decoder.preparing_seconds - prepared
            took.tokens += 1
            text.text += piece.text
            text.new_tokens += 1
            text.end = piece.end
            yield text, piece.text
            last = time.perf_counter()  # what is done with the piece does not count
            prepared = decoder.preparing_seconds
