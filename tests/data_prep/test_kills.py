"""Killed at any moment and started again, a preparation ends with the same bytes.

`make torture` kills it before every change of the disk. Ctrl-C, a killed worker, and
another preparation at the same folder are one line.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dualpath_cli.base.files import remove
from dualpath_cli.data.manifest import Manifest
from tests.cli.processes import SERVER
from tests.conftest import contents
from tests.data.faulty_data import intact
from tests.data_prep.conftest import without_progress, write_jsonl


def _run(words: list[str], kill: int, changes: Path) -> None:
    """Prepares in small pieces, and dies before change number `kill` of the disk.

    If it does not, the number of changes is written to a file.
    """
    from data_prep import encoding
    from dualpath_cli.cli.main import main

    encoding.PIECE_BYTES = 2_000
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the end
    count = 0

    def before(event: str, args: tuple) -> None:
        nonlocal count
        written = (
            event == "open"
            and isinstance(args[2], int)
            and args[2] & (os.O_WRONLY | os.O_RDWR)
        )
        if written or event in ("os.mkdir", "os.remove", "os.rename", "os.rmdir"):
            count += 1
            if count == kill:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(before)
    code = main(["prepare", *words])
    changes.write_text(str(count))
    sys.exit(code)


@pytest.mark.parametrize(
    "there",
    [pytest.param(False, marks=pytest.mark.slow), True],
    ids=["new", "replacing"],
)
def test_killed_before_any_change_of_the_disk_it_ends_with_the_same_bytes(
    there, tmp_path, small_folder, request
):
    random_ = random.Random(2)
    words = [f"w{n}" for n in range(50)]
    texts = [" ".join(random_.choices(words, k=30)) for _ in range(40)]
    path = write_jsonl(tmp_path / "a.jsonl", ["", *texts, *texts[::5]])
    command = [
        *("--source", str(path), "--tokenizer", str(small_folder), "--workers", "1"),
        *("--duplicates", "near", "--val-fraction", "0.2", "--chunk-tokens", "2000"),
    ]
    counted = tmp_path / "changes"

    def prepare(name: str, *options: str, kill: int = 0) -> int | None:
        words = [*command, *options, "--out", str(tmp_path / name)]
        process = SERVER.Process(target=_run, args=(words, kill, counted))
        process.start()
        process.join()
        return process.exitcode  # below 0 where it was killed

    if there:
        assert prepare("before", "--seed", "1") == 0

    def lay_out(name: str) -> None:
        for leftover in tmp_path.glob(f"*{name}*"):
            remove(leftover)
        if there:
            shutil.copytree(tmp_path / "before", tmp_path / name)

    lay_out("whole")
    assert prepare("whole", "--overwrite") == 0
    changes = int(counted.read_text())
    expected = contents(tmp_path / "whole")
    assert changes > 50
    kills = request.config.getoption("--kills")
    # The last ones, where a folder takes another's place, are the rarest.
    last = range(max(changes - kills, 1), changes + 1)
    for kill in {*last, *random_.sample(range(1, changes + 1), min(kills, changes))}:
        lay_out("killed")
        assert prepare("killed", "--overwrite", kill=kill) == -signal.SIGKILL, kill
        assert prepare("killed", "--overwrite") == 0, kill
        made = contents(tmp_path / "killed")
        assert not {n for n in {*made, *expected} if made.get(n) != expected.get(n)}, (
            kill
        )
        left = {path.name for path in tmp_path.glob("*killed*")}
        assert left == {"killed"}, kill


# Ctrl-C, a killed worker, another one at the same folder

RUN = """
import sys
from data_prep import encoding
from dualpath_cli.cli.main import main

encoding.PIECE_BYTES = 500_000
if __name__ == "__main__":
    sys.exit(main(["prepare", *sys.argv[1:]]))
"""  # smaller pieces, for enough of them to interrupt

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path, small_folder: Path) -> Start:
    """Starts a preparation that takes seconds, with two workers."""
    path = write_jsonl(
        tmp_path / "a.jsonl", (f"{n} hello there " * 2000 for n in range(250))
    )
    (tmp_path / "run.py").write_text(RUN)
    command = [
        sys.executable,
        str(tmp_path / "run.py"),
        "--source",
        str(path),
        "--workers",
        "2",
    ]
    command += ["--tokenizer", str(small_folder), "--out", str(tmp_path / "out")]

    def run() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    return run


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """How it ended: code, output, errors without the lines that say how far it is."""
    out, err = process.communicate(timeout=300)
    return process.returncode, out, without_progress(err)


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes that tokenise, as soon as both have begun to import what they need.

    Earlier, while the other was being started, the pool's thread once ended with a
    traceback.
    """
    while process.poll() is None:
        children = (
            Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        )
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
        r"dualpath prepare: failed: a worker process was killed, .*; "
        r"the same command continues\n"
    )
    assert re.fullmatch(said, err)

    first = start()
    workers_of(first)
    # It must not end before the other one, which is slow to start, finds it.
    os.killpg(first.pid, signal.SIGSTOP)
    try:
        code, _, err = end(start())
    finally:
        os.killpg(first.pid, signal.SIGCONT)
    assert code == 2
    said = (
        r"dualpath prepare: error: '.*' is being written by another process; wait .*\n"
    )
    assert re.fullmatch(said, err)
    assert end(first)[::2] == (0, "")
    assert intact(Manifest.read(tmp_path / "out"), tmp_path / "out")
