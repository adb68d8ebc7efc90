"""Memory: under 1 GB a process, and no more for more documents."""

import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from data_prep import duplicates, sample
from data_prep.duplicates import repeats
from data_prep.sample.bpe import train_tokenizer
from tests.data_prep.preparing import write_jsonl

MEASURED = """
import resource, sys
from data_prep.__main__ import main

if __name__ == "__main__":
    code = main(sys.argv[1:])
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        print(resource.getrusage(who).ru_maxrss * 1024)
    sys.exit(code)
"""


@pytest.mark.slow
def test_no_process_needs_a_gigabyte(tmp_path: Path) -> None:
    texts = list(sample.documents("train"))
    train_tokenizer(texts).save(tmp_path)
    draw = random.Random(0)
    # More pieces than are worked on at a time, and one long document.
    corpus = [" ".join(draw.choices(texts, k=40)) for _ in range(4000)]
    corpus.append(" ".join(texts[: len(texts) // 4]))
    assert len(corpus[-1]) > 1e6
    path = write_jsonl(tmp_path / "a.jsonl", corpus)
    assert path.stat().st_size > 32e6
    (tmp_path / "run.py").write_text(MEASURED)
    command = [sys.executable, str(tmp_path / "run.py"), "--tokenizer", str(tmp_path)]
    command += ["--source", str(path), "--workers", "2", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    parent, worker = map(int, done.stdout.splitlines()[-2:])
    assert 1e8 < worker < 1e9
    assert 1e8 < parent < 1e9


@pytest.mark.parametrize("documents", [400_000, 1_600_000])
def test_comparing_needs_no_more_memory_for_more_documents(
    documents: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicates, "PART_DOCUMENTS", 100_000)
    pieces = [np.random.RandomState(n).bytes(4000 * 16) for n in range(documents // 4000)]

    def keys_of(piece: bytes) -> np.ndarray:
        return np.frombuffer(piece, np.uint64).reshape(-1, 2)

    tracemalloc.start()
    compared = sum(count for count, _, _ in repeats(pieces, keys_of, documents))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert compared == documents
    assert peak < 120 * 100_000
