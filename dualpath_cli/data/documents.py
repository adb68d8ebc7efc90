"""Documents of a SOURCE: NAME=PATH or PATH, read as a stream of texts."""

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
from dualpath_cli.base.files import near_sibling
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

SOURCE_FORMATS = (
    "a .txt, .md, .jsonl or .parquet file, all but .parquet also as .gz or .zst, a "
    "folder of them, or a quoted glob such as 'docs/**/*.rst' of any UTF-8 texts"
)
_JSON = (
    "rename a .json file to .jsonl if each line is an object, else write one an object "
    "a line, such as by jq -c '.[]'"
)
NAME = re.compile(r"[\w.-]+")  # the form of a source's name

IDS = ("id", "warc_record_id", "uuid")
"""Fields that name a document; the first that a row has counts."""

_READ_BYTES = 1 << 20  # of rows that are read at a time


@dataclass(frozen=True)
class Source:
    """Where documents come from."""

    name: str  # in tables and manifests; gsm8k, arc and triviaqa also choose the format
    path: Path  # a file, folder or glob; files are read in the order of their paths
    field: str = "text"
    """The field of a row that holds the text, where the name chooses no format."""


@dataclass(frozen=True)
class RowFormat:
    """How a row becomes a text."""

    fields: tuple[str, ...]  # that a row must have
    _render: Callable[[dict[str, Any]], str]
    takes_text: bool = False
    """Whether a row with `text` and without any of the fields is that text: the rows
    that `prepare` holds out, in OUT/val/NAME.jsonl."""

    def render(self, row: dict[str, Any] | BadRow) -> str:
        """Returns a row's text.

        Raises BadRow where a field is missing or holds no valid text.
        """
        if isinstance(row, BadRow):
            raise row
        if self.takes_text and "text" in row and row.keys().isdisjoint(self.fields):
            return format_of("", "").render(row)

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


def format_of(name: str, kind: str, field: str = "text") -> RowFormat:
    """Returns the format of a source's rows.

    It depends on the kind of file and the source's name, else on a field.
    """
    if kind != ".txt" and name in _NAMED:
        return _NAMED[name]

    own_field = "text" if kind == ".txt" else field
    return RowFormat((own_field,), lambda row: _string(row[own_field]))


def document_id(row: dict[str, Any] | BadRow) -> str | None:
    """Returns the first of the fields `IDS` that a row has; None without one."""
    if isinstance(row, BadRow):
        return None

    for field in IDS:
        value = row.get(field)
        if value not in (None, ""):
            return str(value).encode(errors="backslashreplace").decode()
    return None


def parse_source(spec: str) -> Source:
    """Reads `NAME=PATH` or `PATH`.

    Without a NAME it is that of the file or folder, without its suffixes.
    """
    name, rest = split_name(spec)
    if rest.startswith("hf:"):
        raise UserError(
            f"source '{spec}': only `dualpath prepare --source` reads datasets of the "
            "Hugging Face hub; fetch it by `hf download OWNER/NAME --repo-type "
            f"dataset` and give {SOURCE_FORMATS}"
        )

    source = Source(name or stem(Path(rest)), Path(rest))
    source_files(source)
    return source


def split_name(spec: str) -> tuple[str | None, str]:
    """Cuts `NAME=PATH` into its parts.

    A path may hold an equals sign: quality=high/kind=actual. Raises UserError without a
    path.
    """
    name, equals, rest = spec.partition("=")
    is_named = equals and NAME.fullmatch(name) and not Path(spec).exists()
    path = os.path.expanduser(rest) if is_named else spec
    if not path:  # as a Path it would be the working directory
        raise UserError(f"source '{spec}' has no path; give {SOURCE_FORMATS}")
    return name if is_named else None, path


