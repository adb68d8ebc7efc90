"""A file over HTTP, by requests: whole under its name or not there, continued where it was cut."""

import hashlib
import logging
import math
import random
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

import requests
import urllib3

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.system import alone, naming, sync
from dualpath_cli.data.hub import FIRST_ANSWER_SECONDS, within
from dualpath_cli.data.rows import decompress, suffixes

log = logging.getLogger(__name__)

ATTEMPTS = 10
"""Tries in a row that bring less than `LEAST_BYTES` before a download is given up: three to five
minutes, or a quarter of an hour."""
FIRST_WAIT_SECONDS = 1.0
TIMEOUT_SECONDS = (20.0, 60.0)  # to connect, and between two arrivals of bytes
LEAST_BYTES = 1 << 16  # in `SLOW_SECONDS`: less is no speed for files of hundreds of megabytes
SLOW_SECONDS = 60.0


class Unavailable(Exception):
    """A file cannot be fetched, now or later; the message is the reason."""


@dataclass(frozen=True)
class RemoteFile:
    """A file at a URL, which never changes, and where it goes."""

    url: str
    name: str  # path below the download folder
    size: int | None = None  # bytes, where known beforehand
    sha256: str | None = None
    token: str | None = field(default=None, repr=False)
    """Bearer token for the URL's host; another host that it redirects to does not get it."""
    most: float = math.inf  # bytes, of a list, which its reader checks

    def __post_init__(self) -> None:
        path = PurePosixPath(self.name)
        if path.is_absolute() or ".." in path.parts or not path.name:
            raise UserError(
                f"'{self.url}' would be stored as '{self.name}', outside the download folder; "
                "check where the list of files comes from"
            )

    def authorise(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self.token:  # a header that is set by hand would give way to an entry of ~/.netrc
            request.headers["Authorization"] = f"Bearer {self.token}"
        return request


class Downloads:
    """Fetches files into a folder, for several threads; what one learns of the network all know."""

    def __init__(self, folder: Path, on_bytes: Callable[[int], None] = lambda count: None) -> None:
        """`on_bytes` hears of bytes that arrive; what comes twice counts twice."""
        self._folder = folder
        self._on_bytes = on_bytes
        self._answered = False  # whether any server has
        self.leaving = threading.Event()  # ends downloads between two arrivals of bytes

    def get(self, file: RemoteFile) -> Path:
        """Fetches a file unless it is there, and returns its path.

        What has arrived stays in `NAME.part` and is continued by the next call, in this process or
        another; of several at a time one fetches and the others wait. Raises Unavailable,
        ConnectionError for trouble that lasted, and OSError where the disk fails.
        """
        path = self._folder / file.name
        part = path.with_name(f"{path.name}.part")
        if _is_there(path, file):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone(path.with_name(f"{path.name}.lock"), path, wait=True):
            if not _is_there(path, file):  # it may have been fetched while this one waited
                self._fetch(file, part)
                sync(part)
                part.replace(path)
        return path

    def _fetch(self, file: RemoteFile, part: Path) -> None:
        """Makes the part the whole file, in as many requests as it takes."""
        failures, furthest, begun = 0, 0, time.monotonic()
        while True:
            try:
                self._receive(file, part, _length(part))
                return
            except _Trouble as error:
                trouble = error
            # Repeated bytes are no progress: else a server without ranges could cut for ever.
            failures = 1 if _length(part) >= furthest + LEAST_BYTES else failures + 1
            furthest = max(furthest, _length(part))
            wait = min(FIRST_WAIT_SECONDS * 2 ** (failures - 1), 60.0) * random.uniform(0.5, 1.0)
            wait = max(wait, min(trouble.retry_after, 300.0))
            if not self._answered and time.monotonic() - begun + wait > FIRST_ANSWER_SECONDS:
                raise ConnectionError(
                    f"{file.url} cannot be reached ({trouble}); check the network, and HTTPS_PROXY "
                    "where one is needed"
                )
            if failures >= ATTEMPTS:
                raise ConnectionError(
                    f"{file.url}: {trouble}, {ATTEMPTS} times in a row; what has arrived is kept"
                )
            if wait > 5.0:
                log.warning("%s: %s; next try in %.0f s", file.url, trouble, wait)
            if self.leaving.wait(wait):
                raise CancelledError

    def _receive(self, file: RemoteFile, part: Path, start: int) -> None:
        """Asks once for the bytes from `start` on; raises _Trouble where not all have come."""
        try:
            if not start or start != file.size:
                with self._ask(file, start) as response:
                    self._append(response, part, start, file.most)
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            final = isinstance(error, requests.TooManyRedirects | ValueError)  # no URL, say
            raise (Unavailable if final else _Trouble)(_reason(error)) from None
        if wrong := _difference(part, file):
            part.unlink()
            # Of a part the beginning may be wrong; a file in one answer will not come better.
            raise _Trouble(wrong) if start else Unavailable(wrong)
        if not _can_be_read(part, file):
            part.unlink()
            raise _Trouble("what came cannot be decompressed: a part, or the page of a login")

    def _ask(self, file: RemoteFile, start: int) -> requests.Response:
        # Lengths and hashes are those of the stored file.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})

        ask = partial(
            requests.get, file.url, headers=headers, auth=file.authorise, stream=True,
            timeout=TIMEOUT_SECONDS,
        )  # fmt: skip
        try:
            response = within(sum(TIMEOUT_SECONDS) if self._answered else FIRST_ANSWER_SECONDS, ask)
        except TimeoutError:
            raise _Trouble("no answer") from None
        self._answered = True
        return response

    def _append(self, response: requests.Response, part: Path, start: int, most: float) -> None:
        status, said = response.status_code, f"{response.status_code} {response.reason}"
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
        continues = status == 206 and span is not None and int(span[1]) == start
        if status == 416 and response.headers.get("Content-Range") == f"bytes */{start}":
            return  # all of it is there: the process ended before giving it its name
        if start and status in {206, 416} and not continues:
            part.unlink()
            raise _Trouble("the server does not continue where the file was cut")
        if status in {408, 425, 429} or status >= 500:
            raise _Trouble(said, response.headers.get("Retry-After", ""))
        if status != 200 and not continues:
            raise Unavailable(said)
        with naming(part), open(part, "ab" if continues else "wb") as out:
            begun, before = time.monotonic(), out.tell()
            # urllib3 raises IncompleteRead where fewer bytes come than were announced.
            while data := response.raw.read1(1 << 16, decode_content=False):
                out.write(data)
                self._on_bytes(len(data))
                if out.tell() > most:
                    part.unlink()
                    raise Unavailable(f"it has more than {most:,} bytes")
                if time.monotonic() > begun + SLOW_SECONDS:
                    if (received := out.tell() - before) < LEAST_BYTES:
                        raise _Trouble(f"{received:,} bytes in {SLOW_SECONDS:.0f} seconds")
                    begun, before = time.monotonic(), out.tell()
                if self.leaving.is_set():
                    raise CancelledError
        if continues and span and _length(part) < int(span[2]):
            raise _Trouble(f"{_length(part):,} of {int(span[2]):,} bytes came")


class _Trouble(Exception):
    """A request ended without the whole file, which another one may bring."""

    def __init__(self, reason: str, retry_after: str = "") -> None:
        super().__init__(reason)
        self.retry_after = 0.0  # seconds that the server asks to wait
        with suppress(urllib3.exceptions.InvalidHeader):
            self.retry_after = urllib3.Retry().parse_retry_after(retry_after)


def _is_there(path: Path, file: RemoteFile) -> bool:
    return path.is_file() and file.size in (None, _length(path))


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _difference(part: Path, file: RemoteFile) -> str | None:
    """Returns how a downloaded file differs from what is known of it."""
    if file.size not in (None, _length(part)):
        return f"{_length(part):,} bytes instead of {file.size:,}"
    if file.sha256 is not None:
        with part.open("rb") as data:
            if hashlib.file_digest(data, "sha256").hexdigest() != file.sha256:
                return f"its sha256 is not {file.sha256}"
    return None


def _can_be_read(part: Path, file: RemoteFile) -> bool:
    """Whether a file of unknown hash can be decompressed, where its name says that it has to be."""
    codec = suffixes(Path(file.name))[1]
    if file.sha256 is not None or file.most < math.inf or not codec:
        return True
    stored = part.open("rb", buffering=0)
    with suppress(OSError), decompress(stored, Path(file.name)) as stream:
        while stream.read(1 << 20):
            pass
        return True
    return False


def _reason(error: BaseException) -> str:
    """Returns the innermost cause; requests wraps it three times."""
    while error.__context__ is not None:
        error = error.__context__
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0]
