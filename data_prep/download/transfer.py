"""One file over HTTP, whole or not there: ranges, versions, lengths, hashes, patience."""

import logging
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from multiprocessing import TimeoutError
from multiprocessing.pool import ThreadPool
from pathlib import Path

import requests
import urllib3

from data_prep.download.part import Part, only_holder
from data_prep.download.remote_file import RemoteFile, Unavailable, Unreachable, first_contact

OnBytes = Callable[[int], None]
"""Called with the number of bytes received since the last call; what comes twice counts twice."""

ATTEMPTS = 10
"""Tries that bring nothing new before a file counts as unreachable: three to five minutes."""
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0
LONGEST_RETRY_AFTER_SECONDS = 300.0
TIMEOUT_SECONDS = (20.0, 60.0)
"""To connect, and between two arrivals of bytes."""
HEADERS = {"Accept-Encoding": "identity"}
"""Of every request: lengths and hashes are those of the stored file."""

_QUIET_SECONDS = 5.0
_READ_BYTES = 1 << 16
_TEMPORARY = {408, 425, 429}

log = logging.getLogger(__name__)


class _Interrupted(Exception):
    """A request ended without the whole file; the message is the reason."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class _WrongContent(Exception):
    """The server sent another file than the requested one."""


class Bearer(requests.auth.AuthBase):
    """Sends a token, if there is one."""

    # A header that is set by hand would give way to an entry of ~/.netrc.
    def __init__(self, token: str | None) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


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
    """Makes the part the whole file, in as many requests as it takes.

    Raises Unavailable and Unreachable, and OSError where the disk fails.
    """
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
        wait = min(FIRST_WAIT_SECONDS * 2 ** (failures - 1), LONGEST_WAIT_SECONDS)
        wait *= random.uniform(0.5, 1.0)
        wait = max(wait, min(interruption.retry_after, LONGEST_RETRY_AFTER_SECONDS))
        if wait > _QUIET_SECONDS:
            log.warning("%s: %s; next try in %.0f s", file.url, interruption, wait)
        sleep(wait)


def content_length(response: requests.Response) -> int | None:
    """Returns the length of the answer's body; None if it has no Content-Length."""
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() else None


def _attempt(file: RemoteFile, part: Part, session: requests.Session, on_bytes: OnBytes) -> None:
    """Makes one request, unless all is there, and checks the result."""
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
        file.url, headers=headers, auth=Bearer(file.token), stream=True, timeout=TIMEOUT_SECONDS
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
        elif status in _TEMPORARY or status >= 500:
            raise _Interrupted(f"{status} {response.reason}", _retry_after(response))
        else:
            raise Unavailable(f"{status} {response.reason}")
        for data in response.raw.stream(_READ_BYTES, decode_content=False):
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


_CONNECTIONS = 8


def with_sizes(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """Returns the files with the sizes that their servers tell; unknown where one does not.

    Raises Unreachable where a first answer of any server is waited for in vain.
    """
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
        except requests.RequestException as error:
            if isinstance(error, requests.ConnectionError | requests.Timeout):
                silent.set()
            return file
        first_contact.made = True
        return replace(file, size=content_length(response)) if response.ok else file

    # Unlike an executor's, the threads of this pool do not hold up the end of the process.
    with ThreadPool(_CONNECTIONS) as pool:
        sized = pool.map_async(with_size, files, chunksize=1)
        try:
            return sized.get(first_contact.seconds)
        except TimeoutError:
            first_contact.check(files[0].url)
            return sized.get()
