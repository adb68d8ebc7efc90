"""Makes pieces: the rows of a file, cleaned, judged by themselves, and tokenised."""

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from data_prep.engine import read_shared
from data_prep.pieces import (
    REJECTED,
    Piece,
    PieceCounts,
    TokenArray,
    load_tokenizer,
    token_type,
)
from data_prep.settings import SourceSettings
from data_prep.text import Contamination, band_keys
from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import replacing
from dualpath_cli.data.documents import RowFormat, clean, document_id, format_of
from dualpath_cli.data.rows import BadRow, Rows


@dataclass(frozen=True)
class PieceSettings:
    tokenizer: Path  # a folder with tokenizer.json
    min_chars: int
    near: bool  # whether documents are signed for near-duplicate removal
    contamination: Contamination | None
    strict: bool  # whether an unreadable or unwritable row stops the preparation


@lru_cache(maxsize=1)
def piece_maker(settings: Path) -> "PieceMaker":
    """The maker of shared settings; one a process."""
    return PieceMaker(read_shared(settings))


class PieceMaker:
    def __init__(self, settings: PieceSettings) -> None:
        self._settings = settings
        self._tokenizer = load_tokenizer(settings.tokenizer)
        self._dtype = token_type(self._tokenizer)

    def make(
        self, source: SourceSettings, name: str, rows: Rows, stored: int, out: Path
    ) -> PieceCounts:
        """Writes a piece to `out` and, beside it, the rejected documents.

        `name` is the file's in records; `stored` are the bytes of the file that hold
        the rows. Raises UserError for a row that cannot be read, and for a text that
        the tokenizer cannot write, where none may be left out.
        """
        format = format_of(source.name, rows.kind, source.field)
        counts = PieceCounts(stored=stored)
        documents: list[dict[str, Any]] = []
        texts: list[str] = []
        rejected: list[dict[str, Any]] = []

        for number, row in rows.parsed():
            counts.read += 1
            id = document_id(row)
            text, reason, details = self._judged(rows, number, row, format, counts)
            if not reason:
                documents.append(self._document(number, id, text))
                texts.append(text)
                continue

            counts.rejected[reason] = counts.rejected.get(reason, 0) + 1
            rejected.append(
                {
                    "source": source.name,
                    "file": name,
                    "row": number,
                    "id": id,
                    "reason": reason,
                    "detail": details,
                    "text": text,
                }
            )

        try:
            tokens, ends = self._encode(texts)
        except UserError:
            numbers = [document["number"] for document in documents]
            self._name_fault(rows, numbers, texts)
            raise

        # Before the piece, whose presence means both files.
        if rejected:
            _write_rejected(out.with_suffix(REJECTED), rejected)
        Piece.write(out, documents, tokens, ends, counts)
        return counts

    def _judged(
        self,
        rows: Rows,
        number: int,
        row: dict[str, Any] | BadRow,
        format: RowFormat,
        counts: PieceCounts,
    ) -> tuple[str, str, str]:
        """Returns the text of a row, the reason to leave it out, and details.

        Reason and details are empty for a text to keep. `counts` counts the texts that
        cleaning changes.
        """
        try:
            original = format.render(row)
        except BadRow as bad:
            if self._settings.strict:
                raise UserError(f"{rows.place(number)}: {bad}") from None
            return rows.raw(number), "unreadable", str(bad)

        text = clean(original)
        counts.normalised += text != original
        return text, *self._refusal(text)

    def _encode(self, texts: list[str]) -> tuple[TokenArray, npt.NDArray[np.int64]]:
        """Returns the tokens of all texts, each with its end-of-text; where each ends.

        The ends are (texts,), in tokens.
        """
        ids: list[npt.NDArray[np.uint32]] = []
        start = 0
        characters = 0
        for end, text in enumerate(texts, 1):
            characters += len(text)
            # A megabyte of text at a time: `tokenizers` takes some 100 bytes a token.
            if characters >= 1 << 20 or end == len(texts):
                ids += self._tokenizer.encode_batch(texts[start:end])
                start = end
                characters = 0

        lengths = [len(document) + 1 for document in ids]
        ends = np.cumsum(lengths, dtype=np.int64)
        total = ends[-1] if ids else 0
        # End-of-text everywhere, then the documents over it.
        tokens = np.full(total, self._tokenizer.eot_id, self._dtype)
        for document, end in zip(ids, ends.tolist(), strict=True):
            last = end - 1
            tokens[last - len(document) : last] = document
        return tokens, ends

    def _name_fault(self, rows: Rows, numbers: list[int], texts: list[str]) -> None:
        """Raises UserError, with its place, for the first text with a fault."""
        for number, text in zip(numbers, texts, strict=True):
            try:
                self._tokenizer.encode(text)
            except UserError as error:
                raise UserError(f"{rows.place(number)}: {error}") from None

    def _refusal(self, text: str) -> tuple[str, str]:
        """Returns the reason to leave a text out, and details.

        Both are empty for a text to keep.
        """
        if not text or text.isspace():
            return "empty", ""
        if len(text) < self._settings.min_chars:
            return "too short", ""

        contamination = self._settings.contamination
        shared_words = contamination.find(text) if contamination else None
        if shared_words:
            return "contaminated", shared_words

        # Where nothing may be left out, to encode the text raises.
        byte = None if self._settings.strict else self._tokenizer.lacking_byte(text)
        if byte is not None:
            return "unwritable", f"the tokenizer lacks the byte 0x{byte:02X}"
        return "", ""

    def _document(self, number: int, id: str | None, text: str) -> dict[str, Any]:
        """Returns a row of `DOCUMENT`."""
        encoded = text.encode()
        digest = hashlib.blake2b(encoded, digest_size=16).digest()
        name = digest if id is None else id.encode()
        id_hash = hashlib.blake2b(name, digest_size=8).digest()
        return {
            "number": number,
            "id": id,
            "id_hash": int.from_bytes(id_hash, "little"),
            "digest": digest,
            "text_bytes": len(encoded),
            "bands": band_keys(text) if self._settings.near else None,
        }


def _write_rejected(path: Path, rejected: list[dict[str, Any]]) -> None:
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rejected)
    # Shared: the folder, of many files, is not searched for unfinished ones.
    with (
        replacing(path, shared=True) as unfinished,
        pa.CompressedOutputStream(str(unfinished), "zstd") as sink,
    ):
        sink.write(lines.encode("utf-8", errors="backslashreplace"))
