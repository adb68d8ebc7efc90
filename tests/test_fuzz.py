"""The short form of `python -m tests.fuzz`: see there. `make torture` runs the long one."""

import shutil
from pathlib import Path

import pytest

from tests.fuzz import judge
from tests.command.home import write_home

SEED, BATCH = 4, 50
RARE = [pytest.param(first, marks=pytest.mark.slow) for first in range(100, 300, BATCH)]


@pytest.mark.parametrize("first", [0, 50, *RARE])
def test_no_case_ends_in_a_traceback_or_writes_elsewhere(first, share, tmp_path):
    home = share("fuzz-home", write_home)
    endings = [
        judge.run_case(SEED, number, home, tmp_path / "box")
        for number in range(first, first + BATCH)
    ]
    wrong = [ending for ending in endings if ending.problem]
    assert not wrong, f"python -m tests.fuzz --seed {SEED} --only {wrong[0].number}: {wrong[0]}"
    assert {ending.code for ending in endings} == {0, 2}


@pytest.mark.parametrize(
    ("code", "message", "problem"),
    [
        (2, "dualpath flops: note: y\ndualpath flops: error: x\n", None),
        (3, "", "exit code 3"),
        (2, "", "0 lines on stderr"),
        (0, "dualpath fit: error: x\n", "1 lines on stderr"),
        (2, "UserWarning: x\n", "no line of an error"),
        (2, "dualpath fit: error: \x1b[31m\n", "not printable"),
        (2, f"dualpath fit: error: {'x' * 2000}\n", "too long"),
        (1, "dualpath fit: error: out of memory\n", "out of memory"),
    ],
)
def test_the_judge_sees_what_is_wrong_with_an_ending(code, message, problem):
    found = judge.problem_of(code, message)
    assert found == "" if problem is None else problem in found


@pytest.mark.parametrize(
    ("fault", "problem"),
    [("raises", "raises KeyError"), ("hangs", "raises TooLong"), ("writes", "wrote outside")],
)
def test_the_judge_sees_what_a_command_does(fault, problem, tmp_path, monkeypatch):
    def main(words: list[str]) -> int:
        if fault == "raises":
            raise KeyError("x")
        if fault == "writes":
            Path("../../written").touch()
        while fault == "hangs":
            pass
        return 0

    monkeypatch.setattr(judge.cli, "main", main)
    monkeypatch.setattr(judge, "SECONDS", 0.1)
    monkeypatch.setattr(judge, "KINDS", {"words": lambda draw: ["fit"]})
    home = shutil.copytree(Path(__file__).parent / "fuzz", tmp_path / "home")
    assert problem in judge.run_case(0, 0, home, tmp_path / "box").problem
