"""The texts of `dualpath generate`: generated in batches, shown or filed, and timed."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO, cast

import torch
from rich.console import Console
from rich.filesize import decimal

from dualpath_cli.base.errors import RunFailed
from dualpath_cli.base.files import write_text
from dualpath_cli.base.output import say
from dualpath_cli.base.seeds import seed_from
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.decoding.decoder import Decoder
from dualpath_cli.decoding.options import Generate
from dualpath_cli.decoding.writing import (
    DraftCounts,
    EndReason,
    Limits,
    NewToken,
    Sampler,
    Select,
    batches_by_length,
    generate_batch,
    generate_with_drafts,
)
from dualpath_cli.report.console import Progress, counted, plain_console


@dataclass
class GeneratedText:
    """A text that grows by each new token."""

    prompt: str
    ids: list[int]  # ids of the prompt, after end-of-text
    number: int  # number of the prompt, from 1
    sample: int  # number among the prompt's samples, from 1
    text: str = ""
    new_tokens: int = 0  # including end-of-text
    end: EndReason | None = None  # None before the end


Pieces = Iterator[tuple[GeneratedText, str]]
"""For each new token its text, and the piece that the token adds."""


@dataclass
class GenerationStats:
    """Time, tokens and memory of the generation so far."""

    first_seconds: list[float] = field(default_factory=list)
    """From the start of each batch to its first token, without preparation."""
    # of all tokens after the first pass of each batch, without preparation
    later_seconds: float = 0.0
    preparing_seconds: float = 0.0  # spent on compiling and recording passes
    tokens: int = 0
    later_tokens: int = 0  # tokens after the first pass, which may keep a draft
    drafts: DraftCounts = field(default_factory=DraftCounts)  # drafted ids, if any
    cache_bytes: int = 0  # keys and values of the largest batch

    def summary(self) -> str:
        """The last line: number of tokens, speed, time to the first token, drafts and
        cache."""
        parts = [f"{self.tokens:,} new tokens"]
        if self.later_tokens:
            speed = self.later_tokens / self.later_seconds
            parts.append(f"{speed:,.1f} tokens/s without the prompt")

        batches = len(self.first_seconds)
        if batches:
            seconds = sum(self.first_seconds) / batches
            mean = f" (mean of {batches:,} batches)" if batches > 1 else ""
            parts.append(f"first token after {seconds:.2f} s{mean}")
        if self.preparing_seconds >= 0.01:
            parts.append(f"prepared in {self.preparing_seconds:.2f} s")

        if self.drafts.ids:
            share = self.drafts.accepted / self.drafts.ids
            parts.append(f"{share:.0%} of {self.drafts.ids:,} drafted tokens accepted")
        parts.append(f"cache {decimal(self.cache_bytes)}")
        return ", ".join(parts)


def generate_texts(
    options: Generate,
    decoder: Decoder,
    tokenizer: Tokenizer,
    texts: list[GeneratedText],
) -> None:
    """Generates texts to the terminal or into --out, and the summary to stderr."""
    stats = GenerationStats()
    pieces = _generate(options, decoder, tokenizer, texts, stats)
    if options.out is None:
        _print_texts(pieces, texts, stats)
    else:
        _write_texts(pieces, texts, stats, Path(options.out))
    say(stats.summary())


def _generate(
    options: Generate,
    decoder: Decoder,
    tokenizer: Tokenizer,
    texts: list[GeneratedText],
    stats: GenerationStats,
) -> Pieces:
    """Generates the texts, longest prompts first; yields a text and its new piece.

    Raises:
        RunFailed: if logits are not finite.
    """
    sampler = Sampler(options, tokenizer.vocab_size)
    token_values = tokenizer.token_values()
    limits = Limits(
        options.max_new_tokens,
        decoder.model.config.max_seq_len,
        tokenizer.eot_id,
        tuple(options.stop),
    )
    lengths = [len(text.ids) for text in texts]
    largest_batch = min(options.texts_at_once, len(texts))
    for rows in batches_by_length(lengths, options.texts_at_once):
        batch = [texts[row] for row in rows]
        prompts = [text.ids for text in batch]
        seeds = [seed_from(options.seed, text.number, text.sample) for text in batch]
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        decoder.begin(capacity=limits.positions([len(ids) for ids in prompts]))

        if options.speculate:
            new_tokens = generate_with_drafts(
                decoder,
                prompts[0],
                sampler,
                generators[0],
                token_values,
                limits,
                options.speculate,
                stats.drafts,
            )
        else:
            # A smaller batch would need a compilation: a last batch is filled up, and
            # finished texts stay.
            select: Select | None = decoder.select
            if options.compile:
                # A shorter prompt would be padded, which is another compilation.
                prompts += prompts[-1:] * (largest_batch - len(prompts))
                select = None
            new_tokens = generate_batch(
                decoder.next_logits,
                prompts,
                sampler,
                generators,
                token_values,
                limits,
                select,
            )
        yield from _timed(new_tokens, batch, decoder, stats)


def _timed(
    new_tokens: Iterator[NewToken],
    batch: list[GeneratedText],
    decoder: Decoder,
    stats: GenerationStats,
) -> Pieces:
    """Adds a batch's tokens to its texts, and their time to `stats`."""
    first_length: int | None = None  # positions read by the first pass
    start = time.perf_counter()
    prepared = decoder.preparing_seconds

    for token in new_tokens:
        preparing = decoder.preparing_seconds - prepared
        seconds = time.perf_counter() - start - preparing
        if first_length is None:
            first_length = decoder.length
            stats.first_seconds.append(seconds)
            stats.cache_bytes = max(stats.cache_bytes, decoder.cache_bytes)
        elif decoder.length != first_length:
            stats.later_seconds += seconds
            stats.later_tokens += 1
        stats.preparing_seconds += preparing
        stats.tokens += 1

        text = batch[token.row]
        text.text += token.text
        text.new_tokens += 1
        text.end = token.end
        yield text, token.text

        # The caller's time does not count.
        start = time.perf_counter()
        prepared = decoder.preparing_seconds


