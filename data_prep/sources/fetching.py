"""Fetching: estimates of downloads and disk, and files fetched ahead of their reader."""

import math
import shutil
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.pool import AsyncResult, ThreadPool
from pathlib import Path

from rich.filesize import decimal

from data_prep.download import Downloads, RemoteFile
from data_prep.sources.corpora import FILE_BYTES, FILE_TOKENS, Corpus, InputFile
from dualpath_cli.base.errors import UserError
from dualpath_cli.data.rows import OnRead

ASK_ABOVE = 20 * 10**9  # bytes to download that need --yes

TOKENS_PER_BYTE = FILE_TOKENS / FILE_BYTES
"""Tokens in a compressed byte of Nemotron-CC; assumed for other corpora, too."""

DISK_BYTES_PER_TOKEN = 5.0
"""Two bytes in pieces, two in shards, and the records of each document."""

CONNECTIONS = 4  # files that are fetched at a time, and ahead of their reader


@dataclass(frozen=True)
class Estimate:
    files: list[int]  # of each corpus, how many will probably be read
    download: int  # bytes that are not here yet
    disk: int  # bytes that will be written, downloads included


def estimate(corpora: Sequence[Corpus], wanted: Sequence[int | None], downloads: Path) -> Estimate:
    """Estimates from the sizes of files; `wanted` are tokens of each corpus, None for all."""
    counts, download, tokens = [], 0, 0.0
    for corpus, target in zip(corpora, wanted, strict=True):
        files = corpus.files
        if target is not None:
            files = files[: math.ceil(target / (max(files[0].size, 1) * TOKENS_PER_BYTE))]
        counts.append(len(files))
        download += sum(file.size for file in files if not _is_here(file, downloads))
        held = sum(file.size for file in files) * TOKENS_PER_BYTE
        tokens += held if target is None else min(held, target)
    return Estimate(counts, download, round(download + tokens * DISK_BYTES_PER_TOKEN))


def _is_here(file: InputFile, downloads: Path) -> bool:
    return isinstance(file.origin, Path) or (downloads / file.origin.name).exists()


def announce(plan: Estimate, out: Path, downloads: Path, *, yes: bool) -> None:
    """Prints the size of the download; refuses one that the disk cannot hold, or a large one."""
    existing = next(path for path in (out.resolve(), *out.resolve().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if plan.download:
        print(
            f"downloads about {decimal(plan.download)} into {downloads} and uses about "
            f"{decimal(plan.disk)} of the disk in all; {decimal(free)} are free",
            file=sys.stderr,
        )
    if plan.disk > free:
        raise UserError(
            f"--out '{out}': about {decimal(plan.disk)} are needed and {decimal(free)} are free; "
            "name a larger disk, fewer --num-files or fewer --tokens"
        )
    if plan.download > ASK_ABOVE and not yes:
        raise UserError(
            f"about {decimal(plan.download)} would be downloaded; add --yes (make: YES=1), or "
            "name fewer --num-files or fewer --tokens"
        )


class Fetcher:
    """Gives out files of corpora, and fetches the next files until its context ends."""

    def __init__(self, corpora: Sequence[Corpus], folder: Path, expected: Sequence[int]) -> None:
        """`expected` are the numbers of files of each corpus that will be read."""
        self._listener: OnRead = lambda count: None
        self._counting = threading.Lock()
        self._downloads = Downloads(folder, self._received)
        # Daemon threads, unlike those of concurrent.futures: none that waits for a silent server
        # holds up Ctrl-C.
        self._pool = ThreadPool(CONNECTIONS)
        self._begun: dict[RemoteFile, AsyncResult[Path]] = {}
        self._ahead: dict[RemoteFile, list[RemoteFile]] = {}
        for corpus, count in zip(corpora, expected, strict=True):
            files = [file.origin for file in corpus.files if not isinstance(file.origin, Path)]
            for number, file in enumerate(files):
                self._ahead[file] = files[number : number + 1 + min(CONNECTIONS, count - 1)]

    def __enter__(self) -> "Fetcher":
        return self

    def __exit__(self, *error: object) -> None:
        self._downloads.leaving.set()
        self._pool.terminate()

    def get(self, file: InputFile, on_received: OnRead) -> Path:
        """Returns a file's path, once it is there; `on_received` gets the bytes downloaded."""
        if isinstance(file.origin, Path):
            return file.origin
        self._listener = on_received
        for soon in self._ahead[file.origin]:
            if soon not in self._begun:
                self._begun[soon] = self._pool.apply_async(self._downloads.get, [soon])
        return self._begun[file.origin].get()

    def _received(self, count: int) -> None:
        with self._counting:  # several files arrive at a time
            self._listener(count)


def on_this_disk(file: InputFile, on_received: OnRead) -> Path:
    """`Fetcher.get` where nothing is downloaded."""
    assert isinstance(file.origin, Path)
    return file.origin
