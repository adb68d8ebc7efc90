"""Duplicates: equal to a plain search over all pairs, in parts of any size.

So later documents change no earlier verdict: the plain search sees those before a document alone.
"""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.documents import duplicates
from data_prep.documents.duplicates import EXACT, KEPT, NEAR, Verdicts
from data_prep.documents.minhash import BANDS
from data_prep.documents.piece import Document, Piece, PieceCounts

Corpus = list[list[tuple[int, tuple[int, ...]]]]
"""Pieces of documents, each the number of its text and its band keys."""


def write_pieces(folder: Path, corpus: Corpus) -> list[Piece]:
    pieces = []
    for number, documents in enumerate(corpus):
        rows = [
            Document(
                number=row,
                id=None,
                id_hash=row,
                digest=text.to_bytes(16, "big"),  # texts differ in the second half only
                text_bytes=1,
                bands=np.resize(np.array(bands, np.uint64), BANDS),
            )
            for row, (text, bands) in enumerate(documents, 1)
        ]
        path = folder / f"{number}.arrow"
        ends = np.arange(1, len(rows) + 1)
        Piece.write(path, rows, np.ones(len(rows), np.uint16), ends, PieceCounts(read=len(rows)))
        pieces.append(Piece(path))
    return pieces


def expected(corpus: Corpus, kind: str) -> tuple[list[int], list[int | None]]:
    """Compares each document with all before it."""
    documents = [document for piece in corpus for document in piece]
    verdicts, firsts = [], []
    for n, (text, bands) in enumerate(documents):
        verdict, first = KEPT, None
        equal = [m for m in range(n) if documents[m][0] == text]
        full = [np.resize(documents[m][1], BANDS) for m in range(n)]
        mine = np.resize(bands, BANDS)
        shared = [
            next((m for m in range(n) if full[m][band] == mine[band]), None)
            for band in range(BANDS)
        ]
        if kind != "keep" and equal:
            verdict, first = EXACT, equal[0]
        elif kind == "near" and any(m is not None for m in shared):
            verdict, first = NEAR, next(m for m in shared if m is not None)
        verdicts.append(verdict)
        firsts.append(first)
    return verdicts, firsts


key = st.integers(0, 5) | st.sampled_from([2**64 - 1, 2**63])
document = st.tuples(st.integers(0, 6), st.tuples(key, key, key))
corpora = st.lists(st.lists(document, max_size=6), max_size=5)


@settings(max_examples=150)
@given(corpus=corpora, kind=st.sampled_from(["keep", "exact", "near"]), part=st.integers(1, 9))
def test_a_document_is_judged_by_all_before_it(corpus, kind, part):
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "BUCKET_DOCUMENTS", part)
        pieces = write_pieces(Path(name), corpus)
        verdicts = Verdicts(pieces, Path(name) / "verdicts", kind)
        found = [int(v) for n in range(len(pieces)) for v in verdicts.kinds(n)]
        firsts = [int(v) for n in range(len(pieces)) for v in verdicts.firsts(n)]
        judged, leaders = expected(corpus, kind)
        assert found == judged
        assert [f for f, v in zip(firsts, found, strict=True) if v != KEPT] == [
            leader for leader in leaders if leader is not None
        ]
        assert verdicts.any() == any(v != KEPT for v in judged)


def test_a_document_is_found_in_its_piece(tmp_path):
    corpus: Corpus = [[(0, (0,))] * 3, [], [(1, (1,))] * 2]
    verdicts = Verdicts(write_pieces(tmp_path, corpus), tmp_path / "verdicts", "keep")
    places = [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]
    assert [verdicts.locate(n) for n in range(5)] == places
