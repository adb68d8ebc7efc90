"""Files over HTTP, whole or not there: ranges, versions, lengths, hashes, patience."""

import fcntl
import hashlib
import json
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from multiprocessing import TimeoutError
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import requests
import urllib3

from data_prep.download import RemoteFile, Unavailable, Unreachable, first_contact
from dualpath_cli.system import sync, write_text


class Part:
    """The beginning of a file's version, whose `validator` and `total` are in `NAME.part.json`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._notes = path.with_name(path.name + ".json")
        self.validator: str | None = None
        self.total: int | None = None
        if self.length:
            with suppress(OSError, ValueError, KeyError, TypeError):
                notes = json.loads(self._notes.read_text())
                self.validator, self.total = notes["validator"], notes["total"]

    @property
    def length(self) -> int:
        return os.fstat(self._descriptor).st_size

    def begin(self, validator: str | None, total: int | None) -> None:
        """Starts from nothing with another version."""
        self.discard()
        # Before the first byte: a part is never taken for one of another version.
        write_text(self._notes, json.dumps({"validator": validator, "total": total}))
        self.validator, self.total = validator, total

    def discard(self) -> None:
        os.ftruncate(self._descriptor, 0)
        self._notes.unlink(missing_ok=True)
        self.validator = self.total = None

    def append(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.pwrite(self._descriptor, left, self.length) :]
        except OSError as error:  # a full disk, say: it comes without the name
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def sha256(self) -> str:
        with self._path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def become(self, path: Path) -> None:
        os.fsync(self._descriptor)
        os.replace(self._path, path)
        self._notes.unlink(missing_ok=True)
        sync(path.parent)


@contextmanager
def only_holder(path: Path, sleep: Callable[[float], object]) -> Iterator[Part]:
    """Opens and locks a part, once no other process or thread holds it; an empty one goes."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if _lock(descriptor, path):
                part = Part(path, descriptor)
                try:
                    yield part
                finally:
                    if not part.length and _is_at(descriptor, path):
                        part.discard()
                        path.unlink()
                return
        finally:
            # Closing alone would keep the lock while a forked child has the descriptor too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)
        sleep(1.0)


def _lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    # The last holder may have given the file its final name since it was opened.
    return _is_at(descriptor, path)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


OnBytes = Callable[[int], None]
"""Called with the number of bytes received since the last call; what comes twice counts twice."""

ATTEMPTS = 10
"""Tries that bring nothing new before a file counts as unreachable: three to five minutes."""
FIRST_WAIT_SECONDS = 1.0
TIMEOUT_SECONDS = (20.0, 60.0)  # to connect, and between two arrivals of bytes
HEADERS = {"Accept-Encoding": "identity"}
"""Of every request: lengths and hashes are those of the stored file."""


log = logging.getLogger(__name__)


