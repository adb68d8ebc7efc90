"""Killed at any moment and started again, a preparation ends with the same bytes.

`make torture` kills 200 times.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dualpath_cli.text.manifest import Manifest
from tests.data_prep.preparing import contents, write_jsonl

RUN = """
import sys
from data_prep import encoding
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
