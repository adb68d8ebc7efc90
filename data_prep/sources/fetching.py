"""Fetching: what a preparation downloads and takes of the disk, and files ahead of their reader."""

import math
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.filesize import decimal

from data_prep.download import RemoteFile
from data_prep.download.transfer import CONNECTIONS, Downloads, with_sizes
from data_prep.sources.corpora import FILE_BYTES, FILE_TOKENS, Corpus, InputFile
from dualpath_cli.errors import UserError
from dualpath_cli.text.rows import OnRead

ASK_ABOVE = 20 * 10**9  # bytes to download that are asked about first

TOKENS_PER_BYTE = FILE_TOKENS / FILE_BYTES
"""Tokens in a compressed byte; other corpora are taken to be like Nemotron-CC."""

DISK_BYTES_PER_TOKEN = 5.0
"""Twice two bytes, in pieces and in shards, and the records of each document."""


@dataclass(frozen=True)
class Estimate:
    corpora: list[Corpus]  # with the sizes of the files that will probably be read
    files: list[int]  # the number of these files of each corpus
    download: int  # bytes that are not here yet
    disk: int  # bytes that will be written, downloads included


def estimate(corpora: Sequence[Corpus], wanted: Sequence[int | None], downloads: Path) -> Estimate:
    """Estimates from sizes, asking servers; `wanted` are tokens of each corpus, None for all."""
    sized, files, download, tokens = [], [], 0, 0.0
    for corpus, target in zip(corpora, wanted, strict=True):
        expected = _expected(corpus, target, downloads)
        size = sum(_size(file) for file in expected)
        sized.append(replace(corpus, files=[*expected, *corpus.files[len(expected) :]]))
        files.append(len(expected))
        download += sum(_size(file) for file in expected if not _is_here(file, downloads))
        held = size * TOKENS_PER_BYTE
        tokens += held if target is None else min(held, target)
    return Estimate(sized, files, download, round(download + tokens * DISK_BYTES_PER_TOKEN))


def _expected(corpus: Corpus, wanted: int | None, downloads: Path) -> list[InputFile]:
    """Returns the files that will probably be read, with their sizes where these are known."""
    files = corpus.files
    if wanted is not None:
        files = files[: max(1, math.ceil(wanted / (_size(files[0]) * TOKENS_PER_BYTE)))]
    missing = [
        file.origin
        for file in files
        if isinstance(file.origin, RemoteFile) and not _is_here(file, downloads)
    ][:400]
    sized = dict(zip(missing, with_sizes(missing), strict=True)) if missing else {}
    return [_with_size(file, sized, downloads) for file in files]


def _with_size(file: InputFile, sized: dict[RemoteFile, RemoteFile], downloads: Path) -> InputFile:
    if isinstance(file.origin, Path):
        return file
    if _is_here(file, downloads):
        return replace(file, size=(downloads / file.origin.name).stat().st_size)
    origin = sized.get(file.origin, file.origin)
    return replace(file, size=origin.size, origin=origin)


def _size(file: InputFile) -> int:
    return max(FILE_BYTES if file.size is None else file.size, 1)


def _is_here(file: InputFile, downloads: Path) -> bool:
    return isinstance(file.origin, Path) or (downloads / file.origin.name).exists()


def announce(plan: Estimate, out: Path, downloads: Path, *, yes: bool) -> None:
    """Prints the size of the download and asks before a large one."""
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
    if plan.download <= ASK_ABOVE or yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UserError(
            f"about {decimal(plan.download)} would be downloaded; add --yes (make: YES=1), or "
            "name fewer --num-files or fewer --tokens"
        )
    print("go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UserError("nothing was downloaded; name fewer --num-files or fewer --tokens")


class Fetcher:
    """Gives out files of corpora. A context manager: downloads run from entering to leaving."""

    def __init__(self, corpora: Sequence[Corpus], folder: Path, expected: Sequence[int]) -> None:
        """`expected` files of each corpus are fetched ahead, others when the one before is read."""
        self._stack = ExitStack()
        self._listener: OnRead = lambda count: None
        self._downloads: dict[RemoteFile, Downloads] = {}
        for corpus, count in zip(corpora, expected, strict=True):
            remote = [file.origin for file in corpus.files if isinstance(file.origin, RemoteFile)]
            if remote:
                ahead = min(CONNECTIONS, count - 1)
                downloads = Downloads(remote, folder, self._received, ahead=ahead)
                self._downloads |= dict.fromkeys(remote, downloads)

    def __enter__(self) -> "Fetcher":
        for downloads in dict.fromkeys(self._downloads.values()):
            self._stack.enter_context(downloads)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def get(self, file: InputFile, on_received: OnRead) -> Path:
        """Returns a file's path, once it is there; `on_received` is told of bytes downloaded."""
        if isinstance(file.origin, Path):
            return file.origin
        self._listener = on_received
        return self._downloads[file.origin].get(file.origin)

    def _received(self, count: int) -> None:
        self._listener(count)


def on_this_disk(file: InputFile, on_received: OnRead) -> Path:
    """`Fetcher.get` where nothing is downloaded."""
    assert isinstance(file.origin, Path)
    return file.origin
