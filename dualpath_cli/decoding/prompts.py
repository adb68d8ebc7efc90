"""The prompts of `dualpath generate`: words, rows of a file, a whole text, or none. Torch-free."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.data.documents import format_of
from dualpath_cli.data.rows import BadRow, kind_of, read_rows
from dualpath_cli.data.tokenizer import Tokenizer

KEYS = ("prompt", "question", "text")
"""Fields that may hold a row's prompt; the first present field is taken."""


class Prompt(NamedTuple):
    """The beginning of a text, which a model continues."""

    text: str
    place: str  # its origin, for messages: an option's number, a line of a file, stdin


def read_prompts(words: Sequence[str], file: str | None) -> list[Prompt]:
    """Reads `--prompt` and `--file`; without either there is one empty prompt."""
    if file == "-":
        try:
            return [_valid(sys.stdin.read(), "stdin")]
        except UnicodeDecodeError as error:
            raise UserError(f"stdin is no UTF-8 at byte {error.start}") from None
    if file is not None:
        return _of_file(Path(file))
    if not words:
        return [Prompt("", "the empty prompt")]
    return [_valid(text, f"--prompt, number {n},") for n, text in enumerate(words, 1)]


def _valid(text: str, place: str) -> Prompt:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{place} is no valid Unicode") from None
    return Prompt(text, place)


def _of_file(path: Path) -> list[Prompt]:
    if path.is_dir() or not path.exists():
        others = path.parent.iterdir() if path.parent.is_dir() else ()
        near = did_you_mean(path.name, (other.name for other in others))
        raise UserError(f"--file '{path}' is no file{near or '; give one, or - for stdin'}")
    if kind_of(path) == ".parquet":
        raise UserError(f"--file '{path}': give prompts as .jsonl, .jsonl.gz or .jsonl.zst")
    prompts = [
        _of_row(row, rows.place(number))
        for rows in read_rows(path, (), (), lambda count: None, 1 << 20)
        for number, row in rows.parsed()
    ]
    if not prompts:
        raise UserError(f"--file '{path}' holds no prompt")
    return prompts


def _of_row(row: dict[str, Any] | BadRow, place: str) -> Prompt:
    try:
        if isinstance(row, BadRow):
            raise row
        key = next((key for key in KEYS if key in row), None)
        if key is None:
            raise BadRow(
                f"no field {', '.join(KEYS[:-1])} or {KEYS[-1]} (fields: {', '.join(row)})"
            )
        return Prompt(format_of("", "", key).render(row), place)
    except BadRow as problem:
        raise UserError(f"{place}: {problem}") from None


def ids_of(prompts: Sequence[Prompt], tokenizer: Tokenizer, window: int) -> list[list[int]]:
    """The ids of each prompt after an end-of-text id, as before every text in training."""
    found = [ids.tolist() for ids in tokenizer.encode_batch([prompt.text for prompt in prompts])]
    for prompt, ids in zip(prompts, found, strict=True):
        if 1 + len(ids) > window:
            raise UserError(
                f"{prompt.place} has {len(ids):,} tokens, the model's window has room for "
                f"{window - 1:,}; shorten the prompt"
            )
    return [[tokenizer.eot_id, *ids] for ids in found]
