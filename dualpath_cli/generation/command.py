"""`dualpath generate`: to the terminal as it is written, or into a file."""

import json
import sys
from argparse import Namespace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from dualpath_cli.errors import RunFailed
from dualpath_cli.files import write_text
from dualpath_cli.generation import request
from dualpath_cli.generation.request import Request

if TYPE_CHECKING:
    from dualpath_cli.decoding.decoder import Decoder
    from dualpath_cli.generation.texts import Text


def run(options: Namespace) -> str:
    """Writes texts; returns the file they are in as text, or nothing where they were printed.

    Raises:
        UserError: for the first mistake, before torch is imported where it shows by then.
    """
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
    from dualpath_cli.generation.terminal import show, show_whole, summary
    from dualpath_cli.generation.texts import Took, texts_of, write
    from dualpath_cli.output.console import plain_console

    console, took, texts = plain_console(), Took(), texts_of(wanted)
    alone = len(texts) == 1
    if alone:
        show(console, wanted.prompts[0].text, dim=True)
    try:
        for text, piece in write(wanted, decoder, texts, took):
            if alone:
                show(console, piece)
            elif text.end is not None:
                show_whole(console, text, wanted.prompts[text.prompt - 1].text)
    except KeyboardInterrupt as interrupt:
        ended = sum(text.end is not None for text in texts)
        done = "" if alone else f"{ended:,} of {len(texts):,} texts are done, "
        raise type(interrupt)(f"{done}{summary(took)}") from None
    finally:
        if alone:
            console.out()
    print(summary(took), file=sys.stderr)


def _to_file(wanted: Request, decoder: "Decoder", out: Path) -> None:
    """Writes all texts in the order of their prompts, or where it is interrupted those done."""
    from dualpath_cli.generation.terminal import summary
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
    print(summary(took), file=sys.stderr)


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
