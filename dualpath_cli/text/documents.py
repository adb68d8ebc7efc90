"""Documents of a SOURCE: NAME=PATH or PATH, read as a stream of texts."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.text.rows import CODECS, KINDS, BadRow, OnRead, kind_of, read_rows

FORMATS = "a .txt, .jsonl or .parquet file, .txt and .jsonl also as .gz or .zst, or a folder"
NAME = re.compile(r"[\w.-]+")
"""What a source may be called."""

IDS = ("id", "warc_record_id", "uuid")
"""Fields that name a document, the first that is there."""

_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Source:
    """Where documents come from."""

    name: str
    """What tables and manifests call it; gsm8k, arc and triviaqa also choose the format."""
    path: Path
    """A file, or a folder whose readable files are taken in the order of their paths."""


@dataclass(frozen=True)
class Format:
    """How a row becomes a text."""

    fields: tuple[str, ...]
    """The fields that it needs."""
    _render: Callable[[dict[str, Any]], str]

    def render(self, row: dict[str, Any]) -> str:
        """Returns a row's text. Raises BadRow where a field is missing or holds no valid text."""
        for field in self.fields:
            if field not in row:
                hint = did_you_mean(field, row) or f" (fields: {', '.join(row) or 'none'})"
                raise BadRow(f"no field '{field}'{hint}")
        try:
            text = self._render(row)
            text.encode()
        except UnicodeEncodeError:
            raise BadRow("half of a surrogate pair, which is not valid Unicode") from None
        except (TypeError, KeyError, IndexError) as error:
            wanted = ", ".join(self.fields)
            reason = f"{type(error).__name__}: {error}"
            raise BadRow(f"no text in the values of {wanted} ({reason})") from None
        return text


def format_of(name: str, kind: str | None, field: str = "text") -> Format:
    """Returns how the rows of a source's files of one kind become texts.

    gsm8k, arc and triviaqa have their own formats, others one field; a .txt file is its text.
    """
    if kind == ".txt":
        return _field("text")
    return _FORMATS.get(name) or _field(field)


def document_id(row: dict[str, Any]) -> str | None:
    """Returns what the row is called by its own fields, if anything."""
    id = next((str(row[field]) for field in IDS if row.get(field) not in (None, "")), None)
    return id and id.encode(errors="backslashreplace").decode()


def parse_source(spec: str) -> Source:
    """Reads `NAME=PATH` or `PATH` (named after the file, without its suffixes).

    Raises UserError for a Hugging Face dataset, a path that does not exist, and a file or folder
    with nothing readable in it.
    """
    name, rest = split_name(spec)
    if rest.startswith("hf:"):
        raise UserError(
            f"source '{spec}': only `python -m data_prep` reads datasets of the Hugging Face hub; "
            f"here give {FORMATS}"
        )
    path = Path(rest)
    if not path.exists() or str(path) == ".":
        raise UserError(f"source '{spec}': '{path}' does not exist; give {FORMATS}{_sibling(path)}")
    source = Source(name or stem(path), path)
    source_files(source)
    return source


def split_name(spec: str) -> tuple[str | None, str]:
    """Cuts `NAME=PATH` into its parts; a path may hold an equals sign: quality=high/kind=actual."""
    name, equals, rest = spec.partition("=")
    if equals and NAME.fullmatch(name) and not Path(spec).exists():
        return name, rest
    return None, spec


def source_files(source: Source) -> list[Path]:
    """Returns the files of a source: the file itself, or the readable ones below a folder.

    Raises UserError where the extension is not known or the folder holds no readable file.
    """
    if not source.path.is_dir():
        if kind_of(source.path) is None:
            raise UserError(
                f"source '{source.path}': its format is not known by its name; give {FORMATS}"
            )
        return [source.path]
    found = sorted(p for p in source.path.rglob("*") if p.is_file() and kind_of(p) is not None)
    if not found:
        raise UserError(f"source '{source.path}': no readable file in the folder; give {FORMATS}")
    return found


def read_documents(source: Source, on_read: OnRead = lambda count: None) -> Iterator[str]:
    """Yields the texts of a source one after the other: a .txt file is one, else a row is one.

    About a megabyte is held at a time. `on_read` hears of the bytes read from the disk, before
    they are decompressed; they add up to the sizes of `source_files`. Raises UserError, naming
    file and line, where a row cannot be read, lacks a field or holds no valid Unicode.
    """
    for path in source_files(source):
        format = format_of(source.name, kind_of(path))
        for rows in read_rows(path, format.fields, (), on_read, _READ_BYTES):
            for number, row in rows.parsed():
                try:
                    if isinstance(row, BadRow):
                        raise row
                    text = format.render(row)
                except BadRow as problem:
                    raise UserError(f"{rows.place(number)}: {problem}") from None
                yield text


def _field(name: str) -> Format:
    return Format((name,), lambda row: _string(row[name]))


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


_FORMATS = {
    "gsm8k": Format(("question", "answer"), _question_answer),
    "triviaqa": Format(("question", "answer"), _question_answer),
    "arc": Format(("query", "choices", "gold"), _arc),
}


def stem(path: Path) -> str:
    """Returns a file's or folder's name without the endings of known formats."""
    name = path.resolve().name
    for suffix in [*CODECS, *KINDS]:
        name = name.removesuffix(suffix)
    return name


def _sibling(path: Path) -> str:
    folder = path.parent
    return did_you_mean(path.name, (p.name for p in folder.iterdir())) if folder.is_dir() else ""
