"""The texts of a call of `dualpath generate`: written in batches, shown or filed, and
timed."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

import torch
from rich.console import Console
from rich.filesize import decimal

from dualpath_cli.base.errors import RunFailed
from dualpath_cli.base.files import write_text
from dualpath_cli.base.output import say
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.decoding.decoder import Decoder
from dualpath_cli.decoding.writing import (
    Drafts,
    End,
    Limits,
    Sampler,
    batches,
    write_on,
    write_on_drafts,
)
from dualpath_cli.report.console import Progress, counted, plain_console
from dualpath_cli.report.seeds import seed_from

if TYPE_CHECKING:
    from dualpath_cli.decoding.command import Generate

Pieces = Iterator[tuple["Text", str]]


@dataclass
class Text:
    prompt: str
    ids: list[int]  # ids of the prompt, after end-of-text
    number: int  # number of the prompt, from 1
    sample: int  # number among the prompt's samples, from 1
    text: str = ""
    new_tokens: int = 0  # including end-of-text
    end: End | None = None  # the reason of the end; None before the end


@dataclass
class Took:
    """Time, tokens and memory of the writing so far."""

    first_seconds: list[float] = field(default_factory=list)
    """From the start of each batch to its first token: the time of its prompts."""
    # of all tokens after the first of each text, without preparation
    later_seconds: float = 0.0
    preparing_seconds: float = 0.0  # spent on compiling and recording passes
    tokens: int = 0
    later_tokens: int = 0  # tokens after the first of each text
    drafts: Drafts = field(default_factory=Drafts)  # drafted ids, if any
    cache_bytes: int = 0  # keys and values of the largest batch

    def summary(self) -> str:
        """The last line: number of tokens, speed, time to the first token, drafts and
        cache."""
        parts = [f"{self.tokens:,} new tokens"]
        if self.later_tokens:
            speed = self.later_tokens / self.later_seconds
            parts.append(f"{speed:,.1f} tokens/s without the prompt")
        if batches := len(self.first_seconds):
            mean = f" (mean of {batches:,} batches)" if batches > 1 else ""
            parts.append(
                f"first token after {sum(self.first_seconds) / batches:.2f} s{mean}"
            )
        if self.preparing_seconds >= 0.01:
            parts.append(f"prepared in {self.preparing_seconds:.2f} s")
        if self.drafts.ids:
            share = self.drafts.accepted / self.drafts.ids
            parts.append(f"{share:.0%} of {self.drafts.ids:,} drafted tokens accepted")
        return ", ".join([*parts, f"cache {decimal(self.cache_bytes)}"])


def write(
    options: "Generate", decoder: Decoder, tokenizer: Tokenizer, texts: list[Text]
) -> None:
    """Writes texts to the terminal or into --out, and the summary to stderr."""
    took = Took()
    pieces = _pieces(options, decoder, tokenizer, texts, took)
    if options.out is None:
        _to_terminal(pieces, texts, took)
    else:
        _to_file(pieces, texts, took, Path(options.out))
    say(took.summary())


def _pieces(
    options: "Generate",
    decoder: Decoder,
    tokenizer: Tokenizer,
    texts: list[Text],
    took: Took,
) -> Pieces:
    """Writes the texts, longest prompts first; yields a text and its new piece.

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
    for rows in batches([len(text.ids) for text in texts], options.together):
        batch = [texts[row] for row in rows]
        prompts = [text.ids for text in batch]
        decoder.begin(capacity=limits.positions([len(ids) for ids in prompts]))
        seeds = [seed_from(options.seed, text.number, text.sample) for text in batch]
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        if options.compile:  # a smaller batch needs a compilation
            prompts += [prompts[-1][:1]] * (
                min(options.together, len(texts)) - len(prompts)
            )
        start = last = time.perf_counter()
        prepared = decoder.preparing_seconds
        pieces = (
            write_on_drafts(
                decoder,
                prompts[0],
                sampler,
                generators[0],
                token_values,
                limits,
                options.speculate,
                took.drafts,
            )
            if options.speculate
            else write_on(
                decoder.next_logits,
                prompts,
                sampler,
                generators,
                token_values,
                limits,
                None if options.compile else decoder.select,  # for the same reason
            )
        )
        for piece in pieces:
            now, text = time.perf_counter(), batch[piece.row]
            if start == last:
                took.first_seconds.append(now - start)
                took.cache_bytes = max(took.cache_bytes, decoder.cache_bytes)
            elif text.new_tokens:
                took.later_seconds += (
                    now - last - (decoder.preparing_seconds - prepared)
                )
                took.later_tokens += 1
            took.preparing_seconds += decoder.preparing_seconds - prepared
            took.tokens += 1
            text.text += piece.text
            text.new_tokens += 1
            text.end = piece.end
            yield text, piece.text
            last = time.perf_counter()  # the caller's time does not count
            prepared = decoder.preparing_seconds


def _to_terminal(pieces: Pieces, texts: list[Text], took: Took) -> None:
    """Streams a single text; prints each of several texts when it is finished."""
    console, alone = plain_console(), len(texts) == 1
    if alone:
        _show(console, texts[0].prompt, dim=True)
    try:
        for text, piece in pieces:
            if alone:
                _show(console, piece)
            elif text.end is not None:
                title = f"prompt {text.number}, sample {text.sample}: "
                title += f"{text.new_tokens:,} tokens, {text.end}"
                console.print(title, style="bold", highlight=False, soft_wrap=True)
                _show(console, text.prompt, dim=True)
                _show(console, f"{text.text}\n")
    except KeyboardInterrupt as interrupt:
        ended = sum(text.end is not None for text in texts)
        done = "" if alone else f"{ended:,} of {len(texts):,} texts are done, "
        raise type(interrupt)(f"{done}{took.summary()}") from None
    finally:
        if alone:
            console.out()


def _to_file(pieces: Pieces, texts: list[Text], took: Took, out: Path) -> None:
    """Writes the texts in the order of their prompts; finished ones apart if
    interrupted."""
    try:
        with Progress(
            plain_console(), "writing", counted("texts"), len(texts)
        ) as progress:
            for text, _ in pieces:
                progress.advance(text.end is not None, status=f"{took.tokens:,} tokens")
    except (KeyboardInterrupt, RunFailed) as end:
        ended = [text for text in texts if text.end is not None]
        said = f"none of {len(texts):,} texts was done"
        if ended:
            names = chain([""], map("-{}".format, count(2)))
            paths = (
                out.with_name(f"{out.name}.interrupted{number}") for number in names
            )
            # none is written over
            kept = next(path for path in paths if not path.exists())
            write_text(kept, _lines(ended))
            said = f"{len(ended):,} of {len(texts):,} texts are in '{kept}'"
        raise type(end)(f"{end}; {said}" if str(end) else said) from None
    write_text(out, _lines(texts))


def _lines(texts: list[Text]) -> str:
    """A line of JSON for each text: all fields but the ids."""
    rows = (
        {name: value for name, value in vars(t).items() if name != "ids"} for t in texts
    )
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _show(console: Console, text: str, dim: bool = False) -> None:
    """Prints a part of a text without a new line; a file gets each of its
    characters."""
    if console.is_terminal:
        console.out(text, end="", style="dim" if dim else None, highlight=False)
    else:
        say(text, cast(TextIO, console.file), end="")
