"""`dualpath generate`: to the terminal as it is written, or into a file."""

import json
import sys
import unicodedata
from argparse import Namespace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from dualpath_cli.errors import RunFailed
from dualpath_cli.files import write_text
from dualpath_cli.generation import request
from dualpath_cli.generation.request import Request

if TYPE_CHECKING:
    from rich.console import Console

    from dualpath_cli.decoding.decoder import Decoder
    from dualpath_cli.generation.texts import Text, Took


def run(options: Namespace) -> str:
    """Writes texts; returns the file they are in as text, or nothing where they were printed."""
    wanted = request.read(options)
    from dualpath_cli.decoding.decoder import Decoder
    from dualpath_cli.decoding.speculation import DRAFT
    from dualpath_cli.generation.loading import autocast_of, device_of, load_model, round_weights

    device = device_of(wanted.device)
    model, autocast = load_model(wanted.trained, device), autocast_of(wanted.precision)
    if autocast is not None:
        round_weights(model, autocast)
    decoder = Decoder(
        model, wanted.intervention, autocast, compiled=wanted.compiled,
        draft=DRAFT if wanted.speculate else None,
    )  # fmt: skip
    if wanted.out is None:
        _to_terminal(wanted, decoder)
        return ""
    _to_file(wanted, decoder, wanted.out)
    return str(wanted.out)


def _to_terminal(wanted: Request, decoder: "Decoder") -> None:
    """Streams a text that is alone, and prints several one after the other as they are done."""
    from dualpath_cli.generation.texts import Took, texts_of, write
    from dualpath_cli.output.console import plain_console

    console, took, texts = plain_console(), Took(), texts_of(wanted)
    alone = len(texts) == 1
    if alone:
        _show(console, wanted.prompts[0].text, dim=True)
    try:
        for text, piece in write(wanted, decoder, texts, took):
            if alone:
                _show(console, piece)
            elif text.end is not None:
                _show_whole(console, text, wanted.prompts[text.prompt - 1].text)
    except KeyboardInterrupt as interrupt:
        ended = sum(text.end is not None for text in texts)
        done = "" if alone else f"{ended:,} of {len(texts):,} texts are done, "
        raise type(interrupt)(f"{done}{_summary(took)}") from None
    finally:
        if alone:
            console.out()
    print(_summary(took), file=sys.stderr)


def _to_file(wanted: Request, decoder: "Decoder", out: Path) -> None:
    """Writes all texts in the order of their prompts, or where it is interrupted those done."""
    from dualpath_cli.generation.texts import Took, texts_of, write
    from dualpath_cli.output.console import plain_console
    from dualpath_cli.output.progress import Progress, counted

    took, texts = Took(), texts_of(wanted)
    try:
        with Progress(plain_console(), "writing", counted("texts"), len(texts)) as progress:
            for text, _ in write(wanted, decoder, texts, took):
                progress.advance(text.end is not None, status=f"{took.tokens:,} tokens")
    except (KeyboardInterrupt, RunFailed) as end:
        ended = [text for text in texts if text.end is not None]
        said = f"none of {len(texts):,} texts was done"
        if ended:
            kept = _free(out.with_name(f"{out.name}.interrupted"))
            write_text(kept, _lines(wanted, ended))
            said = f"{len(ended):,} of {len(texts):,} texts are in '{kept}'"
        raise type(end)(f"{end}; {said}" if str(end) else said) from None
    write_text(out, _lines(wanted, texts))
    print(_summary(took), file=sys.stderr)


def _free(path: Path) -> Path:
    """The path, or the first of PATH-2, PATH-3 ... that is not there yet."""
    numbered = (path.with_name(f"{path.name}-{n}") for n in count(2))
    return next(free for free in chain([path], numbered) if not free.exists())


def _lines(wanted: Request, texts: "list[Text]") -> str:
    """A line of JSON for each text, what its prompt's row held beside the prompt among it."""
    lines = []
    for text in texts:
        prompt = wanted.prompts[text.prompt - 1]
        written = (
            prompt.text, text.prompt, text.sample, text.text, text.new_tokens, text.end
        )  # fmt: skip
        row = {**prompt.extra, **dict(zip(request.WRITTEN, written, strict=True))}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    return "".join(lines)


def _show(console: "Console", text: str, dim: bool = False) -> None:
    """Prints a part of a text as it is, without a new line.

    On a terminal, which control characters would steer, their escapes are shown.
    """
    shown = "".join(map(_visible, text)) if console.is_terminal else text
    console.out(shown, end="", style="dim" if dim else None, highlight=False)


def _show_whole(console: "Console", text: "Text", prompt: str) -> None:
    """Prints a text that has ended, after a line that says which one it is."""
    title = f"prompt {text.prompt}, sample {text.sample}: {text.new_tokens:,} tokens, {text.end}"
    console.print(title, style="bold", highlight=False, soft_wrap=True)
    _show(console, prompt, dim=True)
    _show(console, f"{text.text}\n")


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
    if took.drafts.ids:
        share = took.drafts.accepted / took.drafts.ids
        parts.append(f"{share:.0%} of {took.drafts.ids:,} drafted tokens accepted")
    return ", ".join([*parts, f"cache {decimal(took.cache_bytes)}"])


def _visible(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) != "Cc":
        return character
    return repr(character)[1:-1]
