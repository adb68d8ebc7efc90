"""Files over HTTP: whole under their names or not there, and ahead of their reader."""

import hashlib
import itertools
import logging
import math
import random
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from multiprocessing.pool import AsyncResult, ThreadPool
from pathlib import Path

import requests
import urllib3
from rich.filesize import decimal

from data_prep.corpora import FILE_BYTES, FILE_TOKENS, Corpus, InputFile, RemoteFile
from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import replacing
from dualpath_cli.base.locks import exclusive
from dualpath_cli.base.output import say
from dualpath_cli.data.hub import FIRST_ANSWER_SECONDS
from dualpath_cli.data.rows import DAMAGED, OnRead, decompress, is_known, suffixes

log = logging.getLogger(__name__)

# tries before a download is given up: three to five minutes, or a quarter of an hour
ATTEMPTS = 10
FIRST_WAIT_SECONDS = 1.0
TIMEOUT_SECONDS = 60.0  # to connect, and between two arrivals of bytes
# in `SLOW_SECONDS`: less is no speed for files of hundreds of megabytes
LEAST_BYTES = 1 << 16
SLOW_SECONDS = 60.0


class Unavailable(Exception):
    """A file cannot be fetched, now or later; the message is the reason."""


class Downloads:
    """Fetches files into a folder, for several threads that share what is known of the
    network."""

    def __init__(
        self, folder: Path, on_bytes: Callable[[int], None] = lambda count: None
    ) -> None:
        """`on_bytes` gets the number of bytes that arrived; repeated bytes count
        again."""
        self._folder = folder
        self._on_bytes = on_bytes
        self._answered = False  # whether any server has
        self.leaving = threading.Event()  # ends downloads between two arrivals of bytes

    def get(self, file: RemoteFile) -> Path:
        """Fetches a file unless it is there, and returns its path.

        Of several calls at a time, in any process, one fetches and the others wait.
        Raises Unavailable, ConnectionError for trouble that lasted, and OSError where
        the disk fails.
        """
        path = self._folder / file.name
        if not _is_there(path, file):
            path.parent.mkdir(parents=True, exist_ok=True)
            with exclusive(path.with_name(f"{path.name}.lock"), path, wait=True):
                # it may have been fetched while this one waited
                if not _is_there(path, file):
                    self._fetch(file, path)
        return path

    def _fetch(self, file: RemoteFile, path: Path) -> None:
        begun = time.monotonic()
        for attempt in itertools.count(1):
            try:
                with replacing(path) as partial:
                    self._receive(file, partial)
                return
            except _Trouble as error:
                trouble = error
            wait = min(FIRST_WAIT_SECONDS * 2 ** (attempt - 1), 60.0) * random.uniform(
                0.5, 1.0
            )
            wait = max(wait, min(trouble.retry_after, 300.0))
            if (
                not self._answered
                and time.monotonic() - begun + wait > FIRST_ANSWER_SECONDS
            ):
                raise ConnectionError(
                    f"{file.url} cannot be reached ({trouble}); check the network, and "
                    "HTTPS_PROXY where one is needed"
                )
            if attempt == ATTEMPTS:
                raise ConnectionError(
                    f"{file.url}: {trouble}, {ATTEMPTS} times in a row"
                )
            if wait > 5.0:
                log.warning("%s: %s; next try in %.0f s", file.url, trouble, wait)
            if self.leaving.wait(wait):
                raise CancelledError

    def _receive(self, file: RemoteFile, partial: Path) -> None:
        """Asks once for the file; raises _Trouble where another request may bring
        more."""
        seconds = TIMEOUT_SECONDS if self._answered else FIRST_ANSWER_SECONDS
        # As stored: sizes and hashes are those of the stored bytes.
        as_stored = {"Accept-Encoding": "identity"}
        token = _Bearer(file.token) if file.token else None
        try:
            with (
                requests.get(
                    file.url,
                    headers=as_stored,
                    auth=token,
                    timeout=seconds,
                    stream=True,
                    hooks={"response": _pass_over_redirect},
                ) as answer,
                partial.open("wb") as sink,
            ):
                self._answered = True
                said = f"{answer.status_code} {answer.reason}"
                if answer.status_code in {408, 425, 429} or answer.status_code >= 500:
                    raise _Trouble(said, answer.headers.get("Retry-After", ""))
                if not answer.ok:
                    raise Unavailable(said)
                _check_size(answer.raw.length_remaining or 0, file)
                since, received, written = time.monotonic(), 0, 0
                # As soon as there are bytes: a read of a whole block may take hours.
                while block := answer.raw.read1(1 << 16, decode_content=False):
                    if self.leaving.is_set():
                        raise CancelledError
                    written += len(block)
                    _check_size(written, file)
                    sink.write(block)
                    self._on_bytes(len(block))
                    received += len(block)
                    if time.monotonic() >= since + SLOW_SECONDS:
                        if received < LEAST_BYTES:
                            raise _Trouble(
                                f"{received:,} bytes in {SLOW_SECONDS:.0f} seconds"
                            )
                        since, received = time.monotonic(), 0
        except (requests.TooManyRedirects, requests.exceptions.InvalidURL) as error:
            raise Unavailable(f"{type(error).__name__}: {error}") from None
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            cause = error.args[0] if error.args else error
            raise _Trouble(str(getattr(cause, "reason", cause))) from None
        if wrong := _difference(partial, file):
            raise Unavailable(wrong)
        if not _can_be_read(partial, file):
            raise _Trouble(
                "the answer cannot be decompressed: a part of the file, or a login page"
            )


