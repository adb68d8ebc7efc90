"""A web server on the loopback that lays files out like the real ones and misbehaves on
order."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Fault:
    """Faults of one answer; none by default."""

    status: int | None = None  # answers this instead of the file, with an empty body
    # in place of the usual ones
    headers: dict[str, str | None] = field(default_factory=dict)
    cut: int | None = None  # ends the connection after so many bytes of the body
    reset: bool = False  # ends the connection with no answer at all
    endless: bool = False  # repeats the body until the client leaves
    # sends the second half of the body only when this is set
    until: threading.Event | None = None


@dataclass(frozen=True)
class Received:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]  # by lower-case name


class Web:
    """Serves `files` ({path: content}) at `url` while its context lasts; all may change
    meanwhile.

    `faults[path]` are used up one a request. Paths in `tokens` need that bearer token.
    """

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = dict(files or {})
        self.faults: dict[str, list[Fault]] = {}
        self.fallback = Fault()  # of requests without one of their own
        self.tokens: dict[str, str] = {}
        self.requests: list[Received] = []
        self._lock = threading.Lock()
        self._server = _Server(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"web": self})
        )
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Web":
        threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def asked(self, path: str) -> int:
        """Returns how often one path was asked for."""
        return sum(request.path == path for request in list(self.requests))

    def fault(self, request: Received) -> Fault:
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

    def _serve(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Received(unquote(urlsplit(self.path).path), headers)
        fault = self.web.fault(request)
        self.close_connection = fault.reset or fault.cut is not None or fault.endless
        if fault.reset:
            return
        if fault.status is not None:
            status, headers, content = fault.status, {}, b""
        else:
            status, headers, content = self._file(request)
        self.send_response(status)
        length = {} if fault.endless else {"Content-Length": f"{len(content)}"}
        for name, value in (length | headers | fault.headers).items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        while fault.endless:
            self.wfile.write(content or bytes(1 << 16))
        half = len(content) // 2 if fault.until else 0
        self.wfile.write(content[:half])
        if fault.until:
            fault.until.wait(600)
        self.wfile.write(content[half : fault.cut])

    do_GET = _serve  # noqa: N815

    def _file(self, request: Received) -> tuple[int, dict[str, str], bytes]:
        """Returns status, headers and body of the answer to a GET."""
        token, given = (
            self.web.tokens.get(request.path),
            request.headers.get("authorization"),
        )
        if token and given != f"Bearer {token}":
            return (403 if given else 401), {"X-Error-Code": "GatedRepo"}, b""
        content = self.web.files.get(request.path)
        return (404, {}, b"") if content is None else (200, {}, content)


def wait_for(condition: Callable[[], Any]) -> Any:
    """Waits until a condition holds, some minutes at most, and returns what it gave."""
    deadline = time.monotonic() + 300
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found
