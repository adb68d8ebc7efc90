"""Files over HTTP, whole or not there: one, or several fetched ahead of their reader."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import requests

from data_prep.download.part import only_holder
from data_prep.download.transfer import (
    HEADERS,
    TIMEOUT_SECONDS,
    Bearer,
    OnBytes,
    RemoteFile,
    Unavailable,
    Unreachable,
    content_length,
    fetch,
)

__all__ = [
    "Downloads",
    "OnBytes",
    "RemoteFile",
    "Unavailable",
    "Unreachable",
    "download",
    "with_sizes",
]

CONNECTIONS = 4
"""Files that are fetched at a time."""

_SIZE_CONNECTIONS = 8
_LEAVE_SECONDS = 1.0


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
    with only_holder(path.with_name(path.name + ".part"), sleep) as part:
        if not _is_complete(path, file):  # it may have been fetched while this one waited
            if session is None:
                with requests.Session() as session:
                    fetch(file, part, session, on_bytes, sleep)
            else:
                fetch(file, part, session, on_bytes, sleep)
            part.become(path)
    return path


def _is_complete(path: Path, file: RemoteFile) -> bool:
    return path.is_file() and file.size in (None, path.stat().st_size)


def with_sizes(files: Iterable[RemoteFile]) -> list[RemoteFile]:
    """Returns the files with the sizes that their servers tell; unknown where one does not."""
    # When a server does not answer at all, the other requests need not wait for it as well.
    silent = threading.Event()

    def with_size(file: RemoteFile) -> RemoteFile:
        if file.size is not None or silent.is_set():
            return file
        try:
            response = requests.head(
                file.url,
                headers=HEADERS,
                auth=Bearer(file.token),
                timeout=TIMEOUT_SECONDS,
                allow_redirects=True,
            )
        except (requests.ConnectionError, requests.Timeout):
            silent.set()
            return file
        except requests.RequestException:
            return file
        return replace(file, size=content_length(response)) if response.ok else file

    pool = ThreadPoolExecutor(_SIZE_CONNECTIONS)
    try:
        return list(pool.map(with_size, files))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class Downloads:
    """Fetches files in their order, up to `ahead` beyond the furthest one asked for.

    A context manager: fetching begins on entering and ends, between two arrivals of bytes, on
    leaving; what is incomplete then is continued another time. `on_bytes` is called by one thread
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
        deadline = time.monotonic() + _LEAVE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def get(self, file: RemoteFile) -> Path:
        """Waits until a file is there and returns its path; raises what its download raised."""
        index = self._index[file]
        with self._changed:
            self._furthest = max(self._furthest, index)
            self._changed.notify_all()
            self._changed.wait_for(lambda: index in self._results)
            result = self._results[index]
        if isinstance(result, Exception):
            raise result
        return result

    def _work(self) -> None:
        with requests.Session() as session:
            while (index := self._claim()) is not None:
                result: Path | Exception
                try:
                    result = download(
                        self._files[index],
                        self._folder,
                        self._count,
                        session=session,
                        sleep=self._wait,
                    )
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
