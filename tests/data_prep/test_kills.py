"""Killed at any moment and started again, a preparation ends with the same bytes.

`make torture` kills 200 times in each way.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dualpath_cli.text.manifest import Manifest
from tests.data_prep.preparing import contents, write_jsonl

CHANGES = """
import os, signal, sys

left = int(sys.argv.pop(1))


def before(event, args):
    global left
    written = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
    if written or event in ("os.mkdir", "os.remove", "os.rename", "os.rmdir"):
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)


from data_prep.documents import encoding
from data_prep.__main__ import main

encoding.PIECE_BYTES = 2_000
sys.addaudithook(before)
code = main(sys.argv[1:])
print(-left)
sys.exit(code)
"""
"""Kills itself before a change of the disk, given by its number; counts them where that is 0."""

RUN = """
import sys
from data_prep.documents import encoding
from data_prep.__main__ import main

encoding.PIECE_BYTES = 20_000
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""
"""Small pieces, so that there are many moments between them."""


@pytest.fixture
def command(tmp_path: Path, small_folder: Path) -> list[str]:
    """A preparation with every stage, by two processes; the folder to write is to be added."""
    random_ = random.Random(0)
    words = [f"w{n}" for n in range(500)]
    texts = [" ".join(random_.choices(words, k=random_.randint(1, 120))) for _ in range(1500)]
    texts += ["", *texts[::50]]
    (tmp_path / "run.py").write_text(RUN)
    sources = [
        f"{name}={write_jsonl(tmp_path / f'{name}.jsonl', part)}"
        for name, part in (("a", texts[:1000]), ("b", texts[1000:]))
    ]
    return [
        *(sys.executable, str(tmp_path / "run.py"), "--tokenizer", str(small_folder)),
        *("--duplicates", "near", "--val-fraction", "0.02", "--chunk-tokens", "20000"),
        *("--workers", "2", "--source", *sources, "--out"),
    ]


def test_killed_at_random_moments_it_ends_with_the_same_bytes(
    command: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    start = time.monotonic()
    subprocess.run([*command, str(tmp_path / "whole")], check=True)
    duration = time.monotonic() - start
    out = tmp_path / "killed"
    random_ = random.Random(1)
    finished = killed = 0
    stamps: dict[Path, int] = {}
    for _ in range(request.config.getoption("--kills")):
        process = subprocess.Popen([*command, str(out)], stderr=subprocess.DEVNULL)
        try:
            process.wait(random_.uniform(0.1, 1.0) * duration)
            assert process.returncode == 0
            finished += 1
            Manifest.read(out).verify(out)
            # Begins again, to be killed at other moments.
            for path in sorted(out.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            stamps = {}
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            killed += 1
        again = _stamps(tmp_path / "killed.partial")
        # What was finished is not made again.
        assert {path: again[path] for path in stamps if path in again} == {
            path: stamp for path, stamp in stamps.items() if path in again
        }
        stamps = again
    assert killed
    subprocess.run([*command, str(out)], check=True)
    assert contents(out) == contents(tmp_path / "whole")
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"killed", "whole"}


def _stamps(work: Path) -> dict[Path, int]:
    finished = [*work.rglob("*.arrow"), *work.rglob("chunk-*.bin")]
    return {path: path.stat().st_mtime_ns for path in finished}


@pytest.mark.parametrize("there", [False, True], ids=["new", "replacing"])
def test_killed_before_any_change_of_the_disk_it_ends_with_the_same_bytes(
    there: bool, tmp_path: Path, small_folder: Path, request: pytest.FixtureRequest
) -> None:
    random_ = random.Random(2)
    words = [f"w{n}" for n in range(50)]
    texts = [" ".join(random_.choices(words, k=30)) for _ in range(40)]
    path = write_jsonl(tmp_path / "a.jsonl", ["", *texts, *texts[::5]])
    (tmp_path / "run.py").write_text(CHANGES)

    def run(name: str, *options: str, kill: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(tmp_path / "run.py"), str(kill), "--source", str(path)]
        command += ["--tokenizer", str(small_folder), "--workers", "1", "--duplicates", "near"]
        command += ["--val-fraction", "0.2", "--chunk-tokens", "2000", *options]
        return subprocess.run(
            [*command, "--out", str(tmp_path / name)], stdout=subprocess.PIPE, text=True
        )

    def before(name: str) -> None:
        for leftover in tmp_path.glob(f"*{name}*"):
            shutil.rmtree(leftover)
        if there:
            assert run(name, "--seed", "1").returncode == 0

    before("whole")
    changes = int(run("whole", "--overwrite").stdout.split()[-1])
    expected = contents(tmp_path / "whole")
    assert changes > 50
    kills = request.config.getoption("--kills")
    # The last ones, where a folder takes another's place, are the rarest.
    first = range(changes - kills, changes + 1) if kills < changes else range(1, changes + 1)
    for kill in {*first, *random_.sample(range(1, changes + 1), min(kills, changes))}:
        before("killed")
        assert run("killed", "--overwrite", kill=kill).returncode == -signal.SIGKILL, kill
        done = run("killed", "--overwrite")
        assert done.returncode == 0, kill
        made = contents(tmp_path / "killed")
        assert not {n for n in {*made, *expected} if made.get(n) != expected.get(n)}, kill
        folders = {path.name for path in tmp_path.iterdir() if path.is_dir()}
        assert folders == {"killed", "whole"}, kill
