"""Memory: under 1 GB a process, and no more for more documents."""

import random
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from data_prep.documents import duplicates
from data_prep.documents.duplicates import repeats
from data_prep.sources import sample
from tests.data_prep.preparing import write_jsonl

MEASURED = """
import sys
from pathlib import Path
from data_prep.__main__ import main

if __name__ == "__main__":
    code = main(sys.argv[1:])
    # Not ru_maxrss, which begins at that of the process that started this one.
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    print(int(status["VmHWM"].split()[0]) * 1024)
    sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_the_main_process_needs_less_than_a_gigabyte(workers, tmp_path):
    # One process does a worker's work as well.
    texts = list(sample.documents("train"))
    sample.tokenizer().save(tmp_path)
    draw = random.Random(0)
    # More pieces than are worked on at a time, and one long document.
    corpus = [" ".join(draw.choices(texts, k=40)) for _ in range(4000)]
    corpus.append(" ".join(texts[: len(texts) // 4]))
    assert len(corpus[-1]) > 1e6
    path = write_jsonl(tmp_path / "a.jsonl", corpus)
    assert path.stat().st_size > 32e6
    (tmp_path / "run.py").write_text(MEASURED)
    command = [sys.executable, str(tmp_path / "run.py"), "--tokenizer", str(tmp_path)]
    command += ["--source", str(path), "--workers", str(workers), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert 1e8 < int(done.stdout.splitlines()[-1]) < 1e9


def test_comparing_needs_no_more_memory_for_more_documents(tmp_path, monkeypatch):
    documents = 1_600_000
    monkeypatch.setattr(duplicates, "BUCKET_DOCUMENTS", 100_000)
    pieces = [np.random.RandomState(n).bytes(4000 * 16) for n in range(documents // 4000)]

    def keys_of(piece: bytes) -> np.ndarray:
        return np.frombuffer(piece, np.uint64).reshape(-1, 2)

    tracemalloc.start()
    compared = sum(count for count, _, _ in repeats(pieces, keys_of, documents, tmp_path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert compared == documents
    assert peak < 120 * 100_000
