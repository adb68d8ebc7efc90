"""Records beside the shards: held-out texts, rejected documents, duplicates; and their
counts."""

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

from data_prep.corpora import Corpus
from data_prep.encoding import Encoded
from data_prep.mix import EXACT, KEPT, NEAR, Pool, Portion, Verdicts
from data_prep.pieces import REJECTED, Piece, file_number
from data_prep.settings import SourceSettings
from dualpath_cli.base.files import replacing
from dualpath_cli.data.manifest import INDEX, MANIFEST, SourceCount, StoredFile
from dualpath_cli.data.storage import file_sizes, sha256_of
from dualpath_cli.data.tokenizer import TOKENIZER, Tokenizer

# called with the number of pieces gone through since the last call
OnPiece = Callable[[int], None]


def write_held_out(
    folder: Path, pools: Sequence[Pool], tokenizer: Tokenizer, on_piece: OnPiece
) -> None:
    """Writes the validation documents of each source to val/NAME.jsonl, where it has
    any."""
    for pool in pools:
        texts = _held_out(pool, tokenizer, on_piece)
        first = next(texts, None)
        if first is None:
            continue
        path = folder / "val" / f"{pool.name}.jsonl"
        with replacing(path) as partial, open(partial, "w", encoding="utf-8") as file:
            for row in chain([first], texts):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _held_out(
    pool: Pool, tokenizer: Tokenizer, on_piece: OnPiece
) -> Iterator[dict[str, Any]]:
    for number, piece in enumerate(pool.pieces):
        on_piece(1)
        chosen = pool.to_hold_out(number)
        if not len(chosen):
            continue
        ids, (tokens, starts) = piece.ids(), piece.tokens()
        for document in chosen.tolist():
            # The tokenizer loses nothing, so the ids give the text back; the last is
            # end-of-text.
            text = tokenizer.decode(
                tokens[starts[document] : starts[document + 1] - 1].tolist()
            )
            yield {"id": ids[document], "text": text}


def write_rejected(folder: Path, encoded: Sequence[Encoded]) -> None:
    """Writes rejected.jsonl.zst, if there are any: documents with their place and the
    reason."""
    pieces = [
        piece for corpus in encoded for piece in corpus.pieces if piece.counts.rejected
    ]
    if not pieces:
        return
    with (
        replacing(folder / "rejected.jsonl.zst") as partial,
        open(partial, "wb") as out,
    ):
        for piece in pieces:
            with open(piece.path.with_suffix(REJECTED), "rb") as file:
                shutil.copyfileobj(file, out)  # frames in a row are a zstd file


def first_reason(piece: Piece) -> str | None:
    """Returns the reason of a piece's first rejected document; None without one."""
    if not piece.counts.rejected:
        return None
    with pa.CompressedInputStream(
        str(piece.path.with_suffix(REJECTED)), "zstd"
    ) as rejected:
        row = json.loads(io.BufferedReader(rejected).readline())
    return f"row {row['row']} {row['reason']}" + f": {row['detail']}" * bool(
        row["detail"]
    )


def write_duplicates(
    folder: Path,
    corpora: Sequence[Corpus],
    encoded: Sequence[Encoded],
    verdicts: Verdicts,
    on_piece: OnPiece,
) -> None:
    """Writes duplicates.jsonl.zst, if there are any: each one's place and that of its
    original."""
    if not verdicts.any():
        return
    corpus_of = [
        c for c, pieces in zip(corpora, encoded, strict=True) for _ in pieces.pieces
    ]

    @lru_cache(maxsize=256)
    def rows_of(piece: int) -> list[int]:
        rows: list[int] = verdicts.pieces[piece].numbers("number").tolist()
        return rows

    def place(piece: int, document: int) -> dict[str, Any]:
        corpus = corpus_of[piece]
        file = corpus.files[file_number(verdicts.pieces[piece].path)].name
        return {
            "source": corpus.settings.name,
            "file": file,
            "row": rows_of(piece)[document],
        }

    with (
        replacing(folder / "duplicates.jsonl.zst") as partial,
        pa.CompressedOutputStream(str(partial), "zstd") as out,
    ):
        for number, piece in enumerate(verdicts.pieces):
            on_piece(1)
            kinds, firsts = verdicts.kinds[number], verdicts.firsts[number]
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


def stored(folder: Path, chunks: Sequence[StoredFile]) -> list[StoredFile]:
    """Returns the files beside the chunks, with their hashes, in the order of their
    names."""
    known = {*(chunk.name for chunk in chunks), INDEX, MANIFEST, TOKENIZER}
    return [
        StoredFile(name, size, sha256_of(folder / name))
        for name, size in sorted(file_sizes(folder).items())
        if name not in known
    ]


def account(source: SourceSettings, encoded: Encoded, portion: Portion) -> SourceCount:
    """Counts the documents of a source, each of which is in one of the counts."""
    pool, pieces = portion.pool, encoded.pieces
    counts = [piece.counts for piece in pieces]
    kinds = Counter(kind for own in pool.kinds for kind in own.tolist())
    rejected = sum((Counter(count.rejected) for count in counts), Counter[str]())
    distinct = sum(len(portion.taken(0, n)) for n in range(len(pieces)))
    text_bytes = sum(
        int(piece.numbers("text_bytes")[portion.taken(repeat, n)].sum())
        for n, piece in enumerate(pieces)
        for repeat in range(portion.all_passes)
    )
    return SourceCount(
        name=source.name,
        path=source.path,
        read=sum(count.read for count in counts),
        documents=distinct,
        validation=sum(len(pool.to_hold_out(n)) for n in range(len(pieces))),
        rejected=dict(sorted(rejected.items())),
        exact_duplicates=kinds[EXACT],
        near_duplicates=kinds[NEAR],
        unused=sum(len(pool.to_write(n)) for n in range(len(pieces))) - distinct,
        passes=round(portion.tokens / pool.tokens, 6) if pool.tokens else 0.0,
        tokens=portion.tokens,
        text_bytes=text_bytes,
        normalised=sum(count.normalised for count in counts),
        faults=encoded.faults,
    )