class _Interrupted(Exception):
    """A request ended without the whole file; the message is the reason."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class _WrongContent(Exception):
    """The server sent another file than the requested one."""


def _bearer(token: str | None) -> Callable[[requests.PreparedRequest], requests.PreparedRequest]:
    # A header that is set by hand would give way to an entry of ~/.netrc.
    def authorised(request: requests.PreparedRequest) -> requests.PreparedRequest:
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        return request

    return authorised


def download(
    file: RemoteFile,
    folder: Path,
    on_bytes: OnBytes = lambda count: None,
    *,
    session: requests.Session | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> Path:
    """Fetches a file unless it is there, and returns its path, `folder / file.name`.

    That name appears only when the file is complete, its length and hash right where known; it is
    then trusted, as long as its length is the one of `file`. What has arrived stays in `NAME.part`
    and is continued by the next call, in this process or another; of several at a time one fetches
    and the others wait. Raises Unavailable, Unreachable, and OSError where the disk fails.
    """
    path = folder / file.name
    if _is_complete(path, file):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)

    def wait(seconds: float) -> None:
        first_contact.made = True  # as far as is known: another process is fetching this file
        sleep(seconds)

    with only_holder(path.with_name(path.name + ".part"), wait) as part:
        if not _is_complete(path, file):  # it may have been fetched while this one waited
            with nullcontext(session) if session else requests.Session() as connection:
                _fetch(file, part, connection, on_bytes, sleep)
            part.become(path)
    return path


def _is_complete(path: Path, file: RemoteFile) -> bool:
    return path.is_file() and file.size in (None, path.stat().st_size)


def _fetch(
    file: RemoteFile,
    part: Part,
    session: requests.Session,
    on_bytes: OnBytes,
    sleep: Callable[[float], object],
) -> None:
    """Makes the part the whole file, in as many requests as it takes."""
    first_contact.made |= part.length > 0  # there was a network not long ago
    failures, furthest, anew = 0, part.length, False
    while True:
        try:
            _attempt(file, part, session, on_bytes)
            return
        except _WrongContent as error:
            part.discard()
            if anew:
                raise Unavailable(str(error)) from None
            anew, furthest = True, 0
            continue
        except _Interrupted as error:
            interruption = error
        except (requests.ConnectionError, requests.Timeout, urllib3.exceptions.HTTPError) as error:
            interruption = _Interrupted(_reason(error))
        except requests.RequestException as error:
            raise Unavailable(_reason(error)) from None
        first_contact.trouble = str(interruption)
        # Repeated bytes are no progress: a server that ignores ranges and always cuts at the same
        # place would be asked for ever.
        failures = 1 if part.length > furthest else failures + 1
        furthest = max(furthest, part.length)
        if failures == ATTEMPTS:
            raise Unreachable(
                f"{file.url}: {interruption}, {ATTEMPTS} times in a row; what has arrived is kept, "
                "run the same command again to continue"
            )
        wait = min(FIRST_WAIT_SECONDS * 2 ** (failures - 1), 60.0)
        wait *= random.uniform(0.5, 1.0)
        wait = max(wait, min(interruption.retry_after, 300.0))
        if wait > 5.0:
            log.warning("%s: %s; next try in %.0f s", file.url, interruption, wait)
        sleep(wait)


def content_length(response: requests.Response) -> int | None:
    """Returns the length of the answer's body; None if it has no Content-Length."""
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() else None


def _attempt(file: RemoteFile, part: Part, session: requests.Session, on_bytes: OnBytes) -> None:
    if part.validator is None and file.sha256 is None:
        part.discard()  # nothing could tell a part of an older version
    if not part.length or part.length != part.total:
        _receive(file, part, session, on_bytes)
    if file.size is not None and part.length != file.size:
        raise _WrongContent(f"{part.length:,} bytes instead of {file.size:,}")
    if file.sha256 is not None and part.sha256() != file.sha256:
        raise _WrongContent(f"its sha256 is not {file.sha256}")


def _receive(file: RemoteFile, part: Part, session: requests.Session, on_bytes: OnBytes) -> None:
    headers = dict(HEADERS)
    if part.length:
        headers["Range"] = f"bytes={part.length}-"
        if part.validator:
            headers["If-Range"] = part.validator
    with session.get(
        file.url, headers=headers, auth=_bearer(file.token), stream=True, timeout=TIMEOUT_SECONDS
    ) as response:
        first_contact.made = True
        status = response.status_code
        if status == 200:
            total = content_length(response)
            if file.size is not None and total not in (None, file.size):
                raise _WrongContent(f"{total:,} bytes instead of {file.size:,}")
            part.begin(_validator(response), total)
        elif status in (206, 416) and part.length:
            if status == 416 or not _continues(response, part):
                part.discard()
                raise _Interrupted("the server does not continue where the file was cut")
        elif status in {408, 425, 429} or status >= 500:
            raise _Interrupted(f"{status} {response.reason}", _retry_after(response))
        else:
            raise Unavailable(f"{status} {response.reason}")
        for data in response.raw.stream(1 << 16, decode_content=False):
            part.append(data)
            on_bytes(len(data))
    if part.total is not None and part.length < part.total:
        raise _Interrupted(f"cut after {part.length:,} of {part.total:,} bytes")


def _validator(response: requests.Response) -> str | None:
    etag = response.headers.get("ETag")
    if etag and not etag.startswith("W/"):  # weak ones do not promise equal bytes
        return etag
    return response.headers.get("Last-Modified")


def _continues(response: requests.Response, part: Part) -> bool:
    """Tells whether a 206 is the rest of this part, of the same version."""
    match = re.fullmatch(
        r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", "").strip()
    )
    return (
        match is not None
        and int(match[1]) == part.length
        and (part.total is None or match[2] in ("*", str(part.total)))
        and _validator(response) in (None, part.validator)
    )


