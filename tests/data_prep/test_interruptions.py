"""What ends a preparation early: Ctrl-C, a killed worker, another one at the same folder."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dualpath_cli.data.manifest import Manifest
from tests.data.manifests import intact
from tests.data_prep.preparing import write_jsonl

RUN = """
import sys
from data_prep.__main__ import main
from data_prep.documents import encoding

encoding.PIECE_BYTES = 500_000
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""  # smaller pieces, for enough of them to interrupt

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path, small_folder: Path) -> Start:
    """Starts a preparation that takes seconds, with two workers."""
    path = write_jsonl(tmp_path / "a.jsonl", (f"{n} hello there " * 2000 for n in range(250)))
    (tmp_path / "run.py").write_text(RUN)
    command = [sys.executable, str(tmp_path / "run.py"), "--source", str(path), "--workers", "2"]
    command += ["--tokenizer", str(small_folder), "--out", str(tmp_path / "out")]

    def run() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
        )

    return run


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """How it ended: code, output, errors without the lines that say how far it is."""
    out, err = process.communicate(timeout=120)
    lines = err.splitlines(keepends=True)
    return process.returncode, out, "".join(x for x in lines if not x.startswith("reading: "))


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes that tokenise, as soon as both have begun to import what they need.

    Earlier, while the other was being started, the pool's thread once ended with a traceback.
    """
    while process.poll() is None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        found = [
            int(child)
            for child in children
            if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()
            and "numpy" in Path(f"/proc/{child}/maps").read_text()
        ]
        if len(found) == 2:
            return found
        time.sleep(0.02)
    raise AssertionError(process.communicate())


def test_whatever_ends_it_is_one_line_and_the_same_command_continues(start, tmp_path):
    stopped = start()
    workers = workers_of(stopped)
    os.killpg(stopped.pid, signal.SIGINT)  # a terminal signals the whole group
    said = "dualpath prepare: interrupted; the same command continues\n"
    assert end(stopped) == (130, said, "")
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)

    bereft = start()
    os.kill(workers_of(bereft)[0], signal.SIGKILL)
    code, out, err = end(bereft)
    assert (code, out) == (1, "")
    said = (
        r"dualpath prepare: failed: a worker process was killed, .*; the same command continues\n"
    )
    assert re.fullmatch(said, err)

    first = start()
    workers_of(first)
    code, _, err = end(start())
    assert code == 2
    said = r"dualpath prepare: error: '.*' is being written by another process; wait .*\n"
    assert re.fullmatch(said, err)
    assert end(first)[::2] == (0, "")
    assert intact(Manifest.read(tmp_path / "out"), tmp_path / "out")
