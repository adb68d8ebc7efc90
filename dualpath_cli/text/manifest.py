"""Manifest: what a data folder holds, so that a missing, cut or changed file is found."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from dualpath_cli.errors import UserError
from dualpath_cli.output.atomic import write_text
from dualpath_cli.text.storage import local_copy, sha256_of, sizes
from dualpath_cli.text.tokenizer import TOKENIZER, Tokenizer

MANIFEST = "manifest.json"
INDEX = "index.json"
_WAY_OUT = "prepare it again with `python -m data_prep ... --overwrite`"


@dataclass(frozen=True)
class StoredFile:
    """One file of a data folder."""

    name: str
    """Path in the data folder."""
    bytes: int
    """Size on the disk."""
    sha256: str


@dataclass(frozen=True)
class SourceCount:
    """What became of the documents of one source.

    `read` is the sum of `documents`, `validation`, `exact_duplicates`, `near_duplicates`, `unused`
    and all of `rejected`: no document goes unnoticed.
    """

    name: str
    path: str
    read: int
    """Documents met."""
    documents: int
    """Documents written, each counted once however often it is repeated."""
    validation: int
    """Documents held out, in val/NAME.jsonl."""
    rejected: dict[str, int]
    """Documents left out, by reason; they are in rejected.jsonl.zst."""
    exact_duplicates: int
    """Documents whose text is that of an earlier one."""
    near_duplicates: int
    """Documents that resemble an earlier one by MinHash."""
    unused: int
    """Documents beyond the tokens that were asked for."""
    passes: float
    """How often the source's documents are in the data; up to 1 unless it is repeated."""
    tokens: int
    """Tokens written, repeats and each document's end-of-text included."""
    text_bytes: int
    """UTF-8 bytes of the documents written, repeats included."""
    normalised: int
    """Documents whose text was changed by cleaning, of those met."""
    faults: list[str]
    """Files that could not be read to their end, and why."""

    @property
    def total_rejected(self) -> int:
        """Documents left out for any reason in `rejected`."""
        return sum(self.rejected.values())


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`: one stream of tokens, cut into chunks."""

    documents: int
    """Documents, each followed by one end-of-text; repeats count."""
    tokens: int
    """Tokens in the chunks, end-of-text included."""
    text_bytes: int
    """UTF-8 bytes of the documents."""
    dtype: Literal["uint16", "uint32"]
    """Type of a token on the disk."""
    vocab_size: int
    """One above the tokenizer's largest id."""
    eot_id: int
    """Id of end-of-text."""
    tokenizer: str
    """Fingerprint of the tokenizer (`Tokenizer.fingerprint`)."""
    sources: list[SourceCount]
    chunks: list[StoredFile]
    """In the order of the stream."""
    index_sha256: str
    """sha256 of litdata's `index.json`."""
    beside: list[StoredFile]
    """Files that are not trained on: held-out texts, rejected documents, duplicates."""
    request: str
    """Digest of what was asked for: an equal request need not be prepared again."""
    settings: dict[str, Any]
    """What was asked for, as a recipe of `python -m data_prep`."""

    @property
    def fingerprint(self) -> str:
        """sha256 of the tokens and what they mean: equal data, wherever and whenever prepared."""
        content = [self.dtype, self.tokenizer, self.eot_id, [c.sha256 for c in self.chunks]]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def summary(self) -> str:
        """Tells these data from others: tokens, sources and the fingerprint's beginning."""
        names = ", ".join(source.name for source in self.sources)
        return f"{self.tokens:,} tokens of {names}, fingerprint {self.fingerprint[:12]}"

    @classmethod
    def read(cls, folder: str | Path) -> "Manifest":
        """Reads the manifest of a data folder, on a disk or at s3://bucket/prefix.

        Raises UserError where the folder or its manifest is missing or not readable.
        """
        path = f"{folder}/{MANIFEST}"
        listing = sizes(folder)
        if listing is None:
            raise UserError(
                f"data folder '{folder}' does not exist; "
                f"make it with `python -m data_prep --source ... --out {folder}`"
            )
        if MANIFEST not in listing:
            raise UserError(f"data folder '{folder}' has no {MANIFEST}; {_WAY_OUT}")
        try:
            content = json.loads(local_copy(path).read_text(encoding="utf-8"))
            stored = content.pop("fingerprint")
            content["sources"] = [SourceCount(**source) for source in content["sources"]]
            content["chunks"] = [StoredFile(**chunk) for chunk in content["chunks"]]
            content["beside"] = [StoredFile(**file) for file in content["beside"]]
            manifest = cls(**content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"{path}: cannot be read ({reason}); {_WAY_OUT}") from None
        if manifest.fingerprint != stored:
            raise UserError(f"{path}: its fingerprint does not fit its content; {_WAY_OUT}")
        return manifest

    def write(self, folder: Path) -> None:
        """Writes `manifest.json` into a data folder."""
        content: dict[str, Any] = {"fingerprint": self.fingerprint}
        content |= asdict(self)
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        write_text(folder / MANIFEST, text)

    def check_sizes(self, folder: str | Path) -> None:
        """Raises UserError where a chunk is missing or of another size, or the index differs.

        Takes milliseconds, on S3 a listing: chunks are not read.
        """
        listing = sizes(folder) or {}
        for chunk in self.chunks:
            path = f"{folder}/{chunk.name}"
            if chunk.name not in listing:
                raise UserError(f"{path}: chunk is missing; {_WAY_OUT}")
            if (size := listing[chunk.name]) != chunk.bytes:
                raise UserError(f"{path}: {size} bytes instead of {chunk.bytes}; {_WAY_OUT}")
        if INDEX not in listing:
            raise UserError(f"{folder}/{INDEX}: missing; {_WAY_OUT}")
        if sha256_of(f"{folder}/{INDEX}") != self.index_sha256:
            raise UserError(f"{folder}/{INDEX}: changed since it was prepared; {_WAY_OUT}")

    def verify(self, folder: str | Path) -> None:
        """Raises UserError where any file differs from what was prepared; reads every byte."""
        self.check_sizes(folder)
        listing = sizes(folder) or {}
        for file in [*self.chunks, *self.beside]:
            path = f"{folder}/{file.name}"
            if file.name not in listing:
                raise UserError(f"{path}: missing; {_WAY_OUT}")
            if sha256_of(path) != file.sha256:
                raise UserError(
                    f"{path}: changed since it was prepared (its sha256 differs); {_WAY_OUT}"
                )
        if Tokenizer.load(local_copy(f"{folder}/{TOKENIZER}")).fingerprint != self.tokenizer:
            raise UserError(f"{folder}/{TOKENIZER}: not the tokenizer of these tokens; {_WAY_OUT}")
