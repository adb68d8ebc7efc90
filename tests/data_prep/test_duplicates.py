"""Which documents repeat an earlier one, by keys in ranges and by their texts."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import catalogue, duplicates
from data_prep.catalogue import Catalogue
from data_prep.duplicates import EXACT, KEPT, NEAR, Judgement, count_tasks, judge
from data_prep.engine import Engine
from data_prep.pieces import Piece, PieceCounts, piece_path
from data_prep.text import BANDS
from tests.data_prep.conftest import prepare, rows_of
from tests.data_prep.test_text import document

Corpus = list[list[tuple[int, tuple[int, ...]]]]
"""Pieces of documents, each the number of its text and its band keys."""


def write_pieces(folder: Path, corpora: list[Corpus]) -> Catalogue:
    for source, corpus in enumerate(corpora):
        (folder / str(source)).mkdir()
        for number, documents in enumerate(corpus):
            rows = []
            for row, (text, bands) in enumerate(documents, 1):
                keys = np.resize(np.array(bands, np.uint64), BANDS)
                # Texts differ in the second half only.
                rows.append(document(row, text, 1, keys.tolist()))
            ends = np.arange(1, len(rows) + 1)
            Piece.write(
                piece_path(folder / str(source), 0, number),
                rows,
                np.ones(len(rows), np.uint16),
                ends,
                PieceCounts(read=len(rows)),
            )
    pieces = [[(0, n) for n in range(len(corpus))] for corpus in corpora]
    counts = [[len(piece) for piece in corpus] for corpus in corpora]
    return Catalogue.of(folder, pieces, counts)


@contextmanager
def judged_in(
    corpora: list[Corpus], kind: str, ranges: int, group_documents: int
) -> Iterator[Judgement]:
    with (
        tempfile.TemporaryDirectory() as name,
        patch.object(catalogue, "GROUP_DOCUMENTS", group_documents),
    ):
        folder = Path(name)
        pieces = write_pieces(folder, corpora)
        judgement = Judgement(
            pieces, folder / "judged" / "a", kind, 0.0, 0.0, folder, ranges
        )
        tasks: list[int] = []
        numbers = judge(Engine(), judgement, tasks.append)
        assert sum(tasks) == count_tasks(judgement)
        for number in range(len(pieces)):
            kept = judgement.is_kept(number)
            assert numbers["documents"][number] == kept.sum()
        yield judgement


def expected(corpora: list[Corpus], kind: str) -> tuple[list[int], list[int]]:
    """Compares each document with all before it."""
    documents = [each for corpus in corpora for piece in corpus for each in piece]
    verdicts, firsts = [], []
    for n, (text, bands) in enumerate(documents):
        equal = [m for m in range(n) if documents[m][0] == text]
        full = [np.resize(documents[m][1], BANDS) for m in range(n)]
        mine = np.resize(bands, BANDS)
        shared = [
            next((m for m in range(n) if full[m][band] == mine[band]), None)
            for band in range(BANDS)
        ]
        near = [m for m in shared if m is not None]
        if kind != "keep" and equal:
            verdicts.append(EXACT)
            firsts.append(equal[0])
        elif kind == "near" and near:
            verdicts.append(NEAR)
            firsts.append(near[0])
        else:
            verdicts.append(KEPT)
    return verdicts, firsts


key = st.integers(0, 5) | st.sampled_from([2**64 - 1, 2**63])
judged_document = st.tuples(st.integers(0, 6), st.tuples(key, key, key))
pieces_of_documents = st.lists(st.lists(judged_document, max_size=6), max_size=4)


@settings(max_examples=60)
@given(
    corpora=st.lists(pieces_of_documents, min_size=1, max_size=2),
    kind=st.sampled_from(["keep", "exact", "near"]),
    ranges=st.integers(1, 3),
    group_documents=st.integers(1, 12),
)
def test_a_document_is_judged_by_all_before_it(corpora, kind, ranges, group_documents):
    with judged_in(corpora, kind, ranges, group_documents) as judgement:
        verdicts = [judgement.verdicts(group) for group in judgement.catalogue.groups]
        found = [int(kind) for each in verdicts for kind in each.kinds]
        firsts = [int(pair["of"]) for each in verdicts for pair in each.pairs]
        assert (found, firsts) == expected(corpora, kind)


# Texts


WORDS = [f"word{n}" for n in range(400)]


def changed(words: list[str], changes: int, start: int = 0) -> str:
    """A text with some words of its own, ten apart."""
    words = list(words)
    for n in range(changes):
        words[start + 10 * n] = f"other{start}{n}"
    return " ".join(words)


def jaccard_by_hand(a: str, b: str) -> float:
    runs = [
        {tuple(words[n : n + 5]) for n in range(len(words) - 4)}
        for words in (a.split(), b.split())
    ]
    return len(runs[0] & runs[1]) / len(runs[0] | runs[1])


@pytest.fixture(scope="module")
def like_texts() -> list[str]:
    """A text, others that share more and more of it, and the first once more."""
    texts = [changed(WORDS, n, start=n % 10) for n in range(0, 36, 3)]
    return [" ".join(WORDS), *texts[1:], " ".join(WORDS)]


@pytest.mark.parametrize("least", [0.0, 0.5, 0.9])
def test_near_duplicates_are_those_whose_texts_are_alike(ask, out, like_texts, least):
    manifest = prepare(ask(like_texts, duplicates="near", min_jaccard=least))
    (count,) = manifest.sources
    rows = rows_of(out / "duplicates.jsonl.zst")
    assert rows[-1]["kind"] == "exact"
    near = rows[:-1]
    assert count.near_duplicates == len(near) > 0
    for row in near:
        texts = [like_texts[place["row"] - 1] for place in (row, row["of"])]
        by_hand = jaccard_by_hand(*texts)
        if least:
            assert row["jaccard"] == pytest.approx(by_hand, abs=1e-4)
            assert by_hand >= least
        else:
            assert "jaccard" not in row

    compared = rows_of(out / "compared.jsonl.zst")
    if not least:
        assert (count.unlike, compared) == (0, [])
        return
    unlike = [row for row in compared if row["kind"] == "unlike"]
    assert all(jaccard_by_hand(*row["texts"]) < least for row in unlike)
    assert len(compared) - len(unlike) == len(near)
    removed = {row["row"] for row in near}
    kept = {row["places"][0]["row"] for row in unlike} - removed
    assert count.unlike == len(kept)
    assert (count.unlike > 0) == (least == 0.9)


def test_keys_of_many_documents_are_matched_in_the_memory_that_is_given():
    import tracemalloc

    documents = 100_000
    rng = np.random.default_rng(0)
    keys = rng.integers(0, documents, (documents, 2), np.uint64)
    tracemalloc.start()
    duplicates._firsts(keys)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < duplicates.BYTES_A_KEY * documents
