"""Downloads: one file over HTTP, whole under its name or not there.

`requests` follows redirects, and `urllib3` reads the body. Neither bounds the bytes of
an answer or its slowness, checks a hash, ends between two arrivals of bytes, or asks
again for a body that was cut: that is done here.
"""

import hashlib
import itertools
import logging
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import requests
import urllib3

from data_prep.input_files import RemoteFile
from dualpath_cli.base.files import replacing
from dualpath_cli.base.locks import exclusive
from dualpath_cli.data.hub import FIRST_ANSWER_SECONDS
from dualpath_cli.data.rows import DAMAGED, decompress, is_known, suffixes

log = logging.getLogger(__name__)

ATTEMPTS = 10
"""Tries before a download is given up: three to five minutes, or a quarter of an hour
where the server asks for longer pauses."""
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0
LONGEST_RETRY_AFTER = 300.0  # seconds that a server may ask for
WARN_ABOVE_SECONDS = 5.0  # of a pause
TIMEOUT_SECONDS = 60.0  # to connect, and between two arrivals of bytes

LEAST_BYTES = 1 << 16
"""Bytes in `SLOW_SECONDS`: fewer are too slow for files of hundreds of megabytes."""
SLOW_SECONDS = 60.0

_BLOCK_BYTES = 1 << 16
_ABSENT = (404, 410)
"""Statuses of a file that is not there. Others may pass: Common Crawl says 403 after
too many requests, and tokens expire."""


class Unavailable(Exception):
    """A file is not there, or longer than any; the message is the reason."""


class _Interrupted(Exception):
    """A request ended without the whole file, which another request may bring."""

    def __init__(self, reason: str, retry_after: str = "") -> None:
        super().__init__(reason)
        self.retry_after = float(retry_after) if retry_after.isdecimal() else 0.0


class Downloads:
    """Fetches files into a folder, for several threads.

    They share the knowledge whether any server has answered yet.
    """

    def __init__(
        self, folder: Path, on_bytes: Callable[[int], None] = lambda count: None
    ) -> None:
        """`on_bytes` gets the number of bytes that arrived.

        Bytes that arrive again count again.
        """
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
        if _is_there(path, file):
            return path

        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f"{path.name}.lock")
        with exclusive(lock, path, wait=True):
            # Another process may have fetched it while this one waited.
            if not _is_there(path, file):
                self._fetch(file, path)
        return path

    def _fetch(self, file: RemoteFile, path: Path) -> None:
        """Asks for a file until it is whole, with pauses that become longer."""
        begun = time.monotonic()
        for attempt in itertools.count(1):
            try:
                with replacing(path) as partial:
                    self._receive(file, partial)
                    _check_content(partial, file)
                return
            except _Interrupted as error:
                trouble = error

            wait = _pause_seconds(attempt, trouble)
            until_next = time.monotonic() - begun + wait
            if not self._answered and until_next > FIRST_ANSWER_SECONDS:
                raise ConnectionError(
                    f"{file.url} cannot be reached ({trouble}); check the network, and "
                    "HTTPS_PROXY where one is needed"
                )
            if attempt == ATTEMPTS:
                raise ConnectionError(
                    f"{file.url}: {trouble}, {ATTEMPTS} times in a row"
                )

            if wait > WARN_ABOVE_SECONDS:
                log.warning("%s: %s; next try in %.0f s", file.url, trouble, wait)
            if self.leaving.wait(wait):
                raise CancelledError

    def _receive(self, file: RemoteFile, partial: Path) -> None:
        """Asks once for a file and writes its bytes as they are stored.

        Raises _Interrupted where another request may bring more.
        """
        timeout = TIMEOUT_SECONDS if self._answered else FIRST_ANSWER_SECONDS
        try:
            with _request(file, timeout) as answer, partial.open("wb") as sink:
                self._answered = True
                _check_status(answer, file)
                _check_size(answer.raw.length_remaining or 0, file)
                self._write_body(answer, file, sink)
        except requests.exceptions.InvalidURL as error:
            raise Unavailable(f"{type(error).__name__}: {error}") from None
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            # These wrap the error that says why.
            cause = error.args[0] if error.args else error
            raise _Interrupted(str(getattr(cause, "reason", cause))) from None

    def _write_body(
        self, answer: requests.Response, file: RemoteFile, sink: BinaryIO
    ) -> None:
        written = 0
        since = time.monotonic()
        received = 0  # bytes since then

        # As soon as there are bytes: a read of a whole block may take hours.
        while block := answer.raw.read1(_BLOCK_BYTES, decode_content=False):
            if self.leaving.is_set():
                raise CancelledError

            written += len(block)
            _check_size(written, file)
            sink.write(block)
            self._on_bytes(len(block))

            received += len(block)
            if time.monotonic() >= since + SLOW_SECONDS:
                if received < LEAST_BYTES:
                    raise _Interrupted(
                        f"{received:,} bytes in {SLOW_SECONDS:.0f} seconds"
                    )
                since = time.monotonic()
                received = 0


