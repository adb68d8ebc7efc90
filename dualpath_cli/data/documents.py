"""Documents of a SOURCE: NAME=PATH or PATH, read as a stream of texts; a PATH may be a
glob."""

import glob
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from dualpath_cli.base.errors import UserError, did_you_mean, listed
from dualpath_cli.base.output import say
from dualpath_cli.base.pointers import refuse_pointer
from dualpath_cli.base.processes import is_first_rank
from dualpath_cli.data.rows import (
    ENDINGS,
    BadRow,
    OnRead,
    is_known,
    kind_of,
    read_rows,
    suffixes,
)

FORMATS = (
    "a .txt, .md, .jsonl or .parquet file, all but .parquet also as .gz or .zst, a "
    "folder of them, or a quoted glob such as 'docs/**/*.rst' of any UTF-8 texts"
)
_JSON = (
    "rename a .json file to .jsonl if each line is an object, else write one an object "
    "a line, such as by jq -c '.[]'"
)
NAME = re.compile(r"[\w.-]+")  # the form of a source's name

# fields that name a document, the first that is there
IDS = ("id", "warc_record_id", "uuid")

_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Source:
    name: str  # in tables and manifests; gsm8k, arc and triviaqa also choose the format
    path: Path  # a file, folder or glob; files are read in the order of their paths
    # of a row, that holds the text where the name chooses no format
    field: str = "text"


@dataclass(frozen=True)
class Format:
    fields: tuple[str, ...]  # that a row must have
    _render: Callable[[dict[str, Any]], str]

    def render(self, row: dict[str, Any] | BadRow) -> str:
        """Returns a row's text. Raises BadRow where a field is missing or holds no
        valid text."""
        if isinstance(row, BadRow):
            raise row
        for field in self.fields:
            if field not in row:
                hint = did_you_mean(field, row) or f" (fields: {listed(row)})"
                raise BadRow(f"no field '{field}'{hint}")
        try:
            text = self._render(row)
            text.encode()
        except UnicodeEncodeError:
            raise BadRow(
                "half of a surrogate pair, which is not valid Unicode"
            ) from None
        except (TypeError, KeyError, IndexError) as error:
            wanted = ", ".join(self.fields)
            reason = f"{type(error).__name__}: {error}"
            raise BadRow(f"no text in the values of {wanted} ({reason})") from None
        return text


def format_of(name: str, kind: str, field: str = "text") -> Format:
    """Returns the format of rows: by the kind of file, the source's name, or one
    field."""
    if kind == ".txt":
        return _field("text")
    return _NAMED.get(name) or _field(field)


def document_id(row: dict[str, Any] | BadRow) -> str | None:
    """Returns the first of the fields `IDS` that a row has; None without one."""
    if isinstance(row, BadRow):
        return None
    id = next(
        (str(row[field]) for field in IDS if row.get(field) not in (None, "")), None
    )
    return id and id.encode(errors="backslashreplace").decode()


def parse_source(spec: str) -> Source:
    """Reads `NAME=PATH` or `PATH` (named after the file or folder, without its
    suffixes)."""
    name, rest = split_name(spec)
    if rest.startswith("hf:"):
        raise UserError(
            f"source '{spec}': only `dualpath prepare` reads datasets of the Hugging "
            f"Face hub; here give {FORMATS}"
        )
    source = Source(name or stem(Path(rest)), Path(rest))
    source_files(source)
    return source


def split_name(spec: str) -> tuple[str | None, str]:
    """Cuts `NAME=PATH` into its parts; a path may hold an equals sign:
    quality=high/kind=actual."""
    name, equals, rest = spec.partition("=")
    if equals and NAME.fullmatch(name) and not Path(spec).exists():
        return name, os.path.expanduser(rest)
    return None, spec