def _check_size(count: int, file: RemoteFile) -> None:
    """Raises Unavailable for more bytes than a file has, or may have."""
    most = file.most if file.size is None else file.size
    if count > most:
        known = "that are accepted" if file.size is None else "that it has"
        raise Unavailable(f"the answer has more than the {most:,} bytes {known}")


def _pass_over_redirect(answer: requests.Response, **_: object) -> None:
    """Closes a redirect: requests would read its body to the end, which may not
    come."""
    if answer.is_redirect:
        answer.close()


class _Trouble(Exception):
    """A request ended without the whole file, which another request may bring."""

    def __init__(self, reason: str, retry_after: str = "") -> None:
        super().__init__(reason)
        self.retry_after = float(retry_after) if retry_after.isdecimal() else 0.0


class _Bearer(requests.auth.AuthBase):
    """A token for one host, in place of an entry of ~/.netrc."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _is_there(path: Path, file: RemoteFile) -> bool:
    return path.is_file() and file.size in (None, path.stat().st_size)


def _difference(partial: Path, file: RemoteFile) -> str | None:
    """Returns how a downloaded file differs from its known size and hash."""
    size = partial.stat().st_size
    if file.size not in (None, size):
        return f"{size:,} bytes instead of {file.size:,}"
    if file.sha256 is not None:
        with partial.open("rb") as data:
            if hashlib.file_digest(data, "sha256").hexdigest() != file.sha256:
                return f"its sha256 is not {file.sha256}"
    return None


def _can_be_read(partial: Path, file: RemoteFile) -> bool:
    """Whether a compressed file of rows of unknown size and hash can be
    decompressed."""
    # of a list of files, which its reader checks, the ending is not known
    name = Path(file.name)
    if (
        file.size is not None
        or file.sha256
        or not (suffixes(name)[1] and is_known(name))
    ):
        return True
    stored = partial.open("rb", buffering=0)
    with suppress(*DAMAGED), decompress(stored, name) as stream:
        while stream.read(1 << 20):
            pass
        return True
    return False


# What will be downloaded, and files fetched ahead of their reader

ASK_ABOVE = 20 * 10**9  # bytes to download that need --yes

TOKENS_PER_BYTE = FILE_TOKENS / FILE_BYTES
"""Tokens in a compressed byte of Nemotron-CC; assumed for other corpora, too."""

DISK_BYTES_PER_TOKEN = 5.0
"""Two bytes in pieces, two in shards, and the records of each document."""

CONNECTIONS = 4  # files that are fetched at a time, and ahead of their reader


def announce(
    corpora: Sequence[Corpus],
    wanted: Sequence[int | None],
    out: Path,
    downloads: Path,
    yes: bool,
) -> list[int]:
    """Prints the size of the download; returns the number of files of each corpus that
    it reads.

    Both are estimates from the sizes of files. `wanted` are tokens of each corpus, None
    for all. Raises UserError for more than the disk can hold, and for a large download
    without `yes`.
    """
    counts, download, tokens = [], 0, 0.0
    for corpus, target in zip(corpora, wanted, strict=True):
        files = corpus.files
        if target is not None:
            files = files[
                : math.ceil(target / (max(files[0].size, 1) * TOKENS_PER_BYTE))
            ]
        counts.append(len(files))
        remote = [
            (file.origin, file.size)
            for file in files
            if not isinstance(file.origin, Path)
        ]
        download += sum(
            size for file, size in remote if not (downloads / file.name).exists()
        )
        held = sum(file.size for file in files) * TOKENS_PER_BYTE
        tokens += held if target is None else min(held, target)
    disk = round(download + tokens * DISK_BYTES_PER_TOKEN)
    existing = next(
        path for path in (out.resolve(), *out.resolve().parents) if path.exists()
    )
    free = shutil.disk_usage(existing).free
    if download:
        say(
            f"downloads about {decimal(download)} into {downloads} and uses about "
            f"{decimal(disk)} of the disk in all; {decimal(free)} are free"
        )
    if disk > free:
        raise UserError(
            f"--out '{out}': about {decimal(disk)} are needed and {decimal(free)} are "
            "free; name a larger disk, fewer --num-files or fewer --tokens"
        )
    if download > ASK_ABOVE and not yes:
        raise UserError(
            f"about {decimal(download)} would be downloaded; add --yes (make: YES=1), "
            "or name fewer --num-files or fewer --tokens"
        )
    return counts


class Fetcher:
    """Gives out files of corpora, and fetches the next files until its context ends."""

    def __init__(
        self, corpora: Sequence[Corpus], folder: Path, expected: Sequence[int]
    ) -> None:
        """`expected` are the numbers of files of each corpus that will be read."""
        self._listener: OnRead = lambda count: None
        self._counting = threading.Lock()
        self._downloads = Downloads(folder, self._received)
        # Daemon threads, unlike those of concurrent.futures: none that waits for a
        # silent server holds up Ctrl-C.
        self._pool = ThreadPool(CONNECTIONS)
        self._begun: dict[RemoteFile, AsyncResult[Path]] = {}
        self._ahead: dict[RemoteFile, list[RemoteFile]] = {}
        for corpus, count in zip(corpora, expected, strict=True):
            files = [
                file.origin
                for file in corpus.files
                if not isinstance(file.origin, Path)
            ]
            for number, file in enumerate(files):
                self._ahead[file] = files[
                    number : number + 1 + min(CONNECTIONS, count - 1)
                ]

    def __enter__(self) -> "Fetcher":
        return self

    def __exit__(self, *error: object) -> None:
        self._downloads.leaving.set()
        self._pool.terminate()

    def get(self, file: InputFile, on_received: OnRead) -> Path:
        """Returns a file's path, once it is there; `on_received` gets the bytes
        downloaded."""
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
