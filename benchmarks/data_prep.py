"""How fast text becomes shards, beside bare tiktoken and litdata.optimize.

python -m benchmarks.data_prep --texts FOLDER_OF_JSONL --tokenizer GPT2_FOLDER

Everything is timed on a corpus of eight files and on one three times as large; the speed is that of
the difference, so that what happens once (starting processes, importing) does not count. It is
printed apart. Everything runs on as many cores as there are processes, this one included. Then come
the memory that preparing takes and the speed of reading what was prepared.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.results import show, spread
from benchmarks.turns import ratios
from data_prep.executors.local import on_this_machine
from data_prep.prepare import Request, prepare
from data_prep.settings import Settings, SourceSettings
from data_prep.sources.corpora import find
from dualpath_cli.text.documents import Source, read_documents
from dualpath_cli.text.tokenizer import Tokenizer

FILES = 8
BATCH = 64
"""Documents that a process of the bare tokenizer gets at a time."""
CHUNK_TOKENS = 1 << 25
SEQUENCE = 4096
PACKAGES = ("tiktoken", "pyarrow", "litdata")

_tokenizer: Tokenizer | None = None


def load(folder: str) -> None:
    global _tokenizer
    _tokenizer = Tokenizer.load(folder)
    _tokenizer.encode_batch(["warm"])


def count(texts: list[str]) -> int:
    assert _tokenizer is not None
    return sum(map(len, _tokenizer.encode_batch(texts)))


def bare(corpus: Path, tokenizer: str, processes: int, out: Path) -> float:
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


def ours(duplicates: str, corpus: Path, tokenizer: str, processes: int, out: Path) -> float:
    """Returns the seconds of a whole preparation, from the files to the finished folder."""
    source = SourceSettings("corpus", str(corpus))
    settings = Settings((source,), tokenizer, duplicates=duplicates)  # type: ignore[arg-type]
    corpora = [find(source, out.parent, "", None)]
    request = Request(settings, corpora, Tokenizer.load(tokenizer), out)
    start = time.perf_counter()
    prepare(request, on_this_machine(processes))
    return time.perf_counter() - start


def litdata_optimize(corpus: Path, tokenizer: str, processes: int, out: Path) -> float:
    """Returns the seconds of `litdata.optimize` with a generator of a file's tokens."""
    from litdata import TokensLoader, optimize

    stdout = os.dup(1)
    os.dup2(2, 1)  # it and its processes print what they do
    start = time.perf_counter()
    optimize(
        partial(tokens_of_file, tokenizer=tokenizer),
        [str(path) for path in sorted(corpus.iterdir())],
        str(out),
        chunk_size=CHUNK_TOKENS,
        item_loader=TokensLoader(),
        num_workers=processes,
    )
    seconds = time.perf_counter() - start
    sys.stdout.flush()
    os.dup2(stdout, 1)
    os.close(stdout)
    return seconds


def tokens_of_file(path: str, tokenizer: str) -> Iterator[np.ndarray]:
    """Yields the ids of each document of a file, with its end-of-text."""
    if _tokenizer is None:
        load(tokenizer)
    assert _tokenizer is not None
    with open(path, "rb") as lines:
        for line in lines:
            (ids,) = _tokenizer.encode_batch([json.loads(line)["text"]])
            yield np.append(ids, _tokenizer.eot_id).astype(np.uint16)


MEASUREMENTS: dict[str, Callable[[Path, str, int, Path], float]] = {
    "tiktoken": bare,
    "ours": partial(ours, "exact"),
    "ours, near": partial(ours, "near"),
    "litdata": litdata_optimize,
}


def memory(corpus: Path, tokenizer: str, processes: int, out: Path) -> tuple[float, float]:
    """Returns the most MB resident of a preparation's main process and of any of its others."""
    words = ["--source", str(corpus), "--tokenizer", tokenizer, "--workers", str(processes)]
    command = [sys.executable, "-m", "data_prep", *words, "--out", str(out)]
    main = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peaks: dict[int, float] = {}
    while main.poll() is None:
        for path in Path(f"/proc/{main.pid}/task").glob("*/children"):
            for pid in [main.pid, *map(int, path.read_text().split())]:
                with suppress(OSError):  # it has ended
                    status = Path(f"/proc/{pid}/status").read_text()
                    if found := re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE):
                        peaks[pid] = int(found[1]) / 1000  # the highest so far
        time.sleep(0.05)
    assert main.returncode == 0, command
    first = peaks.pop(main.pid)
    return first, max(peaks.values(), default=0.0)


