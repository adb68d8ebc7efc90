"""What the machine cannot do, and how a failure and its message end."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dualpath_cli.base import system
from dualpath_cli.base.errors import LONGEST, UserError, one_line
from dualpath_cli.recipe.recipes import merge
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.training import launch as checks
from tests.cli.home import recipe_of_home


def test_cores_are_those_that_the_process_may_use(monkeypatch):
    """As SLURM sets them; the machine may have many more."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7, 9}, raising=False)
    assert system.cores() == 4
    many = {"trainer": {"accelerator": "cpu", "devices": 100}}
    with pytest.raises(UserError, match="devices=100 is too many for 4 cores; use 32"):
        checks.check_steps(settings_from(merge(recipe_of_home(), many)))
    given = re.compile(r"os\.(process_)?cpu_count|multiprocessing\.cpu_count")
    package = Path(system.__file__).parents[1]
    users = {path.name for path in package.rglob("*.py") if given.search(path.read_text())}
    assert users == {"system.py"}


def test_two_tasks_of_srun_on_one_device_are_named(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    one = {"trainer": {"accelerator": "cpu", "devices": 1}}
    with pytest.raises(UserError, match=r"srun has started 2 tasks .* trainer.devices=1 needs"):
        checks.check_steps(settings_from(merge(recipe_of_home(), one)))


def test_a_message_is_one_printable_line_that_keeps_both_ends():
    message = one_line("begin\n\x1b[31m \udcff " + "é " * 2000 + "the way out")
    assert message.startswith("begin\\n\\x1b[31m \\udcff ")
    assert message.endswith("the way out")
    assert message.isprintable()
    assert len(message) <= LONGEST + 10
    assert one_line("'" + "x" * 5000 + "' is wrong").endswith("xxx' is wrong")


def run(words: str, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "dualpath_cli", *words.split()]
    return subprocess.run(command, stderr=subprocess.PIPE, **streams)


def test_a_reader_that_leaves_early_ends_the_command_quietly():
    reading, writing = os.pipe()
    os.close(reading)
    done = run("flops --budget 80M --table", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("words", ["flops --budget 80M --table", "--help"])
def test_an_answer_that_cannot_be_written_is_one_line_and_exit_code_1(words):
    with open("/dev/full", "w") as full:
        done = run(words, stdout=full)
    assert done.returncode == 1
    assert b"error: No space left on device; free some space" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_model_that_just_fits_is_let_through(monkeypatch):
    settings = settings_from(recipe_of_home())
    needed = 4 * checks.parameters(settings.model)
    monkeypatch.setattr(os, "sysconf", lambda name: needed if name == "SC_PHYS_PAGES" else 1)
    checks.check_size(settings)
    monkeypatch.setattr(os, "sysconf", lambda name: needed - 1 if name == "SC_PHYS_PAGES" else 1)
    with pytest.raises(UserError, match="lower model"):
        checks.check_size(settings)
