"""A web server on the loopback that lays files out like the real ones and misbehaves on order."""

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar
from urllib.parse import unquote, urlsplit

T = TypeVar("T")


@dataclass
class Fault:
    """Faults of one answer; none by default."""

    status: int | None = None  # answers this instead of the file, with an empty body
    headers: dict[str, str] = field(default_factory=dict)  # set in place of the usual ones
    cut: int | None = None  # ends the connection after so many bytes of the body
    reset: bool = False  # ends the connection with no answer at all
    silent: float = 0.0  # says nothing for so many seconds
    ranges: bool = True  # whether a Range header is heeded
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

    `faults[path]` are used up one a request; `fallback` is for the requests without. Paths in
    `tokens` ({path: token}) need that bearer token. `requests` lists what has arrived.
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

    def starts(self, path: str) -> list[int | None]:
        """Returns from where on each request asked for one path."""
        return [request.start for request in list(self.requests) if request.path == path]

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
        token, given = self.web.tokens.get(request.path), request.headers.get("authorization")
        if self._failed(fault):
            return
        if token and given != f"Bearer {token}":
            headers = {"Content-Length": "0", "X-Error-Code": "GatedRepo"}
            self._head(403 if given else 401, headers, fault)
        elif (content := self.web.files.get(request.path)) is None:
            self._head(404, {"Content-Length": "0"}, fault)
        else:
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
        status, headers, start, total = 200, {}, request.start, len(content)
        if start is not None and fault.ranges:
            status = 206 if start < total else 416
            span = f"{start}-{total - 1}" if start < total else "*"
            headers["Content-Range"] = f"bytes {span}/{total}"
            content = content[start:]
        self._head(status, {"Content-Length": str(len(content)), **headers}, fault)
        if request.method == "HEAD":
            return
        half = len(content) // 2 if fault.until else 0
        self.wfile.write(content[:half])
        if fault.until:
            fault.until.wait(60)
        self.wfile.write(content[half : fault.cut])
        self.close_connection = fault.cut is not None

    def _head(self, status: int, headers: dict[str, str], fault: Fault) -> None:
        self.send_response(status)
        for name, value in {**headers, **fault.headers}.items():
            self.send_header(name, value)
        self.end_headers()


def wait_for(condition: Callable[[], T]) -> T:
    """Waits until a condition holds, a minute at most, and returns what it gave."""
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found