def _retry_after(response: requests.Response) -> float:
    """Returns the seconds that the server asks to wait: a number, or a date."""
    try:
        return urllib3.Retry().parse_retry_after(response.headers.get("Retry-After", ""))
    except urllib3.exceptions.InvalidHeader:
        return 0.0


def _reason(error: BaseException) -> str:
    """Returns the innermost cause; requests wraps it three times."""
    while error.__context__ is not None:
        error = error.__context__
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0]


def with_sizes(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """Returns the files with the sizes that their servers tell; unknown where one does not."""
    # When a server does not answer at all, the other requests need not wait for it as well.
    silent = threading.Event()

    def with_size(file: RemoteFile) -> RemoteFile:
        if file.size is not None or silent.is_set():
            return file
        try:
            way: dict[str, Any] = {"auth": _bearer(file.token), "timeout": TIMEOUT_SECONDS}
            response = requests.head(file.url, headers=HEADERS, allow_redirects=True, **way)
        except requests.RequestException as error:
            if isinstance(error, requests.ConnectionError | requests.Timeout):
                silent.set()
            return file
        first_contact.made = True
        return replace(file, size=content_length(response)) if response.ok else file

    # Unlike an executor's, the threads of this pool do not hold up the end of the process.
    with ThreadPool(8) as pool:
        sized = pool.map_async(with_size, files, chunksize=1)
        try:
            return sized.get(first_contact.seconds)
        except TimeoutError:
            first_contact.check(files[0].url)
            return sized.get()


CONNECTIONS = 4  # files that are fetched at a time


class Downloads:
    """Fetches files in their order, up to `ahead` beyond the furthest one asked for.

    A context manager: fetching begins on entering and ends, between two arrivals of bytes, on
    leaving; an incomplete one is continued another time. `on_bytes` is called by one thread
    at a time.
    """

    def __init__(
        self,
        files: Sequence[RemoteFile],
        folder: Path,
        on_bytes: OnBytes = lambda count: None,
        *,
        connections: int = CONNECTIONS,
        ahead: int = CONNECTIONS,
    ) -> None:
        self._files = list(dict.fromkeys(files))
        self._index = {file: index for index, file in enumerate(self._files)}
        self._folder = folder
        self._on_bytes = on_bytes
        self._ahead = ahead
        self._next = 0
        self._furthest = -1
        self._results: dict[int, Path | Exception] = {}
        self._changed = threading.Condition()
        self._counting = threading.Lock()
        self._leaving = threading.Event()
        # Daemons: one that waits for a silent server must not hold up the end of the process.
        self._threads = [
            threading.Thread(target=self._work, daemon=True)
            for _ in range(min(connections, len(self._files)))
        ]

    def __enter__(self) -> "Downloads":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._leaving.set()
        with self._changed:
            self._changed.notify_all()
        deadline = time.monotonic() + 1.0
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def get(self, file: RemoteFile) -> Path:
        """Waits until a file is there and returns its path; raises what its download raised."""
        index = self._index[file]

        def is_done() -> bool:
            return index in self._results

        with self._changed:
            self._furthest = max(self._furthest, index)
            self._changed.notify_all()
            if not self._changed.wait_for(is_done, first_contact.seconds):
                first_contact.check(file.url)
                self._changed.wait_for(is_done)
            result = self._results[index]
        if isinstance(result, Exception):
            raise result
        return result

    def _work(self) -> None:
        with requests.Session() as session:
            while (index := self._claim()) is not None:
                result: Path | Exception
                try:
                    way: dict[str, Any] = {"session": session, "sleep": self._wait}
                    result = download(self._files[index], self._folder, self._count, **way)
                except _Leaving:
                    return
                except Exception as error:
                    result = error
                with self._changed:
                    self._results[index] = result
                    self._changed.notify_all()

    def _claim(self) -> int | None:
        """Waits until another file may be fetched and returns its index, or None at the end."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._leaving.is_set()
                    or self._next == len(self._files)
                    or self._next <= self._furthest + self._ahead
                )
            )
            if self._leaving.is_set() or self._next == len(self._files):
                return None
            self._next += 1
            return self._next - 1

    def _count(self, count: int) -> None:
        if self._leaving.is_set():
            raise _Leaving
        with self._counting:
            self._on_bytes(count)

    def _wait(self, seconds: float) -> None:
        if self._leaving.wait(seconds):
            raise _Leaving


class _Leaving(Exception):
    """Ends a download between two arrivals of bytes."""
