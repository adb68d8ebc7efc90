"""How fast text becomes shards, beside bare tiktoken on the same texts with the same processes.

python -m benchmarks.data_prep --texts FOLDER_OF_JSONL --tokenizer GPT2_FOLDER

Both are timed on a corpus and on one three times as large; the speed is that of the difference, so
that what happens once (starting processes, importing litdata) does not count. It is printed apart.
Everything runs on as many cores as there are processes, this one included.
"""

import argparse
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from data_prep.corpora import find
from data_prep.prepare import Request, prepare
from data_prep.settings import Settings, SourceSettings
from dualpath_cli.text.documents import Source, read_documents
from dualpath_cli.text.tokenizer import Tokenizer

BATCH = 64
"""Documents that a process of the bare tokenizer gets at a time."""

_tokenizer: Tokenizer | None = None


def load(folder: str) -> None:
    global _tokenizer
    _tokenizer = Tokenizer.load(folder)
    _tokenizer.encode_batch(["warm"])


def count(texts: list[str]) -> int:
    assert _tokenizer is not None
    return sum(map(len, _tokenizer.encode_batch(texts)))


def bare(corpus: Path, tokenizer: str, processes: int, work: Path) -> float:
    """Returns the seconds of tokenising texts that are in memory, by processes that are there."""
    texts = list(read_documents(Source("corpus", corpus)))
    batches = [texts[n : n + BATCH] for n in range(0, len(texts), BATCH)]
    if processes == 1:
        load(tokenizer)
        start = time.perf_counter()
        sum(map(count, batches))
        return time.perf_counter() - start
    with ProcessPoolExecutor(processes, get_context("spawn"), load, (tokenizer,)) as pool:
        sum(pool.map(count, batches[: 4 * processes]))  # all have started
        start = time.perf_counter()
        sum(pool.map(count, batches))
        return time.perf_counter() - start


def ours(duplicates: str) -> Callable[[Path, str, int, Path], float]:
    """Returns the measurement of a whole preparation, from the file to the finished folder."""

    def measure(corpus: Path, tokenizer: str, processes: int, work: Path) -> float:
        source = SourceSettings("corpus", str(corpus))
        settings = Settings((source,), tokenizer, duplicates=duplicates)  # type: ignore[arg-type]
        corpora = [find(source, work, "", None)]
        request = Request(settings, corpora, Tokenizer.load(tokenizer), work / "out")
        start = time.perf_counter()
        prepare(request, processes)
        seconds = time.perf_counter() - start
        shutil.rmtree(work / "out")
        return seconds

    return measure


def write_corpora(texts: Path, folder: Path, tokens: int, tokenizer: Tokenizer) -> list[Path]:
    """Writes a corpus of about `tokens` tokens and one of three times as many, no text twice."""
    found = [text for file in sorted(texts.glob("*.jsonl*")) for text in
             read_documents(Source("texts", file))]  # fmt: skip
    sizes = [len(text) / 4 for text in found]  # about four characters a token
    paths = []
    for times in (1, 3):
        path = folder / f"{times}.jsonl"
        written, number = 0.0, 0
        with open(path, "w") as file:
            while written < tokens * times:
                text = f"{number}\n{found[number % len(found)]}"
                file.write(json.dumps({"text": text}) + "\n")
                written += sizes[number % len(found)]
                number += 1
        paths.append(path)
    return paths


def tokens_of(corpus: Path, tokenizer: Tokenizer) -> int:
    return sum(map(len, tokenizer.encode_batch(list(read_documents(Source("c", corpus))))))


def main() -> None:
    shared = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path, default=shared / "text")
    parser.add_argument("--tokenizer", default=str(shared / "gpt2"))
    parser.add_argument("--tokens", type=int, default=8_000_000, help="Of the small corpus.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    import data_prep.shards  # noqa: F401 - litdata and torch: seconds that are not ours

    measurements = {"tiktoken": bare, "ours": ours("exact"), "ours, near": ours("near")}
    cores = sorted(os.sched_getaffinity(0))
    seconds: dict[tuple[str, int], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        tokenizer = Tokenizer.load(options.tokenizer)
        corpora = write_corpora(options.texts, Path(name), options.tokens, tokenizer)
        small, large = (tokens_of(corpus, tokenizer) for corpus in corpora)
        for _ in range(options.rounds):
            for processes in options.processes:
                os.sched_setaffinity(0, cores[:processes])
                for what, measure in measurements.items():
                    both = [measure(c, options.tokenizer, processes, Path(name)) for c in corpora]
                    seconds.setdefault((what, processes), []).append((both[0], both[1]))
    table = Table("path", "processes", "M tokens/s", "of tiktoken", "rounds", "once, s")
    for processes in options.processes:
        base = 0.0
        for what in measurements:
            rounds = seconds[what, processes]
            rates = [(large - small) / (second - first) / 1e6 for first, second in rounds]
            once = median(
                first - small / (rate * 1e6) for (first, _), rate in zip(rounds, rates, strict=True)
            )
            base = base or median(rates)
            table.add_row(
                what,
                str(processes),
                f"{median(rates):.2f}",
                f"{median(rates) / base:.2f}",
                " ".join(f"{rate:.2f}" for rate in rates),
                f"{once:.1f}",
            )
    Console(width=100).print(table)
    packages = ", ".join(f"{p} {version(p)}" for p in ("tiktoken", "pyarrow", "litdata"))
    print(f"{small:,} and {large:,} tokens; Python {platform.python_version()}, {packages}")


if __name__ == "__main__":
    main()