def source_files(source: Source) -> list[Path]:
    """Returns a source's files: the file itself, those below a folder, or those of a
    glob.

    Links are followed, each real file is taken once, and hidden names are left out. In
    a folder only names of known formats are taken. Beside .jsonl or .parquet files
    Markdown is left out: it describes them. A line on stderr counts the files left out.
    """
    path, is_glob = source.path, glob.has_magic(str(source.path))
    is_folder = str(path) != "." and path.is_dir()
    if path.is_file():
        if not is_known(path):
            way_out = _JSON if suffixes(path)[0] == ".json" else f"give {FORMATS}"
            raise UserError(
                f"source '{path}': its format is not known by its name; {way_out}"
            )
        return [path]
    # each file would be one text, with its braces
    if is_glob and suffixes(path)[0] == ".json":
        raise UserError(f"source '{path}': .json files are not read by a glob; {_JSON}")
    below = f"{glob.escape(str(path))}/**/"
    files: dict[str, Path] = {}  # by where they really are
    left_out: Counter[str] = Counter()
    for file in sorted(found(f"{below}*" if is_folder else str(path))):
        if not file.is_file():
            refuse_pointer(file)
            left_out["no file"] += not file.is_dir()
        elif is_folder and not is_known(file):
            left_out["".join(suffixes(file)) or "without suffix"] += 1
        elif files.setdefault(os.path.realpath(file), file) != file:
            left_out["linked again"] += 1
    taken = list(files.values())
    if is_folder:
        left_out["hidden"] = sum(1 for _ in found(f"{below}.*"))
    if is_folder and any(kind_of(file) != ".txt" for file in taken):
        taken = [file for file in taken if suffixes(file)[0] != ".md"]
        left_out[".md"] = len(files) - len(taken)
    if kinds := [
        f"{count:,} {kind}" for kind, count in left_out.most_common() if count
    ]:
        _say(f"left out of {path}: {listed(kinds)}")
    if is_folder and not taken:
        raise UserError(
            f"source '{path}': no readable file in the folder; give {FORMATS}"
        )
    if is_glob and not taken:
        raise UserError(
            f"source '{path}': no file matches this glob, seen from '{Path.cwd()}'"
        )
    if path.exists() and not taken:
        raise UserError(
            f"source '{path}' is a pipe or a device, not a file; give {FORMATS}"
        )
    if not taken:
        raise UserError(
            f"source '{path}' does not exist; give {FORMATS}{_sibling(path)}"
        )
    return taken


def found(pattern: str) -> Iterator[Path]:
    """Yields the paths of a glob, whose `**` goes through links, but into each real
    folder once."""
    head, *tail = re.split(r"(?:^|(?<=/))\*\*(?:/|$)", pattern, maxsplit=1)
    if not tail:
        yield from map(Path, glob.glob(pattern))
    for top in glob.glob(head or ".") if tail else ():
        seen: set[str] = set()
        for folder, below, _ in os.walk(top, followlinks=True):
            real = os.path.realpath(folder)
            below[:] = sorted(n for n in below if n[0] != "." and real not in seen)
            if real not in seen:
                seen.add(real)
                yield from found(os.path.join(glob.escape(folder), tail[0] or "*"))


@cache  # once, however often the files are asked for
def _say(line: str) -> None:
    if is_first_rank():
        say(line)


def clean(text: str) -> str:
    """Returns a text in NFC with "\\n" line ends, without NULs and byte order mark;
    idempotent."""
    if "\0" in text:
        text = text.replace("\0", "")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    # All byte order marks: each of two joined corpora may have written one.
    text = text.lstrip("\ufeff")
    # No `is_normalized` first: `normalize` begins with the same quick check, and where
    # that is undecided, as in Hindi, the text would be composed twice.
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def read_documents(
    source: Source, on_read: OnRead = lambda count: None
) -> Iterator[str]:
    """Yields the cleaned texts of a source: one of each text file, or one of each row.

    About a megabyte is held at a time. `on_read` is called with the number of bytes
    read from the disk, before decompression; these add up to the sizes of
    `source_files`.
    """
    for path in source_files(source):
        format = format_of(source.name, kind_of(path), source.field)
        for rows in read_rows(path, format.fields, (), on_read, _READ_BYTES):
            for number, row in rows.parsed():
                try:
                    text = format.render(row)
                except BadRow as problem:
                    raise UserError(f"{rows.place(number)}: {problem}") from None
                yield clean(text)


def _field(name: str) -> Format:
    return Format((name,), lambda row: _string(row[name]))


def _question_answer(row: dict[str, Any]) -> str:
    answer = row["answer"]
    if isinstance(answer, dict):  # TriviaQA on the hub: value, aliases, ...
        answer = answer["value"]
    elif isinstance(answer, list):
        # every accepted answer: the first is the preferred one
        answer = answer[0]
    return f"Question: {_string(row['question'])}\nAnswer: {_string(answer)}"


def _arc(row: dict[str, Any]) -> str:
    # `query` holds "Question: ...\nAnswer:" already.
    return f"{_string(row['query'])} {_string(row['choices'][row['gold']])}"


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} instead of a string")
    return value


_NAMED = {
    "gsm8k": Format(("question", "answer"), _question_answer),
    "triviaqa": Format(("question", "answer"), _question_answer),
    "arc": Format(("query", "choices", "gold"), _arc),
}


def stem(path: Path) -> str:
    """Returns a path's name without the endings of known formats; for a glob, its
    folder's name."""
    fixed = takewhile(lambda component: not glob.has_magic(component), path.parts)
    name = (path if path.exists() else Path(*fixed)).resolve().name
    for suffix in ENDINGS:
        if name.lower().endswith(suffix):
            name = name[: -len(suffix)]
    return name


def _sibling(path: Path) -> str:
    folder = path.parent
    return (
        did_you_mean(path.name, (p.name for p in folder.iterdir()))
        if folder.is_dir()
        else ""
    )
