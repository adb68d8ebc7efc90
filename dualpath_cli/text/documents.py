"""Documents of a SOURCE: NAME=PATH or PATH, read as a stream of texts."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.text.rows import CODECS, OnRead, json_rows, parquet_rows, read_text

FORMATS = "a .txt, .jsonl or .parquet file, .txt and .jsonl also as .gz or .zst, or a folder"
_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class Source:
    """Where documents come from."""

    name: str
    """What tables and manifests call it; gsm8k, arc and triviaqa also choose the format."""
    path: Path
    """A file, or a folder whose readable files are taken in the order of their paths."""


@dataclass(frozen=True)
class _Format:
    """How a row becomes a text."""

    fields: list[str]
    render: Callable[[dict[str, Any]], str]


def parse_source(spec: str) -> Source:
    """Reads `NAME=PATH` or `PATH` (named after the file, without its suffixes).

    Raises UserError for a Hugging Face dataset, a path that does not exist, and a file or folder
    with nothing readable in it.
    """
    name, equals, rest = spec.partition("=")
    # A path may hold an equals sign of its own: quality=high/kind=actual.
    named = bool(equals) and _NAME.fullmatch(name) is not None and not Path(spec).exists()
    if (rest if named else spec).startswith("hf:"):
        raise UserError(
            f"source '{spec}': datasets of the Hugging Face hub are not supported yet; "
            f"download it and give {FORMATS}"
        )
    path = Path(rest if named else spec)
    if not path.exists() or str(path) == ".":
        raise UserError(f"source '{spec}': '{path}' does not exist; give {FORMATS}{_sibling(path)}")
    source = Source(name if named else _stem(path), path)
    source_files(source)
    return source


def source_files(source: Source) -> list[Path]:
    """Returns the files of a source: the file itself, or the readable ones below a folder.

    Raises UserError where the extension is not known or the folder holds no readable file.
    """
    if not source.path.is_dir():
        if _kind(source.path) is None:
            raise UserError(
                f"source '{source.path}': its format is not known by its name; give {FORMATS}"
            )
        return [source.path]
    found = sorted(p for p in source.path.rglob("*") if p.is_file() and _kind(p) is not None)
    if not found:
        raise UserError(f"source '{source.path}': no readable file in the folder; give {FORMATS}")
    return found


def read_documents(source: Source, on_read: OnRead = lambda count: None) -> Iterator[str]:
    """Yields the texts of a source one after the other: a .txt file is one, else a row is one.

    Only one is held at a time. `on_read` hears of the bytes read from the disk, before they are
    decompressed; they add up to the sizes of `source_files`. Raises UserError, naming file and
    line, where a row cannot be read, lacks a field or holds no valid Unicode.
    """
    format = _FORMATS.get(source.name, _PLAIN)
    for path in source_files(source):
        kind = _kind(path)
        if kind == ".txt":
            yield read_text(path, on_read)
            continue
        if kind == ".parquet":
            rows = parquet_rows(path, format.fields, on_read)
        else:
            rows = json_rows(path, on_read)
        for place, row in rows:
            yield _render(format, row, place)


def _render(format: _Format, row: dict[str, Any], place: str) -> str:
    for field in format.fields:
        if field not in row:
            hint = did_you_mean(field, row) or f" (fields: {', '.join(row) or 'none'})"
            raise UserError(f"{place}: no field '{field}'{hint}")
    try:
        text = format.render(row)
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{place}: half of a surrogate pair, which is not valid Unicode") from None
    except (TypeError, KeyError, IndexError) as error:
        wanted = ", ".join(format.fields)
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{place}: no text in the values of {wanted} ({reason})") from None
    return text


def _text(row: dict[str, Any]) -> str:
    return _string(row["text"])


def _question_answer(row: dict[str, Any]) -> str:
    answer = row["answer"]
    if isinstance(answer, dict):  # TriviaQA on the hub: value, aliases, ...
        answer = answer["value"]
    elif isinstance(answer, list):  # every accepted answer: the first is the preferred one
        answer = answer[0]
    return f"Question: {_string(row['question'])}\nAnswer: {_string(answer)}"


def _arc(row: dict[str, Any]) -> str:
    # `query` holds "Question: ...\nAnswer:" already.
    return f"{_string(row['query'])} {_string(row['choices'][row['gold']])}"


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} instead of a string")
    return value


_PLAIN = _Format(["text"], _text)
_FORMATS = {
    "gsm8k": _Format(["question", "answer"], _question_answer),
    "triviaqa": _Format(["question", "answer"], _question_answer),
    "arc": _Format(["query", "choices", "gold"], _arc),
}


def _kind(path: Path) -> str | None:
    """Returns .txt, .jsonl or .parquet, whether compressed or not, or None."""
    if path.suffix == ".parquet":
        return ".parquet"
    inner = Path(path.stem).suffix if path.suffix in CODECS else path.suffix
    return inner if inner in (".txt", ".jsonl") else None


def _stem(path: Path) -> str:
    name = path.resolve().name
    for suffix in [*CODECS, ".txt", ".jsonl", ".parquet"]:
        name = name.removesuffix(suffix)
    return name


def _sibling(path: Path) -> str:
    folder = path.parent
    return did_you_mean(path.name, (p.name for p in folder.iterdir())) if folder.is_dir() else ""
