"""A server with one file, and a process that fetches it."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data_prep.web import CONTENT, Fault, Web, wait_for_bytes


@pytest.fixture
def web() -> Iterator[Web]:
    with Web({"/a.zst": CONTENT}) as web:
        yield web


FETCH = """
import sys
from pathlib import Path
from data_prep.download.ahead import Downloads
from data_prep.download.remote_file import RemoteFile
file = RemoteFile(sys.argv[1], "a.zst")
with Downloads([file], Path(sys.argv[2])) as downloads:
    downloads.get(file)
"""


@pytest.fixture
def other_process(
    web: Web, tmp_path: Path
) -> Iterator[tuple[subprocess.Popen[str], threading.Event]]:
    """A process that has a part of the file; the second half comes when the event is set."""
    until = threading.Event()
    web.faults["/a.zst"] = [Fault(until=until)]
    command = [sys.executable, "-c", FETCH, f"{web.url}/a.zst", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for_bytes(tmp_path / "a.zst.part")
    yield process, until
    process.kill()
    process.wait()
    until.set()
