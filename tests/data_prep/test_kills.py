"""Killed at any moment and started again, a preparation ends with the same bytes.

`make torture` kills 200 times in each way.
"""

import os
import random
import shutil
import signal
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from dualpath_cli.system import remove
from dualpath_cli.text.manifest import Manifest
from tests.data_prep.preparing import contents, write_jsonl
from tests.manifests import intact
from tests.processes import SERVER


def start(
    words: list[str], piece_bytes: int, kill: int = 0, changes: Path | None = None
) -> BaseProcess:
    """Starts a preparation with small pieces; it dies before change number `kill` of the disk.

    If it does not, the number of changes is written to a file.
    """
    process = SERVER.Process(target=_run, args=(words, piece_bytes, kill, changes))
    process.start()
    return process


def _run(words: list[str], piece_bytes: int, kill: int, changes: Path | None) -> None:
    from data_prep.__main__ import main
    from data_prep.documents import encoding

    encoding.PIECE_BYTES = piece_bytes
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the end
    count = 0

    def before(event: str, args: tuple) -> None:
        nonlocal count
        written = (
            event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        )
        if written or event in ("os.mkdir", "os.remove", "os.rename", "os.rmdir"):
            count += 1
            if count == kill:
                os.kill(os.getpid(), signal.SIGKILL)

    if changes:
        sys.addaudithook(before)
    code = main(words)
    if changes:
        changes.write_text(str(count))
    sys.exit(code)


def end(process: BaseProcess) -> int | None:
    """Waits for the exit code of such a preparation, which is below 0 where it was killed."""
    process.join()
    return process.exitcode


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_bytes(tmp_path, small_folder, request):
    random_ = random.Random(0)
    words = [f"w{n}" for n in range(500)]
    texts = [" ".join(random_.choices(words, k=random_.randint(1, 120))) for _ in range(1500)]
    texts += ["", *texts[::50]]
    # Every stage, by two processes.
    sources = [
        f"{name}={write_jsonl(tmp_path / f'{name}.jsonl', some)}"
        for name, some in (("a", texts[:1000]), ("b", texts[1000:]))
    ]
    command = [
        *("--tokenizer", str(small_folder), "--duplicates", "near", "--val-fraction", "0.02"),
        *("--chunk-tokens", "20000", "--workers", "2", "--source", *sources, "--out"),
    ]
    end(start(["--help"], 1))  # the server is started by then
    begin = time.monotonic()
    assert end(start([*command, str(tmp_path / "whole")], 20_000)) == 0
    duration = time.monotonic() - begin
    out = tmp_path / "killed"
    killed = 0
    stamps: dict[Path, int] = {}
    for _ in range(max(request.config.getoption("--kills"), 3)):
        process = start([*command, str(out)], 20_000)
        process.join(random_.uniform(0.1, 1.0) * duration)
        process.kill()
        process.join()
        if process.exitcode == 0:
            assert intact(Manifest.read(out), out)
            shutil.rmtree(out)  # begins again, to be killed at other moments
            stamps = {}
        killed += process.exitcode == -signal.SIGKILL
        again = _stamps(tmp_path / "killed.partial")
        # What was finished is not made again.
        both = stamps.keys() & again.keys()
        assert {path: again[path] for path in both} == {path: stamps[path] for path in both}
        stamps = again
    assert killed
    assert end(start([*command, str(out)], 20_000)) == 0
    assert contents(out) == contents(tmp_path / "whole")
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"killed", "whole"}


def _stamps(work: Path) -> dict[Path, int]:
    finished = [*work.rglob("*.arrow"), *work.rglob("chunk-*.bin")]
    return {path: path.stat().st_mtime_ns for path in finished}


@pytest.mark.parametrize(
    "there", [pytest.param(False, marks=pytest.mark.slow), True], ids=["new", "replacing"]
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
        return end(start([*command, *options, "--out", str(tmp_path / name)], 2_000, kill, counted))

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
        assert not {n for n in {*made, *expected} if made.get(n) != expected.get(n)}, kill
        left = {path.name for path in tmp_path.glob("*killed*")}
        assert left == {"killed"}, kill
