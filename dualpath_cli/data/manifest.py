"""Manifest: what a data folder holds, so that a missing or changed file is found."""

import errno
import hashlib
import json
import math
import re
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import read_bytes, read_json, write_text
from dualpath_cli.base.pointers import StandIn, refuse_pointer
from dualpath_cli.data.storage import exists, file_sizes, is_remote, local_copy
from dualpath_cli.data.tokenizer import TOKENIZER, Tokenizer

MANIFEST = "manifest.json"
INDEX = "index.json"

HEADER = 12
"""Bytes in front of a chunk's tokens: litdata's count of items, 1, and the bounds of
that one."""

HUB = "hf:"
"""Begins the path of a source on the Hugging Face hub: `hf:OWNER/NAME/PATH`."""

LITDATA_FORMATS = {"uint16": "no_header_numpy:5", "uint32": "no_header_numpy:6"}
"""litdata's names of bare arrays, by the type of a token."""

AGAIN = (
    "copy the folder here again, or prepare it again with `dualpath prepare ... "
    "--overwrite`"
)
"""The way out where a data folder is damaged."""

MOVE_AWAY = "copy the folder here again, or move it away and prepare it again"
"""The way out where the manifest is damaged: nothing else tells which files are data,
so `--overwrite` deletes none."""

_MADE_BY = {
    "data/sample": "`dualpath prepare --source sample --out data/sample`",
    "data/primitives": "`dualpath prepare --source primitives --out data/primitives`",
    "data/text": (
        "`dualpath prepare --source NAME=FILES --tokenizer gpt2 --out data/text`"
    ),
    "data/nemotron-cc": (
        "`dualpath prepare --source nemotron-cc --num-files 1 --tokenizer gpt2 --out "
        "data/nemotron-cc` (a file of 350 MB), or with `--config paper` instead (the "
        "whole mix)"
    ),
}
"""Commands that make the data folder of a packaged recipe."""

_SHA256 = re.compile("[0-9a-f]{64}")
_MOST = 2**63  # bytes and tokens that 64 bits can count


def dataset_of(source: str) -> str:
    """Returns the OWNER/NAME of a source on the hub."""
    dataset = "/".join(source.removeprefix(HUB).split("/")[:2])
    return dataset.partition(":")[0]  # older manifests have OWNER/NAME:CONFIG


@dataclass(frozen=True)
class StoredFile:
    """A file of a data folder."""

    name: str  # path in the data folder
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        path = PurePosixPath(self.name)
        if path.is_absolute() or ".." in path.parts or path.as_posix() != self.name:
            raise ValueError(
                f"'{self.name:.60}' is not the path of a file in the folder"
            )

        if not self.name.isprintable() or self.name == ".":
            raise ValueError(f"{self.name[:60]!r} is not the name of a file")
        if not 0 <= self.bytes < _MOST:
            raise ValueError(f"'{self.name}' cannot have {self.bytes:.6g} bytes")
        if not _SHA256.fullmatch(self.sha256):
            raise ValueError(f"'{self.name}' has no sha256 but '{self.sha256:.60}'")


