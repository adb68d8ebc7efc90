"""A file over HTTP, by fsspec: whole under its name or not there."""

import hashlib
import itertools
import logging
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import aiohttp
import fsspec
from fsspec.callbacks import Callback

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.system import alone, replacing
from dualpath_cli.data.hub import FIRST_ANSWER_SECONDS
from dualpath_cli.data.rows import decompress, is_known, suffixes

log = logging.getLogger(__name__)

ATTEMPTS = 10  # tries before a download is given up: three to five minutes, or a quarter of an hour
FIRST_WAIT_SECONDS = 1.0
TIMEOUT_SECONDS = 60.0  # to connect, and between two arrivals of bytes
LEAST_BYTES = 1 << 16  # in `SLOW_SECONDS`: less is no speed for files of hundreds of megabytes
SLOW_SECONDS = 60.0


class Unavailable(Exception):
    """A file cannot be fetched, now or later; the message is the reason."""


@dataclass(frozen=True)
class RemoteFile:
    """A file at a URL, which never changes, and its place below the download folder."""

    url: str
    name: str
    size: int | None = None  # bytes, where known beforehand
    sha256: str | None = None
    token: str | None = field(default=None, repr=False)
    """Bearer token for the URL's host; a host that the URL redirects to does not get it."""

    def __post_init__(self) -> None:
        path = PurePosixPath(self.name)
        if path.is_absolute() or ".." in path.parts or not path.name:
            raise UserError(
                f"'{self.url}' would be stored as '{self.name}', outside the download folder; "
                "check where the list of files comes from"
            )


class Downloads:
    """Fetches files into a folder, for several threads that share what is known of the network."""

    def __init__(self, folder: Path, on_bytes: Callable[[int], None] = lambda count: None) -> None:
        """`on_bytes` gets the number of bytes that arrived; repeated bytes count again."""
        self._folder = folder
        self._on_bytes = on_bytes
        self._answered = False  # whether any server has
        self.leaving = threading.Event()  # ends downloads between two arrivals of bytes

    def get(self, file: RemoteFile) -> Path:
        """Fetches a file unless it is there, and returns its path.

        Of several calls at a time, in any process, one fetches and the others wait. Raises
        Unavailable, ConnectionError for trouble that lasted, and OSError where the disk fails.
        """
        path = self._folder / file.name
        if not _is_there(path, file):
            path.parent.mkdir(parents=True, exist_ok=True)
            with alone(path.with_name(f"{path.name}.lock"), path, wait=True):
                if not _is_there(path, file):  # it may have been fetched while this one waited
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
            wait = min(FIRST_WAIT_SECONDS * 2 ** (attempt - 1), 60.0) * random.uniform(0.5, 1.0)
            wait = max(wait, min(trouble.retry_after, 300.0))
            if not self._answered and time.monotonic() - begun + wait > FIRST_ANSWER_SECONDS:
                raise ConnectionError(
                    f"{file.url} cannot be reached ({trouble}); check the network, and HTTPS_PROXY "
                    "where one is needed"
                )
            if attempt == ATTEMPTS:
                raise ConnectionError(f"{file.url}: {trouble}, {ATTEMPTS} times in a row")
            if wait > 5.0:
                log.warning("%s: %s; next try in %.0f s", file.url, trouble, wait)
            if self.leaving.wait(wait):
                raise CancelledError

    def _receive(self, file: RemoteFile, partial: Path) -> None:
        """Asks once for the file; raises _Trouble where another request may bring more."""
        seconds = TIMEOUT_SECONDS if self._answered else FIRST_ANSWER_SECONDS
        timeout = aiohttp.ClientTimeout(connect=seconds, sock_read=seconds)
        # By the environment's proxies, and as stored: lengths and hashes are those of stored bytes.
        client = {"trust_env": True, "auto_decompress": False, "timeout": timeout}
        asked: dict[str, Any] = {"headers": {"Accept-Encoding": "identity"}}
        if file.token:
            asked["auth"] = _Bearer(file.token)
        try:
            web = fsspec.filesystem("http", client_kwargs=client)  # one for equal settings
            web.get_file(file.url, str(partial), callback=_Arrivals(self), **asked)
        except FileNotFoundError:
            raise Unavailable("404 Not Found") from None
        except (aiohttp.TooManyRedirects, aiohttp.InvalidURL) as error:
            raise Unavailable(f"{type(error).__name__}: {error}") from None
        except aiohttp.ClientResponseError as error:
            said = f"{error.status} {error.message}"
            if error.status in {408, 425, 429} or error.status >= 500:
                again = error.headers.get("Retry-After", "") if error.headers else ""
                raise _Trouble(said, again) from None
            raise Unavailable(said) from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _Trouble(str(error).partition("\n")[0] or "no answer") from None
        if wrong := _difference(partial, file):
            raise Unavailable(wrong)
        if not _can_be_read(partial, file):
            raise _Trouble("the answer cannot be decompressed: a part of the file, or a login page")


class _Arrivals(Callback):
    """Hears of the beginning and the bytes of one answer."""

    def __init__(self, downloads: Downloads) -> None:
        super().__init__()
        self._downloads = downloads
        self._begun, self._received = time.monotonic(), 0

    def set_size(self, size: int | None) -> None:
        self._downloads._answered = True
        self._begun = time.monotonic()

    def relative_update(self, inc: int = 1) -> None:
        self._downloads._on_bytes(inc)
        if self._downloads.leaving.is_set():
            raise CancelledError
        self._received += inc
        if time.monotonic() >= self._begun + SLOW_SECONDS:
            if self._received < LEAST_BYTES:
                raise _Trouble(f"{self._received:,} bytes in {SLOW_SECONDS:.0f} seconds")
            self._begun, self._received = time.monotonic(), 0


class _Trouble(Exception):
    """A request ended without the whole file, which another request may bring."""

    def __init__(self, reason: str, retry_after: str = "") -> None:
        super().__init__(reason)
        self.retry_after = float(retry_after) if retry_after.isdecimal() else 0.0


class _Bearer(aiohttp.BasicAuth):
    """A token; aiohttp refuses a header that is set by hand beside an entry of ~/.netrc."""

    def encode(self) -> str:
        return f"Bearer {self.login}"


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
    """Whether a compressed file of rows of unknown size and hash can be decompressed."""
    name = Path(file.name)  # of a list of files, which its reader checks, the ending is not known
    if file.size is not None or file.sha256 or not (suffixes(name)[1] and is_known(name)):
        return True
    stored = partial.open("rb", buffering=0)
    with suppress(OSError), decompress(stored, name) as stream:
        while stream.read(1 << 20):
            pass
        return True
    return False
