"""Manifest: what a data folder holds, so that a missing, cut or changed file is found."""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from dualpath_cli.errors import UserError
from dualpath_cli.text.tokenizer import TOKENIZER, Tokenizer

MANIFEST = "manifest.json"
INDEX = "index.json"
_WAY_OUT = "prepare it again with `python -m data_prep ... --overwrite`"


@dataclass(frozen=True)
class Chunk:
    """One file of tokens."""

    name: str
    """File name in the data folder."""
    bytes: int
    """Size on the disk."""
    sha256: str


@dataclass(frozen=True)
class SourceCount:
    """What one source gave."""

    name: str
    path: str
    documents: int
    """Documents written."""
    empty: int
    """Documents left out because they hold no text."""
    tokens: int
    """Tokens written, each document's end-of-text included."""
    text_bytes: int
    """UTF-8 bytes of the documents written."""


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`: one stream of tokens, cut into chunks."""

    documents: int
    """Documents, each followed by one end-of-text."""
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
    chunks: list[Chunk]
    """In the order of the stream."""
    index_sha256: str
    """sha256 of litdata's `index.json`."""
    request: str
    """Digest of what was asked for: an equal request need not be prepared again."""

    @property
    def fingerprint(self) -> str:
        """sha256 of the tokens and what they mean: equal data, wherever and whenever prepared."""
        content = [self.dtype, self.tokenizer, self.eot_id, [c.sha256 for c in self.chunks]]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Reads a data folder's manifest.

        Raises UserError where the folder or its manifest is missing or not readable.
        """
        path = folder / MANIFEST
        if not folder.is_dir():
            raise UserError(
                f"data folder '{folder}' does not exist; "
                f"make it with `python -m data_prep --source ... --out {folder}`"
            )
        if not path.is_file():
            raise UserError(f"data folder '{folder}' has no {MANIFEST}; {_WAY_OUT}")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            stored = content.pop("fingerprint")
            content["sources"] = [SourceCount(**source) for source in content["sources"]]
            content["chunks"] = [Chunk(**chunk) for chunk in content["chunks"]]
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
        content |= {field.name: getattr(self, field.name) for field in fields(self)}
        content["sources"] = [asdict(source) for source in self.sources]
        content["chunks"] = [asdict(chunk) for chunk in self.chunks]
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (folder / MANIFEST).write_text(text, encoding="utf-8")

    def check_sizes(self, folder: Path) -> None:
        """Raises UserError where a chunk is missing or of another size, or the index differs.

        Takes milliseconds: chunks are not read.
        """
        for chunk in self.chunks:
            path = folder / chunk.name
            if not path.is_file():
                raise UserError(f"{path}: chunk is missing; {_WAY_OUT}")
            if (size := path.stat().st_size) != chunk.bytes:
                raise UserError(f"{path}: {size} bytes instead of {chunk.bytes}; {_WAY_OUT}")
        if not (folder / INDEX).is_file():
            raise UserError(f"{folder / INDEX}: missing; {_WAY_OUT}")
        if sha256_of(folder / INDEX) != self.index_sha256:
            raise UserError(f"{folder / INDEX}: changed since it was prepared; {_WAY_OUT}")

    def verify(self, folder: Path) -> None:
        """Raises UserError where any file differs from what was prepared; reads every byte."""
        self.check_sizes(folder)
        for chunk in self.chunks:
            if sha256_of(folder / chunk.name) != chunk.sha256:
                raise UserError(
                    f"{folder / chunk.name}: changed since it was prepared "
                    f"(its sha256 differs); {_WAY_OUT}"
                )
        if Tokenizer.load(folder / TOKENIZER).fingerprint != self.tokenizer:
            raise UserError(
                f"{folder / 'tokenizer.json'}: not the tokenizer of these tokens; {_WAY_OUT}"
            )


def sha256_of(path: Path) -> str:
    """Returns the sha256 of a file as hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
