"""A web server on the loopback that lays files out like the real ones and misbehaves on order."""

import email.utils
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from data_prep.download import RemoteFile
from data_prep.download.transfer import download

T = TypeVar("T")
MODIFIED = "Wed, 21 Oct 2015 07:28:00 GMT"


@dataclass
class Fault:
    """Faults of one answer; none by default."""

    status: int | None = None  # answers this instead of the file, with an empty body
    headers: dict[str, str | None] = field(default_factory=dict)
    """Set in place of the usual ones; None leaves one out."""
    content: bytes | None = None  # served instead of the file
    cut: int | None = None  # ends the connection after so many bytes of the body
    reset: bool = False  # ends the connection with no answer at all
    silent: float = 0.0  # says nothing for so many seconds
    ranges: bool = True  # whether a Range header is heeded
    conditions: bool = True  # whether an If-Range header is heeded
    shift: int = 0  # a Content-Range begins so many bytes too early
    chunked: bool = False  # sends chunks and no Content-Length; a cut is one before the last chunk
    until: threading.Event | None = None  # sends the second half of the body only when this is set


@dataclass(frozen=True)
class Request:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]  # by lower-case name

    @property
    def start(self) -> int | None:
        """First byte asked for; None without a Range."""
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range", ""))
        return int(match[1]) if match else None


class Web:
    """Serves `files` ({path: content}) at `url` while its context lasts; all may change meanwhile.

    Like S3, CloudFront and the hub's storage it sends ETag, Last-Modified and Content-Length and
    heeds Range and If-Range. `faults[path]` are used up one a request; `fallback` is for the
    requests without. Paths in `tokens` ({path: token}) need that bearer token. `requests` lists
    what has arrived.
    """

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = dict(files or {})
        self.faults: dict[str, list[Fault]] = {}
        self.fallback = Fault()
        self.tokens: dict[str, str] = {}
        self.requests: list[Request] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"web": self}))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Web":
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def asked(self, path: str, method: str = "GET") -> list[Request]:
        """Returns the requests for one path."""
        return [r for r in list(self.requests) if (r.path, r.method) == (path, method)]

    def post(self, request: Request, body: bytes) -> tuple[int, dict]:
        """Returns status and JSON of the answer to a POST or PUT; for servers that take any."""
        return 404, {}

    def fault(self, request: Request) -> Fault:
        """Logs a request and returns what is to go wrong with its answer."""
        with self._lock:
            self.requests.append(request)
            planned = self.faults.get(request.path)
            return planned.pop(0) if planned else self.fallback


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request, client_address) -> None:
        pass  # clients that leave early are part of the tests


class _Handler(BaseHTTPRequestHandler):
    web: Web
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        request, fault = self._arrived()
        body = self.rfile.read(int(request.headers.get("content-length", 0)))
        if not self._failed(fault):
            status, answer = self.web.post(request, body)
            content = json.dumps(answer).encode()
            self._head(status, {"Content-Length": str(len(content))}, fault)
            self.wfile.write(content)

    def do_GET(self) -> None:
        request, fault = self._arrived()
        path, headers = request.path, request.headers
        if self._failed(fault):
            return
        if (token := self.web.tokens.get(path)) and headers.get("authorization") != (
            f"Bearer {token}"
        ):
            status = 403 if "authorization" in headers else 401
            self._head(status, {"Content-Length": "0", "X-Error-Code": "GatedRepo"}, fault)
            return
        content = self.web.files.get(path) if fault.content is None else fault.content
        if content is None:
            self._head(404, {"Content-Length": "0"}, fault)
            return
        self._file(content, request, fault)

    def _arrived(self) -> tuple[Request, Fault]:
        path = unquote(urlsplit(self.path).path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, path, headers)
        return request, self.web.fault(request)

    def _failed(self, fault: Fault) -> bool:
        """Whether the fault leaves nothing to answer."""
        time.sleep(fault.silent)
        if fault.reset:
            self.close_connection = True
        elif fault.status is not None:
            self._head(fault.status, {"Content-Length": "0"}, fault)
        return fault.reset or fault.status is not None

    def _file(self, content: bytes, request: Request, fault: Fault) -> None:
        etag = f'"{hashlib.md5(content).hexdigest()}"'
        headers = {"Accept-Ranges": "bytes", "ETag": etag, "Last-Modified": MODIFIED}
        start, total = request.start, len(content)
        condition = request.headers.get("if-range")
        changed = fault.conditions and condition not in (None, etag, MODIFIED)
        if start is None or not fault.ranges or changed:
            body, status = content, 200
        elif start >= total:
            body, status = b"", 416
            headers["Content-Range"] = f"bytes */{total}"
        else:
            start -= fault.shift
            body, status = content[start:], 206
            headers["Content-Range"] = f"bytes {start}-{total - 1}/{total}"
        headers |= (
            {"Transfer-Encoding": "chunked"}
            if fault.chunked
            else {"Content-Length": str(len(body))}
        )
        self._head(status, headers, fault)
        if request.method == "HEAD":
            return
        half = len(body) // 2
        if fault.until:
            self._send(body[:half], fault)
            fault.until.wait(60)
            body = body[half:]
        self._send(body[: fault.cut], fault)
        if fault.cut is not None:
            self.close_connection = True
        elif fault.chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _send(self, data: bytes, fault: Fault) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if fault.chunked else data)

    def _head(self, status: int, headers: dict[str, str], fault: Fault) -> None:
        self.send_response(status)
        for name, value in {**headers, "Date": _now(), **fault.headers}.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()

    def send_response(self, code: int, message: str | None = None) -> None:
        self.send_response_only(code, message)  # without a second Date


def _now() -> str:
    return email.utils.formatdate(usegmt=True)


def wait_for(condition: Callable[[], T]) -> T:
    """Waits until a condition holds, a minute at most, and returns what it gave."""
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def wait_for_bytes(path) -> None:
    """Waits until a file is there and not empty."""
    wait_for(lambda: path.exists() and path.stat().st_size > 0)


CONTENT = bytes(range(256)) * 1000
SIZE = len(CONTENT)
CUT = 100_000
NO_VALIDATOR: dict[str, str | None] = {"ETag": None, "Last-Modified": None}


def remote(web: Web, path: str = "/a.zst", **known) -> RemoteFile:
    return RemoteFile(web.url + path, path.removeprefix("/"), **known)


def fetch(web: Web, folder: Path, path="/a.zst", sleep=lambda seconds: None, **known) -> Path:
    return download(remote(web, path, **known), folder, sleep=sleep)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))
