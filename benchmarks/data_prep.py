"""How fast text becomes shards, beside bare tiktoken.

python -m benchmarks.data_prep --texts FOLDER_OF_JSONL --tokenizer GPT2_FOLDER

Everything is timed on a corpus of eight files and on one three times as large; the speed is that of
the difference, so that what happens once (starting processes, importing) does not count. Everything
runs on as many cores as there are processes, this one included.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Literal

from benchmarks.results import Rows, publish, spread
from benchmarks.turns import in_turns, ratios
from data_prep.executors import on_this_machine
from data_prep.prepare import Request, prepare
from data_prep.settings import Preparation, SourceSettings
from data_prep.sources.corpora import find
from dualpath_cli.data.documents import Source, read_documents
from dualpath_cli.data.tokenizer import Tokenizer

FILES = 8
BATCH = 64
"""Documents that a process of the bare tokenizer gets at a time."""

_tokenizer: Tokenizer | None = None


def load(folder: Path) -> None:
    global _tokenizer
    _tokenizer = Tokenizer.load(folder)
    _tokenizer.encode_batch(["warm"])


def count(texts: list[str]) -> int:
    assert _tokenizer is not None
    return sum(map(len, _tokenizer.encode_batch(texts)))


def bare(corpus: Path, tokenizer: Path, processes: int, out: Path) -> float:
    """Returns the seconds of tokenising texts that are in memory, by processes that are there."""
    texts = [text for file in corpus.iterdir() for text in documents(file)]
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


def ours(
    duplicates: Literal["exact", "near"], corpus: Path, tokenizer: Path, processes: int, out: Path
) -> float:
    """Returns the seconds of a whole preparation, from the files to the finished folder."""
    source = SourceSettings("corpus", str(corpus))
    settings = Preparation((source,), str(tokenizer), duplicates=duplicates)
    request = Request(
        settings, [find(source, out.parent, "", None)], Tokenizer.load(tokenizer), out
    )
    start = time.perf_counter()
    prepare(request, on_this_machine(processes))
    return time.perf_counter() - start


MEASUREMENTS: dict[str, Callable[[Path, str, int, Path], float]] = {
    "tiktoken": bare,
    "ours": partial(ours, "exact"),
    "ours, near": partial(ours, "near"),
}


def documents(file: Path) -> list[str]:
    """Returns the texts of a file."""
    return list(read_documents(Source("texts", file)))


def write_corpora(texts: Path, folder: Path, tokens: int) -> Iterator[Path]:
    """Writes a corpus of about `tokens` tokens and one of three times as many, no text twice."""
    found = [text for file in sorted(texts.glob("*.jsonl*")) for text in documents(file)]
    for times in (1, 3):
        corpus = folder / f"corpus{times}"
        corpus.mkdir()
        numbered = enumerate(cycle(found))
        for file_number in range(FILES):
            written = 0.0
            with open(corpus / f"{file_number}.jsonl", "w") as file:
                while written < tokens * times / FILES:
                    number, text = next(numbered)
                    file.write(json.dumps({"text": f"{number}\n{text}"}) + "\n")
                    written += len(text) / 4  # about four characters a token
        yield corpus


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path, required=True, help="Folder of JSONL files.")
    parser.add_argument("--tokenizer", type=Path, required=True, help="GPT-2's, a folder.")
    parser.add_argument("--tokens", type=int, default=8_000_000, help="Of the small corpus.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--out", help="JSON file of the results.")
    given = parser.parse_args(arguments)
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpora = list(write_corpora(given.texts, folder, given.tokens))
        load(given.tokenizer)
        small, large = (sum(count(documents(file)) for file in c.iterdir()) for c in corpora)

        def measured(measure: Callable[..., float], corpus: Path, processes: int) -> float:
            os.sched_setaffinity(0, cores[:processes])
            seconds = measure(corpus, given.tokenizer, processes, folder / "out")
            shutil.rmtree(folder / "out", ignore_errors=True)
            return seconds

        variants = {
            f"{what}, {n} processes, {corpus.name}": partial(measured, measure, corpus, n)
            for n in given.processes
            for what, measure in MEASUREMENTS.items()
            for corpus in corpora
        }
        seconds = in_turns(variants, given.rounds)
    os.sched_setaffinity(0, cores)
    rows: Rows = {}
    for n in given.processes:
        for what in MEASUREMENTS:
            both = [seconds[f"{what}, {n} processes, {corpus.name}"] for corpus in corpora]
            speed = [(large - small) / (b - a) / 1e6 for a, b in zip(*both, strict=True)]
            row = {"M tokens/s": median(speed), "of each round": speed}
            rows[f"{what}, {n} processes"] = row
            bare_speed = rows[f"tiktoken, {n} processes"]["of each round"]
            row["tiktoken = 1"] = spread(ratios(speed, bare_speed))
    publish(given, {f"{small:,} and {large:,} tokens": rows})


if __name__ == "__main__":
    main()
