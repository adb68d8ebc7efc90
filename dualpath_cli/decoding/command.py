"""`dualpath generate`: to the terminal as it is written, or into a file."""

import json
import sys
import unicodedata
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from dualpath_cli.base.errors import RunFailed
from dualpath_cli.base.system import write_text
from dualpath_cli.decoding.request import Generate

if TYPE_CHECKING:
    from rich.console import Console

    from dualpath_cli.decoding.texts import Text, Took

Pieces: TypeAlias = "Iterator[tuple[Text, str]]"


def run(options: Generate) -> str:
    """Writes texts; returns the file they are in as text, or nothing where they were printed."""
    trained, tokenizer, change, prompts = options.read()
    from dualpath_cli.decoding.decoder import Decoder
    from dualpath_cli.decoding.joined import join_products
    from dualpath_cli.decoding.texts import Text, Took, write
    from dualpath_cli.decoding.writing import DRAFT
    from dualpath_cli.run.weights import autocast_of, device_of, load_model, round_weights

    model, autocast = load_model(trained, device_of(options.device)), autocast_of(options.precision)
    if autocast is not None:
        round_weights(model, autocast)
    join_products(model)
    draft = DRAFT if options.speculate else None
    decoder = Decoder(model, change, autocast, compiled=options.compile, draft=draft)
    texts = [
        Text(prompt, ids, number, sample)
        for number, (prompt, ids) in enumerate(prompts, 1)
        for sample in range(1, options.num_samples + 1)
    ]
    took = Took()
    pieces = write(options, decoder, tokenizer, texts, took)
    if options.out is None:
        _to_terminal(pieces, texts, took)
    else:
        _to_file(pieces, texts, took, Path(options.out))
    print(_summary(took), file=sys.stderr)
    return options.out or ""


def _to_terminal(pieces: Pieces, texts: "list[Text]", took: "Took") -> None:
    """Streams a text that is alone, and prints several one after the other as they are done."""
    from dualpath_cli.report.console import plain_console

    console, alone = plain_console(), len(texts) == 1
    if alone:
        _show(console, texts[0].prompt.text, dim=True)
    try:
        for text, piece in pieces:
            if alone:
                _show(console, piece)
            elif text.end is not None:
                title = f"prompt {text.number}, sample {text.sample}: "
                title += f"{text.new_tokens:,} tokens, {text.end}"
                console.print(title, style="bold", highlight=False, soft_wrap=True)
                _show(console, text.prompt.text, dim=True)
                _show(console, f"{text.text}\n")
    except KeyboardInterrupt as interrupt:
        ended = sum(text.end is not None for text in texts)
        done = "" if alone else f"{ended:,} of {len(texts):,} texts are done, "
        raise type(interrupt)(f"{done}{_summary(took)}") from None
    finally:
        if alone:
            console.out()


def _to_file(pieces: Pieces, texts: "list[Text]", took: "Took", out: Path) -> None:
    """Writes all texts in the order of their prompts, or where it is interrupted those done."""
    from dualpath_cli.report.console import Progress, counted, plain_console

    try:
        with Progress(plain_console(), "writing", counted("texts"), len(texts)) as progress:
            for text, _ in pieces:
                progress.advance(text.end is not None, status=f"{took.tokens:,} tokens")
    except (KeyboardInterrupt, RunFailed) as end:
        ended = [text for text in texts if text.end is not None]
        said = f"none of {len(texts):,} texts was done"
        if ended:
            kept = out.with_name(f"{out.name}.interrupted")
            if kept.exists():  # the first of PATH-2, PATH-3 ... that is not there yet
                numbered = (kept.with_name(f"{kept.name}-{n}") for n in count(2))
                kept = next(free for free in numbered if not free.exists())
            write_text(kept, _lines(ended))
            said = f"{len(ended):,} of {len(texts):,} texts are in '{kept}'"
        raise type(end)(f"{end}; {said}" if str(end) else said) from None
    write_text(out, _lines(texts))


def _lines(texts: "list[Text]") -> str:
    """A line of JSON for each text."""
    names = ("number", "sample", "text", "new_tokens", "end")
    rows = ({"prompt": t.prompt.text} | {name: getattr(t, name) for name in names} for t in texts)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _show(console: "Console", text: str, dim: bool = False) -> None:
    """Prints a part of a text as it is, without a new line.

    On a terminal, which control characters would steer, their escapes are shown.
    """
    shown = "".join(map(_visible, text)) if console.is_terminal else text
    console.out(shown, end="", style="dim" if dim else None, highlight=False)


def _summary(took: "Took") -> str:
    """The last line: how many tokens, how fast, how soon, and what was kept."""
    from rich.filesize import decimal

    parts = [f"{took.tokens:,} new tokens"]
    if took.later_tokens:
        speed = took.later_tokens / took.later_seconds
        parts.append(f"{speed:,.1f} tokens/s without the prompt")
    if batches := len(took.first_seconds):
        mean = f" (mean of {batches:,} batches)" if batches > 1 else ""
        parts.append(f"first token after {sum(took.first_seconds) / batches:.2f} s{mean}")
    if took.preparing_seconds >= 0.01:
        parts.append(f"prepared in {took.preparing_seconds:.2f} s")
    if took.drafts.ids:
        share = took.drafts.accepted / took.drafts.ids
        parts.append(f"{share:.0%} of {took.drafts.ids:,} drafted tokens accepted")
    return ", ".join([*parts, f"cache {decimal(took.cache_bytes)}"])


def _visible(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) != "Cc":
        return character
    return repr(character)[1:-1]