def _print_texts(
    pieces: Pieces, texts: list[GeneratedText], stats: GenerationStats
) -> None:
    """Streams a single text; prints each of several texts when it is finished."""
    console = plain_console()
    is_single = len(texts) == 1
    if is_single:
        _show(console, texts[0].prompt, dim=True)

    try:
        for text, piece in pieces:
            if is_single:
                _show(console, piece)
            elif text.end is not None:
                title = f"prompt {text.number}, sample {text.sample}: "
                title += f"{text.new_tokens:,} tokens, {text.end}"
                console.print(title, style="bold", soft_wrap=True)
                _show(console, text.prompt, dim=True)
                _show(console, f"{text.text}\n")
    except KeyboardInterrupt as interrupt:
        ended = sum(text.end is not None for text in texts)
        done = "" if is_single else f"{ended:,} of {len(texts):,} texts are done, "
        raise type(interrupt)(f"{done}{stats.summary()}") from None
    finally:
        if is_single:
            console.out()


def _write_texts(
    pieces: Pieces, texts: list[GeneratedText], stats: GenerationStats, out: Path
) -> None:
    """Writes the texts in the order of their prompts; finished ones apart if
    interrupted, or after a failure."""
    console = plain_console(goes_on=True)
    progress_bar = Progress(console, "writing", counted("texts"), len(texts))
    try:
        with progress_bar as progress:
            for text, _ in pieces:
                status = f"{stats.tokens:,} tokens"
                progress.advance(text.end is not None, status=status)
    except (KeyboardInterrupt, RunFailed) as end:
        reason = _write_interrupted(texts, out)
        message = f"{end}; {reason}" if str(end) else reason
        raise type(end)(message) from None
    except Exception:  # such as a GPU without room for a later batch
        say(_write_interrupted(texts, out))
        raise

    write_text(out, _lines(texts))


def _write_interrupted(texts: list[GeneratedText], out: Path) -> str:
    """Writes the finished texts into a new file beside `out`; returns a sentence on
    them."""
    ended = [text for text in texts if text.end is not None]
    if not ended:
        return f"none of {len(texts):,} texts was done"

    # An earlier call's texts are not overwritten.
    path = out.with_name(f"{out.name}.interrupted")
    number = 1
    while path.exists():
        number += 1
        path = out.with_name(f"{out.name}.interrupted-{number}")

    write_text(path, _lines(ended))
    return f"{len(ended):,} of {len(texts):,} texts are in '{path}'"


def _lines(texts: list[GeneratedText]) -> str:
    """A line of JSON for each text: all fields but the ids."""
    lines = []
    for text in texts:
        row = {name: value for name, value in vars(text).items() if name != "ids"}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")

    return "".join(lines)


def _show(console: Console, text: str, dim: bool = False) -> None:
    """Prints a part of a text without a new line; a file gets each of its
    characters."""
    if console.is_terminal:
        console.out(text, end="", style="dim" if dim else None)
    else:
        say(text, cast(TextIO, console.file), end="")
