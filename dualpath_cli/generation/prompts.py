"""Prompts: words, rows of a file, a whole text, or none, and the ids they become; torch-free."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.text.documents import format_of
from dualpath_cli.text.rows import BadRow, kind_of, read_rows
from dualpath_cli.text.tokenizer import Tokenizer

STDIN = "-"
KEYS = ("prompt", "question", "text")
"""Fields that may hold a row's prompt; the first one present does."""

_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Prompt:
    """The beginning of a text, which a model continues."""

    text: str
    place: str  # its origin, for messages: an option's number, a line of a file, stdin
    extra: Mapping[str, Any] = field(default_factory=dict)  # the other fields of its row


def read_prompts(words: Sequence[str], file: str | None, taken: Sequence[str]) -> list[Prompt]:
    """Reads `--prompt` and `--file`; without either there is one prompt, which is empty.

    `taken` are keys of the output, which a row may not have beside its prompt.
    """
    if file == STDIN:
        return [_stdin()]
    if file is not None:
        return list(_of_file(Path(file), taken))
    if not words:
        return [Prompt("", "the empty prompt")]
    return [_valid(text, f"--prompt, number {n},") for n, text in enumerate(words, 1)]


def _stdin() -> Prompt:
    try:
        return _valid(sys.stdin.read(), "stdin")
    except UnicodeDecodeError as error:
        raise UserError(f"stdin is no UTF-8 at byte {error.start}") from None


def _valid(text: str, place: str) -> Prompt:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{place} is no valid Unicode") from None
    return Prompt(text, place)


def _of_file(path: Path, taken: Sequence[str]) -> Iterator[Prompt]:
    if path.is_dir() or not path.exists():
        if path.is_dir():
            raise UserError(f"--file '{path}' is a folder; give a file, or - for stdin")
        others = path.parent.iterdir() if path.parent.is_dir() else ()
        near = did_you_mean(path.name, (other.name for other in others))
        raise UserError(f"--file '{path}' is no file{near or '; give one, or - for stdin'}")
    kind = kind_of(path)
    if kind == ".parquet":
        raise UserError(f"--file '{path}': give prompts as .jsonl, .jsonl.gz or .jsonl.zst")
    empty = True
    for rows in read_rows(path, (), (), lambda count: None, _READ_BYTES):
        for number, row in rows.parsed():
            try:
                yield _of_row(row, kind, rows.place(number), taken)
            except BadRow as problem:
                raise UserError(f"{rows.place(number)}: {problem}") from None
            empty = False
    if empty:
        raise UserError(f"--file '{path}' holds no prompt")


def _of_row(row: dict[str, Any] | BadRow, kind: str, place: str, taken: Sequence[str]) -> Prompt:
    if isinstance(row, BadRow):
        raise row
    key = next((key for key in KEYS if key in row), None)
    if key is None:
        raise BadRow(f"no field {', '.join(KEYS[:-1])} or {KEYS[-1]} (fields: {', '.join(row)})")
    extra = {name: value for name, value in row.items() if name != key}
    if clash := [name for name in taken if name in extra]:
        raise BadRow(f"its field '{clash[0]}' has the name of what is written; rename it")
    try:
        json.dumps(extra, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadRow("half of a surrogate pair, which is not valid Unicode") from None
    return Prompt(format_of("", kind, key).render(row), place, extra)


def ids_of(
    prompts: Sequence[Prompt], tokenizer: Tokenizer, window: int, most_new: int, truncate: bool
) -> list[list[int]]:
    """The ids of each prompt, with end-of-text before them, as before every text in training.

    With `truncate` a long prompt loses its beginning, so that `most_new` ids fit behind it.
    """
    if truncate and most_new >= window:
        raise UserError(
            f"--truncate: --max-new-tokens {most_new:,} leave nothing of the model's window of "
            f"{window:,} tokens to prompts"
        )
    found = []
    for prompt, text_ids in zip(
        prompts, tokenizer.encode_batch([prompt.text for prompt in prompts]), strict=True
    ):
        ids = text_ids.tolist()
        if truncate:
            ids = ids[max(0, len(ids) - (window - most_new)) :]
        if 1 + len(ids) > window:
            raise UserError(
                f"{prompt.place} has {len(ids):,} tokens, the model's window has room for "
                f"{window - 1:,}; shorten it, or give --truncate"
            )
        found.append([tokenizer.eot_id, *ids])
    return found
