"""What `dualpath prepare` costs its own process, and the memory of its tasks.

python -m benchmarks.preparation TEXTS.jsonl.gz --tokenizer FOLDER \\
    --out docs/benchmarks/preparation.json

Own share: CPU seconds of the command's own process in each of the three stages, beside
those of its two workers, on 1 to 8 times the text. The words of each copy end in
its number, so that nothing is a duplicate.

Memory: documents with random keys, a tenth of which an earlier document has, are judged
with less and less memory for a task; the peak is the largest of any worker's.
"""

import argparse
import gzip
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # a worker imports this file, and torch would be half of its memory
    from benchmarks.results import Row, Rows

SIZES = (1, 2, 4, 8)
ROWS = 500  # of the text, once: some 10 MB of novels
WORKERS = 2

DOCUMENTS = 10**6
PIECES = 20
TASK_BYTES = (10**9, 100 * 10**6, 30 * 10**6)


# Own share


def _seconds_of_children() -> float:
    """CPU seconds of the processes of a pool, which are still there."""
    ticks = 0
    for process in multiprocessing.active_children():
        fields = (
            Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        )
        ticks += int(fields[11]) + int(fields[12])  # in user and in system mode
    return ticks / os.sysconf("SC_CLK_TCK")


class _Stages:
    """CPU seconds of this process and of its workers, by stage."""

    def __init__(self) -> None:
        self.own: dict[str, float] = {}
        self.workers: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        own = time.process_time()
        workers = _seconds_of_children()
        yield
        self.own[name] = self.own.get(name, 0.0) + time.process_time() - own
        spent = _seconds_of_children() - workers
        self.workers[name] = self.workers.get(name, 0.0) + spent

    def watch(self, owner: Any, method: str, name: str) -> None:
        """Counts a method's time as that of a stage."""
        original: Callable[..., Any] = getattr(owner, method)

        def watched(*arguments: Any, **options: Any) -> Any:
            with self.stage(name):
                return original(*arguments, **options)

        setattr(owner, method, watched)


def _prepare(source: Path, tokenizer: Path, out: Path, printed: Path) -> None:
    """Prepares as the command does, and writes what its stages took."""
    from data_prep import prepare as pipeline
    from data_prep.encoding import Encoder
    from dualpath_cli.cli.main import main

    stages = _Stages()
    stages.watch(Encoder, "encode", "encode")
    stages.watch(pipeline, "judge", "judge")
    stages.watch(pipeline._Stages, "write", "write")
    words = [
        "--source",
        f"a={source}",
        "--tokenizer",
        str(tokenizer),
        "--out",
        str(out),
    ]
    code = main(["prepare", *words, "--duplicates", "near", "--workers", str(WORKERS)])
    printed.write_text(json.dumps([stages.own, stages.workers]))
    sys.exit(code)


def own_share(texts: Path, tokenizer: Path, folder: Path) -> "Rows":
    with gzip.open(texts, "rt") as file:
        rows = [json.loads(line)["text"] for line in itertools.islice(file, ROWS)]

    measured: Rows = {}
    for size in SIZES:
        source = folder / f"{size}.jsonl"
        with source.open("w") as file:
            for copy in range(size):
                for number, text in enumerate(rows):
                    # Words of each copy differ, so that near-duplicates are few.
                    words = [f"{word}{copy}" if copy else word for word in text.split()]
                    row = {"id": f"{copy}-{number}", "text": " ".join(words)}
                    file.write(json.dumps(row) + "\n")

        printed = folder / "seconds.json"
        process = multiprocessing.get_context("spawn").Process(
            target=_prepare,
            args=(source, tokenizer, folder / f"out-{size}", printed),
        )
        process.start()
        process.join()
        own, workers = json.loads(printed.read_text())

        row = {"MB of text": round(source.stat().st_size / 1e6, 1)}
        for stage, seconds in own.items():
            row[f"{stage}: own s"] = round(seconds, 2)
            row[f"{stage}: workers s"] = round(workers[stage], 2)
        everything = sum(own.values()) + sum(workers.values())
        row["own share"] = f"{sum(own.values()) / everything:.1%}"
        measured[f"{size} times"] = row
    return measured


# Memory


def _judge(folder: Path, documents: list[int], task_bytes: int) -> int:
    """Judges documents with a worker; returns its peak memory in bytes."""
    from data_prep.catalogue import Catalogue
    from data_prep.duplicates import Judgement, judge, ranges_for
    from data_prep.engine import local_engine

    pieces = [(0, number) for number in range(len(documents))]
    catalogue = Catalogue.of(folder, [pieces], [documents])
    judgement = Judgement(
        catalogue=catalogue,
        folder=folder / "judged" / str(task_bytes),
        duplicates="near",
        min_jaccard=0.0,
        val_fraction=0.0,
        tokenizer=folder,
        ranges=ranges_for(sum(documents), task_bytes),
    )
    with local_engine(WORKERS) as engine:
        judge(engine, judgement, lambda count: None)
        return max(map(_peak_of, multiprocessing.active_children()))


def _peak_of(process: multiprocessing.process.BaseProcess) -> int:
    """The most memory in bytes that a process had, with the files that it maps."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    kilobytes = next(
        line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")
    )
    return 1024 * int(kilobytes)


def _judge_alone(folder: Path, documents: list[int], task_bytes: int, to: Path) -> None:
    to.write_text(str(_judge(folder, documents, task_bytes)))


def memory(folder: Path) -> "Rows":
    from data_prep.memory import IDLE_BYTES

    documents = [DOCUMENTS // PIECES] * PIECES
    _write_pieces(folder, documents)
    measured: Rows = {}
    for task_bytes in TASK_BYTES:
        printed = folder / "bytes"
        process = multiprocessing.get_context("spawn").Process(
            target=_judge_alone, args=(folder, documents, task_bytes, printed)
        )
        process.start()
        process.join()
        peak = int(printed.read_text())
        row: Row = {
            "documents": f"{DOCUMENTS:,}",
            "promised MB": round((IDLE_BYTES + task_bytes) / 1e6),
            "peak MB": round(peak / 1e6),
        }
        measured[f"{task_bytes / 1e6:,.0f} MB for a task"] = row
    return measured


def _write_pieces(folder: Path, documents: list[int]) -> None:
    from data_prep.pieces import Piece, PieceCounts, piece_path
    from data_prep.text import BANDS, mix64

    rng = np.random.default_rng(0)
    (folder / "0").mkdir(parents=True)
    total = sum(documents)
    for number, count in enumerate(documents):
        names = rng.integers(0, 10 * total, count)
        firsts = names.astype(np.uint64)[:, None] * np.uint64(BANDS)
        bands = mix64(firsts + np.arange(BANDS, dtype=np.uint64))
        rows = [
            {
                "number": n,
                "id": None,
                "id_hash": name,
                "digest": own[:2].tobytes(),
                "text_bytes": 1,
                "bands": own,
            }
            for n, (name, own) in enumerate(zip(names.tolist(), bands, strict=True))
        ]
        path = piece_path(folder / "0", 0, number)
        ends = np.arange(1, count + 1)
        tokens = np.ones(count, np.uint16)
        Piece.write(path, rows, tokens, ends, PieceCounts(read=count))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out")
    given = parser.parse_args()

    from benchmarks.results import publish

    with tempfile.TemporaryDirectory() as name:
        share = Path(name) / "share"
        share.mkdir()
        measured = {
            "Own share of CPU seconds": own_share(given.texts, given.tokenizer, share),
            "Peak memory of a worker that judges": memory(Path(name) / "memory"),
        }
    publish(given, measured)


if __name__ == "__main__":
    main()
