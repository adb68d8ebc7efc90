"""Several files over HTTP, fetched in their order ahead of their reader."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import requests

from data_prep.download.remote_file import RemoteFile, first_contact
from data_prep.download.transfer import OnBytes, download

CONNECTIONS = 4
"""Files that are fetched at a time."""

_LEAVE_SECONDS = 1.0


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
        deadline = time.monotonic() + _LEAVE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def get(self, file: RemoteFile) -> Path:
        """Waits until a file is there and returns its path; raises what its download raised.

        Raises Unreachable where a first answer of any server is waited for in vain.
        """
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