def source_files(source: Source) -> list[Path]:
    """Returns a source's files, in the order of their paths.

    They are the file itself, those below a folder, or those of a glob. Links are
    followed, each real file is taken once, and hidden names are left out. In a folder
    only names of known formats are taken, without Markdown beside .jsonl or .parquet
    files. A line on stderr counts the files left out. Raises OSError where a folder
    cannot be read for another reason than its permissions.
    """
    path = source.path
    if path.is_file():
        _check_format(path)
        return [path]

    is_glob = glob.has_magic(str(path))
    # Each file would be one text, with its braces.
    if is_glob and suffixes(path)[0] == ".json":
        raise UserError(f"source '{path}': .json files are not read by a glob; {_JSON}")

    is_folder = path.is_dir()
    if is_folder:
        files, left_out = _files_of_folder(path)
    else:
        files, left_out = _distinct_files(str(path), only_known=False)

    kinds = [f"{count:,} {kind}" for kind, count in left_out.most_common() if count]
    if kinds:
        _say_once(f"left out of {path}: {listed(kinds)}")

    if files:
        return files
    if is_folder:
        raise UserError(
            f"source '{path}': no readable file in the folder; give {SOURCE_FORMATS}"
        )
    if is_glob:
        raise UserError(
            f"source '{path}': no file matches this glob, seen from '{Path.cwd()}'"
        )
    if path.exists():
        raise UserError(
            f"source '{path}' is a pipe or a device, not a file; give {SOURCE_FORMATS}"
        )
    raise UserError(
        f"source '{path}' does not exist; give {SOURCE_FORMATS}{near_sibling(path)}"
    )


def _check_format(path: Path) -> None:
    if not is_known(path):
        is_json = suffixes(path)[0] == ".json"
        way_out = _JSON if is_json else f"give {SOURCE_FORMATS}"
        raise UserError(f"source '{path}': its name has no known ending; {way_out}")


def _files_of_folder(folder: Path) -> tuple[list[Path], Counter[str]]:
    """The files below a folder, and how many are left out of each kind."""
    below = f"{glob.escape(str(folder))}/**/"
    files, left_out = _distinct_files(f"{below}*", only_known=True)
    left_out["hidden"] = sum(1 for _ in expand_glob(f"{below}.*"))

    # Beside rows, Markdown describes them.
    if any(kind_of(file) != ".txt" for file in files):
        others = [file for file in files if suffixes(file)[0] != ".md"]
        left_out[".md"] = len(files) - len(others)
        files = others
    return files, left_out


def _distinct_files(pattern: str, only_known: bool) -> tuple[list[Path], Counter[str]]:
    """The files of a glob, each real one once, and how many are left out."""
    files: dict[str, Path] = {}  # by where they really are
    left_out: Counter[str] = Counter()
    for file in sorted(expand_glob(pattern)):
        if not file.is_file():
            refuse_pointer(file)
            left_out["no file"] += not file.is_dir()
        elif only_known and not is_known(file):
            left_out["".join(suffixes(file)) or "without suffix"] += 1
        elif files.setdefault(os.path.realpath(file), file) != file:
            left_out["linked again"] += 1
    return list(files.values()), left_out


def expand_glob(pattern: str) -> Iterator[Path]:
    """Yields the paths of a glob.

    Its `**` goes through links, but into each real folder once. A line on stderr names
    a folder that may not be read.
    """
    head, *tail = re.split(r"(?:^|(?<=/))\*\*(?:/|$)", pattern, maxsplit=1)
    if not tail:
        yield from map(Path, glob.glob(pattern))
        return

    for top in glob.glob(head or "."):
        seen: set[str] = set()
        for folder, below, _ in os.walk(top, onerror=_leave_out, followlinks=True):
            real = os.path.realpath(folder)
            is_new = real not in seen
            # os.walk goes into the folders that are left in its list.
            below[:] = sorted(name for name in below if name[0] != "." and is_new)
            if is_new:
                seen.add(real)
                rest = tail[0] or "*"
                yield from expand_glob(os.path.join(glob.escape(folder), rest))


def _leave_out(error: OSError) -> None:
    """Says that a folder is left out which may not be read."""
    if not isinstance(error, PermissionError):
        raise error
    _say_once(f"left out: '{error.filename}' ({error.strerror})")


@cache  # once, however often the files are asked for
def _say_once(line: str) -> None:
    if is_first_rank():
        say(line)


def clean(text: str) -> str:
    """Returns a text in NFC with "\\n" line ends, without NULs and byte order mark.

    Cleaning twice changes nothing more.
    """
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
    """Yields the cleaned texts of a source, one of each text file or row.

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
    "gsm8k": RowFormat(("question", "answer"), _question_answer, takes_text=True),
    "triviaqa": RowFormat(("question", "answer"), _question_answer, takes_text=True),
    "arc": RowFormat(("query", "choices", "gold"), _arc, takes_text=True),
}


def stem(path: Path) -> str:
    """Returns a path's name without the endings of known formats.

    Of a glob it is the name of its folder.
    """
    fixed = takewhile(lambda component: not glob.has_magic(component), path.parts)
    place = path if path.exists() else Path(*fixed)
    name = place.resolve().name
    for suffix in ENDINGS:
        if name.lower().endswith(suffix):
            name = name[: -len(suffix)]
    return name