def _is_there(path: Path, file: RemoteFile) -> bool:
    return path.is_file() and file.size in (None, path.stat().st_size)


def _pause_seconds(attempt: int, trouble: _Interrupted) -> float:
    """Seconds before the next request: doubled each time, or as the server asks."""
    wait = min(FIRST_WAIT_SECONDS * 2 ** (attempt - 1), LONGEST_WAIT_SECONDS)
    # At random, so that clients that were cut together do not return together.
    wait *= random.uniform(0.5, 1.0)
    return max(wait, min(trouble.retry_after, LONGEST_RETRY_AFTER))


def _request(file: RemoteFile, timeout: float) -> requests.Response:
    """Asks for a file; its body is still to be read."""
    return requests.get(
        file.url,
        # As stored: sizes and hashes are those of the stored bytes.
        headers={"Accept-Encoding": "identity"},
        auth=_bearer(file.token) if file.token else None,
        timeout=timeout,
        stream=True,
        hooks={"response": _close_redirect},
    )


def _bearer(
    token: str,
) -> Callable[[requests.PreparedRequest], requests.PreparedRequest]:
    """A token for one host; as `auth`, since an entry of ~/.netrc replaces a header."""

    def authorize(request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {token}"
        return request

    return authorize


def _close_redirect(answer: requests.Response, **_: object) -> None:
    """Closes a redirect: requests would read its body, which may have no end."""
    if answer.is_redirect:
        answer.close()


def _check_status(answer: requests.Response, file: RemoteFile) -> None:
    status = answer.status_code
    line = f"{status} {answer.reason}"
    if status in _ABSENT:
        raise Unavailable(line)

    if status in (401, 403):
        token = "set HF_TOKEN to a token that may read it, or `hf auth login`"
        line += f" ({token if file.token else 'no access, or too many requests'})"
    if not answer.ok:
        raise _Interrupted(line, answer.headers.get("Retry-After", ""))


def _check_size(count: int, file: RemoteFile) -> None:
    """Raises _Interrupted for more bytes than a file has, Unavailable for more than it
    may have."""
    more = "the answer has more than the"
    if file.size is None and count > file.most:
        raise Unavailable(f"{more} {file.most:,} bytes that are accepted")
    if file.size is not None and count > file.size:
        raise _Interrupted(f"{more} {file.size:,} bytes that it has")


def _check_content(partial: Path, file: RemoteFile) -> None:
    """Compares a downloaded file with its known size and hash, else decompresses it.

    Raises _Interrupted for another file, or a part of one.
    """
    size = partial.stat().st_size
    if file.size not in (None, size):
        raise _Interrupted(f"{size:,} bytes instead of {file.size:,}")

    if file.sha256 is not None:
        with partial.open("rb") as data:
            digest = hashlib.file_digest(data, "sha256").hexdigest()
        if digest != file.sha256:
            raise _Interrupted(f"its sha256 is not {file.sha256}")

    # A list of files, whose ending is not that of rows, is checked by its reader.
    name = Path(file.name)
    holds_compressed_rows = bool(suffixes(name)[1]) and is_known(name)
    is_known_whole = file.size is not None or bool(file.sha256)
    if is_known_whole or not holds_compressed_rows:
        return

    if not _can_be_decompressed(partial, name):
        raise _Interrupted(
            "the answer cannot be decompressed: a part of the file, or a login page"
        )


def _can_be_decompressed(partial: Path, name: Path) -> bool:
    stored = partial.open("rb", buffering=0)
    with suppress(*DAMAGED), decompress(stored, name) as stream:
        while stream.read(1 << 20):
            pass
        return True
    return False
