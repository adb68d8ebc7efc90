"""Records beside the shards: held-out texts, rejected documents, duplicates, counts."""

import io
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_prep.encoding import Encoded
from data_prep.input_files import Corpus
from data_prep.mix import EXACT, KEPT, NEAR, Pool, Portion, Verdicts
from data_prep.pieces import REJECTED, Piece, file_number
from data_prep.settings import SourceSettings
from dualpath_cli.base.files import replacing
from dualpath_cli.data.manifest import INDEX, MANIFEST, SourceCount, StoredFile
from dualpath_cli.data.storage import file_sizes, sha256_of
from dualpath_cli.data.tokenizer import TOKENIZER, Tokenizer

OnPiece = Callable[[int], None]
"""Called with the number of pieces gone through since the last call."""


def write_held_out(
    folder: Path, pools: Sequence[Pool], tokenizer: Tokenizer, on_piece: OnPiece
) -> None:
    """Writes the validation documents of each source to val/NAME.jsonl.

    A source without any has no file.
    """
    for pool in pools:
        rows = _held_out_rows(pool, tokenizer, on_piece)
        first = next(rows, None)
        if first is None:
            continue

        path = folder / "val" / f"{pool.name}.jsonl"
        with replacing(path) as partial, open(partial, "w", encoding="utf-8") as file:
            for row in chain([first], rows):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _held_out_rows(
    pool: Pool, tokenizer: Tokenizer, on_piece: OnPiece
) -> Iterator[dict[str, Any]]:
    for number, piece in enumerate(pool.pieces):
        on_piece(1)
        chosen = pool.to_hold_out(number)
        if not len(chosen):
            continue

        ids = piece.ids()
        tokens, starts = piece.tokens()
        for document in chosen.tolist():
            begin = starts[document]
            end = starts[document + 1] - 1  # without end-of-text
            # The tokenizer loses nothing, so the ids give the text back.
            text = tokenizer.decode(tokens[begin:end].tolist())
            yield {"id": ids[document], "text": text}


def write_rejected(folder: Path, encoded: Sequence[Encoded]) -> None:
    """Writes rejected.jsonl.zst: rejected documents with their place and the reason.

    Without any there is no file.
    """
    pieces = chain.from_iterable(corpus.pieces for corpus in encoded)
    with_rejected = [piece for piece in pieces if piece.counts.rejected]
    if not with_rejected:
        return

    path = folder / "rejected.jsonl.zst"
    with replacing(path) as partial, open(partial, "wb") as out:
        for piece in with_rejected:
            with open(piece.path.with_suffix(REJECTED), "rb") as file:
                # Frames one after the other are a zstd file.
                shutil.copyfileobj(file, out)


def first_reason(piece: Piece) -> str | None:
    """Returns the reason of a piece's first rejected document; None without one."""
    if not piece.counts.rejected:
        return None

    path = piece.path.with_suffix(REJECTED)
    with pa.CompressedInputStream(str(path), "zstd") as rejected:
        line = io.BufferedReader(rejected).readline()
    row = json.loads(line)

    reason = f"row {row['row']} {row['reason']}"
    if not row["detail"]:
        return reason
    return f"{reason}: {row['detail']}"


def write_duplicates(
    folder: Path,
    corpora: Sequence[Corpus],
    encoded: Sequence[Encoded],
    verdicts: Verdicts,
    on_piece: OnPiece,
) -> None:
    """Writes duplicates.jsonl.zst: each one's place, and that of its original.

    Without duplicates there is no file.
    """
    if not verdicts.any():
        return

    corpus_of = []  # by the number of a piece
    for corpus, pieces in zip(corpora, encoded, strict=True):
        corpus_of += [corpus] * len(pieces.pieces)

    @lru_cache(maxsize=256)
    def rows_of(piece: int) -> list[int]:
        rows: list[int] = verdicts.pieces[piece].numbers("number").tolist()
        return rows

    def place(piece: int, document: int) -> dict[str, Any]:
        corpus = corpus_of[piece]
        file = corpus.files[file_number(verdicts.pieces[piece].path)]
        return {
            "source": corpus.settings.name,
            "file": file.name,
            "row": rows_of(piece)[document],
        }

    path = folder / "duplicates.jsonl.zst"
    with (
        replacing(path) as partial,
        pa.CompressedOutputStream(str(partial), "zstd") as out,
    ):
        for number, piece in enumerate(verdicts.pieces):
            on_piece(1)
            kinds = verdicts.kinds[number]
            firsts = verdicts.firsts[number]
            repeated = (kinds != KEPT).nonzero()[0].tolist()
            ids = piece.ids() if repeated else []
            for document in repeated:
                row = {
                    **place(number, document),
                    "id": ids[document],
                    "kind": "exact" if kinds[document] == EXACT else "near",
                    "of": place(*verdicts.locate(int(firsts[document]))),
                }
                out.write((json.dumps(row, ensure_ascii=False) + "\n").encode())


def files_beside(folder: Path, chunks: Sequence[StoredFile]) -> list[StoredFile]:
    """Returns the files beside the chunks, with hashes, in the order of their names."""
    known = {chunk.name for chunk in chunks}
    known |= {INDEX, MANIFEST, TOKENIZER}

    beside = []
    for name, size in sorted(file_sizes(folder).items()):
        if name not in known:
            digest = sha256_of(folder / name)
            beside.append(StoredFile(name, size, digest))
    return beside


def count_documents(
    source: SourceSettings, encoded: Encoded, portion: Portion
) -> SourceCount:
    """Counts the documents of a source, each of which is in one of the counts."""
    pool = portion.pool
    numbers = range(len(encoded.pieces))
    counts = [piece.counts for piece in encoded.pieces]

    kinds: Counter[int] = Counter()
    for own in pool.kinds:
        kinds.update(own.tolist())
    rejected: Counter[str] = Counter()
    for count in counts:
        rejected.update(count.rejected)

    distinct = sum(len(portion.taken(0, n)) for n in numbers)
    allowed = sum(len(pool.to_write(n)) for n in numbers)

    text_bytes = 0
    for n, piece in enumerate(encoded.pieces):
        for repeat in range(portion.all_passes):
            taken = portion.taken(repeat, n)
            text_bytes += int(piece.numbers("text_bytes")[taken].sum())

    return SourceCount(
        name=source.name,
        path=source.path,
        read=sum(count.read for count in counts),
        documents=distinct,
        validation=sum(len(pool.to_hold_out(n)) for n in numbers),
        rejected=dict(sorted(rejected.items())),
        exact_duplicates=kinds[EXACT],
        near_duplicates=kinds[NEAR],
        unused=allowed - distinct,
        passes=round(portion.tokens / pool.tokens, 6) if pool.tokens else 0.0,
        tokens=portion.tokens,
        text_bytes=text_bytes,
        normalised=sum(count.normalised for count in counts),
        faults=encoded.faults,
    )