@dataclass(frozen=True)
class SourceCount:
    """Counts of the documents of one source.

    `read` is the sum of `documents`, `validation`, `exact_duplicates`,
    `near_duplicates`, `unused` and all of `rejected`.
    """

    name: str
    path: str
    read: int  # documents met
    documents: int  # documents written, each counted once however often it is repeated
    validation: int  # documents held out, in val/NAME.jsonl
    rejected: dict[str, int]
    """Documents left out, by reason; they are in rejected.jsonl.zst."""
    exact_duplicates: int  # documents whose text is that of an earlier one
    near_duplicates: int  # documents that resemble an earlier one by MinHash
    unused: int  # documents beyond the tokens that were asked for
    passes: float
    """How often the source's documents are in the data; up to 1 unless repeated."""
    tokens: int  # tokens written, repeats and each document's end-of-text included
    text_bytes: int  # UTF-8 bytes of the documents written, repeats included
    normalised: int  # documents whose text was changed by cleaning, of those met
    faults: list[str]  # files that could not be read to their end, and why
    unlike: int = 0
    """Documents that share a band with an earlier one and are kept, as their texts are
    not alike; not in the file where there are none."""

    @property
    def public_name(self) -> str:
        """The path of a dataset on the hub; of another source only the name."""
        return self.path if self.path.startswith(HUB) else self.name

    @property
    def total_rejected(self) -> int:
        """Documents left out, for any reason."""
        return sum(self.rejected.values())


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`: one stream of tokens, cut into chunks."""

    documents: int  # documents, each followed by one end-of-text; repeats count
    tokens: int  # tokens in the chunks, end-of-text included
    text_bytes: int  # UTF-8 bytes of the documents
    dtype: Literal["uint16", "uint32"]  # type of a token on the disk
    vocab_size: int  # one above the tokenizer's largest id
    eot_id: int  # id of end-of-text
    tokenizer: str  # fingerprint of the tokenizer (`Tokenizer.fingerprint`)
    sources: list[SourceCount]
    chunks: list[StoredFile]  # in the order of the stream
    index_sha256: str  # sha256 of litdata's `index.json`
    beside: list[StoredFile]
    """Files that are not trained on: held-out texts, rejected documents, duplicates."""
    request: str  # digest of the request: an equal one need not be prepared again
    settings: dict[str, Any]  # the request, as a recipe of `dualpath prepare`

    def __post_init__(self) -> None:
        names = [chunk.name for chunk in self.chunks]
        if not names:
            raise ValueError("it lists no chunks")

        outside = [name for name in names if "/" in name]
        if outside:
            raise ValueError(f"chunk '{outside[0]:.60}' is not in the folder itself")
        if len(set(names)) < len(names):
            raise ValueError("it lists a chunk twice")

        if not 0 < self.tokens < _MOST:
            raise ValueError(f"it cannot hold {self.tokens:.6g} tokens")
        if not 0 <= self.eot_id < self.vocab_size <= 2**32:
            ids = f"eot_id {self.eot_id:.6g} in a vocabulary of {self.vocab_size:.6g}"
            raise ValueError(f"there is no {ids} entries")
        if not _SHA256.fullmatch(self.index_sha256):
            raise ValueError(f"index_sha256 is '{self.index_sha256:.60}'")

    @property
    def fingerprint(self) -> str:
        """sha256 of the tokens and what they mean.

        Equal data have the same one, wherever and whenever they were prepared.
        """
        chunks = [chunk.sha256 for chunk in self.chunks]
        content = [self.dtype, self.tokenizer, self.eot_id, chunks]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def chunk_tokens(self) -> list[int]:
        """Tokens in each chunk."""
        width = int(self.dtype.removeprefix("uint")) // 8
        return [(chunk.bytes - HEADER) // width for chunk in self.chunks]

    def chunk_blocks(self, size: int) -> list[int]:
        """Blocks of `size` tokens in each chunk.

        The last tokens of a chunk, fewer than `size`, are not read.
        """
        return [tokens // size for tokens in self.chunk_tokens]

    @property
    def summary(self) -> str:
        """Tells these data from others: tokens, sources and the fingerprint's
        beginning."""
        names = ", ".join(source.name for source in self.sources)
        return f"{self.tokens:,} tokens of {names}, fingerprint {self.fingerprint[:12]}"

    @classmethod
    def read(cls, folder: str | Path) -> "Manifest":
        """Reads the manifest of a data folder, on a disk or at s3://bucket/prefix."""
        path = f"{folder}/{MANIFEST}"
        with explaining_read_errors(folder):
            is_there = exists(path)
        if not is_there:
            raise _no_manifest(folder)

        content = _parse_object(path, _read_file(path))
        try:
            stored = content.pop("fingerprint", None)
            manifest: Manifest = _as_type(cls, content)
        except ValueError as error:
            raise UserError(f"{path}: cannot be read ({error}); {MOVE_AWAY}") from None

        if manifest.fingerprint != stored:
            raise UserError(
                f"{path}: its fingerprint does not fit its content; {MOVE_AWAY}"
            )
        return manifest

    def write(self, folder: Path) -> None:
        """Writes `manifest.json` into a folder."""
        content = {"fingerprint": self.fingerprint, **asdict(self)}
        for source in content["sources"]:
            if not source["unlike"]:
                del source["unlike"]
        text = json.dumps(content, indent=2, ensure_ascii=False)
        write_text(folder / MANIFEST, text + "\n")

    def check_files(self, folder: str | Path) -> None:
        """Checks presence and sizes of the chunks, and litdata's index of them.

        Takes milliseconds, on S3 a listing: chunks are not read.
        """
        with explaining_read_errors(folder):
            listing = file_sizes(folder)

        for chunk in self.chunks:
            path = f"{folder}/{chunk.name}"
            if chunk.name not in listing:
                raise UserError(f"{path}: chunk is missing; {AGAIN}")

            size = listing[chunk.name]
            if size != chunk.bytes:
                if not is_remote(folder):
                    refuse_pointer(Path(path))
                raise UserError(
                    f"{path}: {size} bytes instead of {chunk.bytes}; {AGAIN}"
                )

        if INDEX not in listing:
            raise UserError(f"{folder}/{INDEX}: missing; {AGAIN}")
        self._check_index(f"{folder}/{INDEX}")

        total = sum(self.chunk_tokens)
        if total != self.tokens:
            stated = f"{self.tokens:,} tokens, but {total:,} in the chunks"
            raise UserError(f"{folder}/{MANIFEST}: {stated}; {AGAIN}")

    def _check_index(self, path: str) -> None:
        """Checks that litdata's index lists the chunks of the manifest, no others."""
        content = _read_file(path)
        if hashlib.sha256(content).hexdigest() != self.index_sha256:
            raise UserError(f"{path}: changed since it was prepared; {AGAIN}")

        index = _parse_object(path, content)
        config = index.get("config")
        formats = config.get("data_format") if isinstance(config, dict) else None
        entries = index_entries(self.chunks, self.chunk_tokens)
        if index.get("chunks") != entries or formats != [LITDATA_FORMATS[self.dtype]]:
            raise UserError(
                f"{path}: does not list the chunks of the manifest; {AGAIN}"
            )

    def check_tokenizer(self, folder: str | Path) -> Tokenizer:
        """Returns the folder's tokenizer.

        Raises UserError unless it is the one that made the tokens.
        """
        path = f"{folder}/{TOKENIZER}"
        if not exists(path):
            raise UserError(f"{path} is missing; {AGAIN}")

        try:
            file = local_copy(path)
            tokenizer = Tokenizer(read_json(file), str(file))
        except StandIn:
            raise
        except UserError as error:
            raise UserError(f"{error}; {AGAIN}") from None

        actual = (tokenizer.fingerprint, tokenizer.vocab_size, tokenizer.eot_id)
        if actual != (self.tokenizer, self.vocab_size, self.eot_id):
            raise UserError(f"{path}: not the tokenizer of these tokens; {AGAIN}")
        return tokenizer


def index_entries(chunks: list[StoredFile], lengths: list[int]) -> list[dict[str, Any]]:
    """litdata's entries of chunks, each an item of a number of tokens."""
    return [
        {
            "chunk_bytes": chunk.bytes,
            "chunk_size": 1,
            "dim": length,
            "filename": chunk.name,
        }
        for chunk, length in zip(chunks, lengths, strict=True)
    ]


def is_data_folder(location: str | Path) -> bool:
    """Whether a location is a data folder, also one that has lost its manifest."""
    if exists(f"{location}/{MANIFEST}"):
        return True

    # Else the held-out and rejected documents beside the chunks would be taken for
    # texts.
    return exists(f"{location}/{INDEX}") and exists(f"{location}/{TOKENIZER}")


def _no_manifest(folder: str | Path) -> UserError:
    """Says how to get a data folder where there is none, or a damaged one."""
    if not is_remote(folder) and not Path(folder).exists():
        command = (
            "`dualpath prepare --source NAME=FILES --tokenizer TOKENIZER --out "
            f"{folder}`"
        )
        made_by = _MADE_BY.get(str(folder), command)
        return UserError(
            f"data folder '{folder}' does not exist; make it with {made_by}"
        )

    if is_remote(folder) or is_data_folder(folder):
        return UserError(f"data folder '{folder}' has no {MANIFEST}; {MOVE_AWAY}")

    # Perhaps the user's texts: no advice may end in their loss.
    return UserError(
        f"'{folder}' has no {MANIFEST}, so it is not a data folder; `dualpath "
        f"prepare --source NAME={folder} --tokenizer TOKENIZER --out "
        "ANOTHER_FOLDER` makes one of texts"
    )


