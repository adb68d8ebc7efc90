"""The texts of a request, written in batches, and the time that they took."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from dualpath_cli.decoding.decoder import Decoder
from dualpath_cli.decoding.sampler import Sampler
from dualpath_cli.decoding.speculation import Drafts, write_on_drafts
from dualpath_cli.decoding.writing import End, Limits, batches, write_on
from dualpath_cli.generation.request import Request
from dualpath_cli.seeds import seed_from


@dataclass
class Text:
    """A text after a prompt."""

    prompt: int  # number of its prompt, from 1
    sample: int  # its number among those of the prompt, from 1
    text: str = ""
    new_tokens: int = 0  # end-of-text among them
    end: End | None = None  # why it has ended; None until it has


@dataclass
class Took:
    """Time, tokens and memory of the writing so far."""

    first_seconds: list[float] = field(default_factory=list)
    """From the beginning of each batch to its first token: the time of its prompts."""
    later_seconds: float = 0.0  # the seconds of all tokens after the first of each text
    tokens: int = 0
    later_tokens: int = 0  # those after the first of each text
    drafts: Drafts = field(default_factory=Drafts)  # ids that were drafted, where any were
    cache_bytes: int = 0  # keys and values of the largest batch


def texts_of(wanted: Request) -> list[Text]:
    return [
        Text(prompt, sample)
        for prompt in range(1, len(wanted.prompts) + 1)
        for sample in range(1, wanted.num_samples + 1)
    ]


def write(
    wanted: Request, decoder: Decoder, texts: list[Text], took: Took
) -> Iterator[tuple[Text, str]]:
    """Writes the texts, those of the longest prompts first; yields a text and its new piece.

    Raises:
        RunFailed: where the model gives no numbers.
    """
    config, tokenizer = wanted.trained.settings.model, wanted.tokenizer
    sampler = Sampler(wanted.sampling, tokenizer.vocab_size)
    token_values = tokenizer.token_values()
    limits = Limits(
        wanted.max_new_tokens,
        config.max_seq_len,
        None if wanted.ignore_eot else tokenizer.eot_id,
        wanted.stops,
    )
    lengths = [len(wanted.ids[text.prompt - 1]) for text in texts]
    for rows in batches(lengths, wanted.batch_size):
        batch = [texts[row] for row in rows]
        prompts = [wanted.ids[text.prompt - 1] for text in batch]
        decoder.begin(capacity=limits.positions([lengths[row] for row in rows]))
        seeds = [seed_from(wanted.seed, text.prompt, text.sample) for text in batch]
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        if wanted.compiled:  # a smaller batch would be compiled anew
            prompts += [prompts[-1][:1]] * (min(wanted.batch_size, len(texts)) - len(prompts))
        start = last = time.perf_counter()
        pieces = (
            write_on_drafts(
                decoder, prompts[0], sampler, generators[0], token_values, limits,
                wanted.speculate, took.drafts,
            )
            if wanted.speculate
            else write_on(
                decoder.next_logits, prompts, sampler, generators, token_values, limits,
                None if wanted.compiled else decoder.select,  # so would be the rest of one
            )
        )  # fmt: skip
        for piece in pieces:
            now, text = time.perf_counter(), batch[piece.row]
            if start == last:
                took.first_seconds.append(now - start)
                took.cache_bytes = max(took.cache_bytes, decoder.cache_bytes)
            elif text.new_tokens:
                took.later_seconds += now - last
                took.later_tokens += 1
            took.tokens += 1
            text.text += piece.text
            text.new_tokens += 1
            text.end = piece.end
            yield text, piece.text
            last = time.perf_counter()  # what is done with the piece does not count
