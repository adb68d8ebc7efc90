"""Killed at any moment and started again, a preparation ends with the same bytes.

`make torture` kills it before every change of the disk.
"""

import os
import random
import shutil
import signal
import sys
from pathlib import Path

import pytest

from dualpath_cli.base.system import remove
from tests.cli.processes import SERVER
from tests.data_prep.preparing import contents, write_jsonl


def _run(words: list[str], kill: int, changes: Path) -> None:
    """Prepares in small pieces, and dies before change number `kill` of the disk.

    If it does not, the number of changes is written to a file.
    """
    from data_prep.__main__ import main
    from data_prep.documents import encoding

    encoding.PIECE_BYTES = 2_000
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

    sys.addaudithook(before)
    code = main(words)
    changes.write_text(str(count))
    sys.exit(code)


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
        assert not {n for n in {*made, *expected} if made.get(n) != expected.get(n)}, kill
        left = {path.name for path in tmp_path.glob("*killed*")}
        assert left == {"killed"}, kill
