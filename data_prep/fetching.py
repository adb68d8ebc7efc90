"""Fetching: the size of a download, and files fetched ahead of their reader."""

import multiprocessing
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.pool import AsyncResult, ThreadPool
from pathlib import Path

from rich.filesize import decimal

from data_prep.download import Downloads
from data_prep.input_files import Corpus, InputFile, RemoteFile
from data_prep.mix import tokens_to_write, wanted_tokens
from data_prep.out_folder import bytes_made
from data_prep.pieces import token_type
from data_prep.settings import PreparationSettings
from dualpath_cli.base.errors import UserError, listed
from dualpath_cli.base.output import say
from dualpath_cli.data.rows import OnRead
from dualpath_cli.data.tokenizer import Tokenizer

ASK_ABOVE = 20 * 10**9  # bytes to download that need --yes

RECORD_BYTES_PER_TOKEN = 1.0
"""Bytes of the records of a document, spread over its tokens."""

CONNECTIONS = 4  # files that are fetched at a time, and ahead of their reader


@dataclass(frozen=True)
class _Need:
    """Bytes that come onto a disk, and the option that names a folder there."""

    option: str
    folder: Path
    bytes: int

    @property
    def free(self) -> int:
        return _free_bytes(self.folder)


def announce_downloads(
    settings: PreparationSettings,
    corpora: Sequence[Corpus],
    tokenizer: Tokenizer,
    out: Path,
    downloads: Path,
    yes: bool,
) -> list[int]:
    """Prints the size of the download; returns how many files of each corpus are read.

    Both are estimates from the sizes of files. What an interrupted preparation has on
    the disk is not needed again. Raises UserError for more than a disk can hold, and
    for a large download without `yes`.
    """
    wanted = wanted_tokens(settings)
    files = list(map(_files_to_read, corpora, wanted))
    read = list(map(_tokens_to_read, files, wanted))
    _say_early_end(settings, read)

    download = sum(_bytes_to_download(own, downloads) for own in files)
    needs = _needs(settings, tokenizer, read, out, downloads, download)
    if download:
        uses = [
            f"{decimal(need.bytes)} of the {decimal(need.free)} free at {need.folder}"
            for need in needs
        ]
        say(
            f"downloads about {decimal(download)} into {downloads}; takes about "
            + listed(uses)
        )

    has_remote = any(source.is_remote for source in settings.sources)
    fewer = "fewer --num-files or fewer --tokens" if has_remote else "fewer --tokens"
    for need in needs:
        if need.bytes > need.free:
            raise UserError(
                f"{need.option} '{need.folder}': about {decimal(need.bytes)} are "
                f"needed and {decimal(need.free)} are free; name a larger disk, or "
                f"{fewer}"
            )
    if download > ASK_ABOVE and not yes:
        raise UserError(
            f"about {decimal(download)} would be downloaded; add --yes (make: YES=1), "
            f"or name {fewer}"
        )
    return [len(own) for own in files]


def _needs(
    settings: PreparationSettings,
    tokenizer: Tokenizer,
    read: Sequence[int],
    out: Path,
    downloads: Path,
    download: int,
) -> list[_Need]:
    """What the disks need; one need where both folders are on the same disk."""
    # A token is in a piece, and in the shards as often as it is repeated.
    size = token_type(tokenizer)().itemsize
    pieces = sum(read) * (size + RECORD_BYTES_PER_TOKEN)
    shards = sum(tokens_to_write(settings, read)) * size
    data = round(max(pieces + shards - bytes_made(out), 0))

    if _existing(out).stat().st_dev == _existing(downloads).stat().st_dev:
        return [_Need("--out", out, data + download)]
    return [_Need("--out", out, data), _Need("--downloads", downloads, download)]


def _say_early_end(settings: PreparationSettings, read: Sequence[int]) -> None:
    """Warns, before hours of work, of a source that ends the mix far too soon."""
    shares = settings.shares()
    if settings.tokens is None or shares is None or len(shares) < 2:
        return

    totals = [
        tokens * source.max_epochs / share
        for tokens, source, share in zip(read, settings.sources, shares, strict=True)
    ]
    total = min(totals)
    if total < settings.tokens / 2:  # sizes tell tokens to a factor of two
        name = settings.sources[totals.index(total)].name
        say(
            f"warning: by the size of its files, source '{name}' ends the mix at about "
            f"{total:,.0f} of {settings.tokens:,} tokens; lower its weight or raise "
            "its max_epochs in the recipe"
        )


def _files_to_read(corpus: Corpus, target: int | None) -> list[InputFile]:
    """The first files of a corpus that hold `target` tokens, by the size of each."""
    if target is None:
        return corpus.files

    files = []
    tokens = 0.0
    for file in corpus.files:
        if tokens >= target:
            break
        files.append(file)
        tokens += file.likely_tokens
    return files


def _bytes_to_download(files: Sequence[InputFile], downloads: Path) -> int:
    missing = 0
    for file in files:
        if file.remote and not (downloads / file.remote.name).exists():
            missing += file.size
    return missing


def _tokens_to_read(files: Sequence[InputFile], target: int | None) -> int:
    available = round(sum(file.likely_tokens for file in files))
    return available if target is None else min(available, target)


def _free_bytes(folder: Path) -> int:
    """Free bytes of the disk that a folder is on, or will be."""
    return shutil.disk_usage(_existing(folder)).free


def _existing(folder: Path) -> Path:
    """The folder, or the first one above it that exists."""
    place = folder.resolve()
    while not place.exists():
        place = place.parent
    return place


class Fetcher:
    """Hands out files of corpora, and fetches the next files until its context ends."""

    def __init__(
        self, corpora: Sequence[Corpus], folder: Path, expected: Sequence[int]
    ) -> None:
        """`expected` are the numbers of files of each corpus that will be read."""
        self._listener: OnRead = lambda count: None
        self._counting = threading.Lock()
        self._downloads = Downloads(folder, self._count)

        # Daemon threads, unlike those of concurrent.futures: none that waits for a
        # silent server holds up Ctrl-C.
        self._pool = ThreadPool(CONNECTIONS)
        self._begun: dict[RemoteFile, AsyncResult[Path]] = {}

        self._ahead: dict[RemoteFile, list[RemoteFile]] = {}
        """Each file with those that are begun when it is asked for."""
        for corpus, count in zip(corpora, expected, strict=True):
            files = corpus.remote_files()
            for number, file in enumerate(files):
                stop = number + 1 + CONNECTIONS
                if number < count:  # no more than was announced, while it is enough
                    stop = max(number + 1, min(stop, count))
                self._ahead[file] = files[number:stop]

    def __enter__(self) -> "Fetcher":
        return self

    def __exit__(self, *error: object) -> None:
        self._downloads.leaving.set()
        self._pool.terminate()

    def get(self, file: InputFile, on_received: OnRead) -> Path | None:
        """Returns a file's path; None where the file is not there within a second.

        `on_received` gets the bytes downloaded, of this file and of others.
        """
        if isinstance(file.origin, Path):
            return file.origin

        self._listener = on_received
        for soon in self._ahead[file.origin]:
            if soon not in self._begun:
                download = self._pool.apply_async(self._downloads.get, [soon])
                self._begun[soon] = download

        try:
            return self._begun[file.origin].get(timeout=1.0)
        except multiprocessing.TimeoutError:
            return None

    def _count(self, count: int) -> None:
        with self._counting:  # several files arrive at a time
            self._listener(count)