@contextmanager
def explaining_read_errors(path: str | Path) -> Iterator[None]:
    """Turns an OSError while a file is read into a UserError that names the file."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise  # not a fault of the disk
        reason = error.strerror or error
        raise UserError(
            f"{path}: cannot be read ({reason}); check its permissions and the disk"
        ) from None


def _read_file(path: str) -> bytes:
    with explaining_read_errors(path):
        return read_bytes(local_copy(path))


def _parse_object(path: str, text: bytes) -> dict[str, Any]:
    """Parses a JSON object; `path` names its file in messages."""
    try:
        content = json.loads(text)
        json.dumps(content, ensure_ascii=False).encode()  # no half of a surrogate pair
    except (ValueError, RecursionError) as error:
        # not JSON, not UTF-8, a number without end
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{path}: cannot be read ({reason}); {MOVE_AWAY}") from None

    if not isinstance(content, dict):
        raise UserError(f"{path}: cannot be read (not a JSON object); {MOVE_AWAY}")
    return content


def _as_type(kind: Any, value: Any) -> Any:
    """Returns JSON as a value of a type, mappings as dataclasses.

    Raises ValueError for JSON of another type.
    """
    # jsonargparse takes a minute for the thousands of entries in the manifest of the
    # paper's data.
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)

    if is_dataclass(kind) and isinstance(value, dict):
        return _as_dataclass(kind, value)
    if origin is list and isinstance(value, list):
        return [_as_type(arguments[0], part) for part in value]
    if origin is dict and isinstance(value, dict):
        return {name: _as_type(arguments[1], part) for name, part in value.items()}

    if kind is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if kind is Any or type(value) is kind:
        return value
    if origin is typing.Literal and value in arguments:
        return value

    raise ValueError(f"'{value!s:.60}' has the wrong type")


def _as_dataclass(kind: Any, value: dict[str, Any]) -> Any:
    kinds = typing.get_type_hints(kind)
    optional = {field.name for field in fields(kind) if field.default is not MISSING}
    wrong = sorted((kinds.keys() ^ value.keys()) - (optional - value.keys()))
    if wrong:
        fault = "unknown" if wrong[0] in value else "missing"
        raise ValueError(f"'{wrong[0]:.60}' is {fault}")

    return kind(**{name: _as_type(kinds[name], part) for name, part in value.items()})