def reading(folder: Path, workers: int) -> float:
    """Returns the tokens a second of an epoch as `fit` reads it, after the first batch."""
    from torch.utils.data import DataLoader

    from dualpath_cli.training.data.blocks import Blocks, OrderedBlocks
    from dualpath_cli.training.data.data_module import split_blocks
    from dualpath_cli.training.data.order import MicroBatches

    blocks = Blocks(str(folder), SEQUENCE + 1)
    loader = DataLoader(
        OrderedBlocks(blocks, seed=0),
        batch_sampler=MicroBatches(0, len(blocks) // 8, 8, 8, ranks=1, rank=0),
        num_workers=workers,
        collate_fn=partial(split_blocks, vocab_size=2**32, place=str(folder)),
    )
    batches = iter(loader)
    next(batches)
    start = time.perf_counter()
    tokens = sum(inputs.numel() for inputs, _ in batches)
    return tokens / (time.perf_counter() - start)


def documents(file: Path) -> list[str]:
    """Returns the texts of a file."""
    return list(read_documents(Source("texts", file)))


def write_corpora(texts: Path, folder: Path, tokens: int) -> list[Path]:
    """Writes a corpus of about `tokens` tokens and one of three times as many, no text twice."""
    found = [text for file in sorted(texts.glob("*.jsonl*")) for text in documents(file)]
    corpora = []
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
        corpora.append(corpus)
    return corpora


def tokens_of(corpus: Path, tokenizer: str) -> int:
    load(tokenizer)
    return sum(count(documents(file)) for file in corpus.iterdir())


Seconds = dict[tuple[str, int], list[list[float]]]
"""Of the small corpus and the large one by round, by measurement and processes."""


def show_speeds(seconds: Seconds, small: int, large: int) -> None:
    rates = {
        setting: [(large - small) / (second - first) / 1e6 for first, second in rounds]
        for setting, rounds in seconds.items()
    }
    rows = []
    for (what, processes), own in sorted(rates.items(), key=lambda setting: setting[0][1]):
        both = zip(seconds[what, processes], own, strict=True)
        once = median(first - small / (rate * 1e6) for (first, _), rate in both)
        ratio = spread(ratios(own, rates["tiktoken", processes]))
        rows.append([what, str(processes), f"{median(own):.2f}", ratio, f"{once:.1f}"])
    show(["path", "processes", "M tokens/s", "of tiktoken", "once, s"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    shared = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path, default=shared / "text")
    parser.add_argument("--tokenizer", default=str(shared / "gpt2"))
    parser.add_argument("--tokens", type=int, default=8_000_000, help="Of the small corpus.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--only", nargs="+", default=list(MEASUREMENTS), choices=MEASUREMENTS)
    options = parser.parse_args(arguments)
    cores = sorted(os.sched_getaffinity(0))
    seconds: Seconds = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpora = write_corpora(options.texts, folder, options.tokens)
        small, large = (tokens_of(corpus, options.tokenizer) for corpus in corpora)

        def measured(measure: Callable[..., Any], corpus: Path, processes: int) -> Any:
            os.sched_setaffinity(0, cores[:processes])
            result = measure(corpus, options.tokenizer, processes, folder / "out")
            shutil.rmtree(folder / "out", ignore_errors=True)
            return result

        for number in range(options.rounds):
            for processes in options.processes:
                for what in options.only:
                    both = [measured(MEASUREMENTS[what], c, processes) for c in corpora]
                    seconds.setdefault((what, processes), []).append(both)
                    print(f"round {number + 1}: {what}, {processes}: {both}", file=sys.stderr)
        show_speeds(seconds, small, large)
        versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
        print(f"{small:,} and {large:,} tokens; Python {platform.python_version()}, {versions}")
        rows = []
        for processes in options.processes:
            for corpus, tokens in zip(corpora, (small, large), strict=True):
                peaks = measured(memory, corpus, processes)
                rows.append([str(processes), f"{tokens / 1e6:.0f}", *(f"{p:.0f}" for p in peaks)])
        show(["processes", "corpus, M tokens", "main, MB", "largest other, MB"], rows)
        os.sched_setaffinity(0, cores)
        ours("exact", corpora[-1], options.tokenizer, len(cores), folder / "out")
        rows = [[str(n), f"{reading(folder / 'out', n) / 1e6:.1f}"] for n in (0, 1, 2)]
        show(["loader workers", "read, M tokens/s"], rows)


if __name__ == "__main__":
    main()
