"""How much of the package runs between a command line and the first step of training.

What is counted is what a reader meets who follows `dualpath fit` in a debugger: each
function once, from `main` to `Trainer.fit`.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import Share
from tests.training.tiny_run import write_home

ROOT = Path(__file__).parents[2]
MOST_FUNCTIONS = 295
MOST_FILES = 58
"""These may only fall."""

TRACE = """
import inspect, json, os, sys

ROOT = sys.argv[1] + os.sep
PACKAGES = ("dualpath_cli" + os.sep, "data_prep" + os.sep)
walked = {}


def note(frame, event, argument):
    code = frame.f_code
    file = code.co_filename.removeprefix(ROOT)
    is_function = code.co_flags & inspect.CO_OPTIMIZED and code.co_name[0] != "<"
    if event == "call" and is_function and file.startswith(PACKAGES):
        walked.setdefault(f"{file} {code.co_qualname}")


def stop(*arguments, **options):
    sys.setprofile(None)
    raise KeyboardInterrupt


from lightning.pytorch import Trainer
from dualpath_cli.cli.main import main

Trainer.fit = stop
sys.setprofile(note)
code = main(["fit", "--config", "tiny.yaml", "--run.name", "new", "--optim.lr", "1e-3"])
json.dump({"code": code, "walked": list(walked)}, open("walk.json", "w"))
"""


def test_fit_walks_through_no_more_functions_and_files_than_it_did(
    share: Share, tmp_path: Path
):
    home = shutil.copytree(share("home", write_home), tmp_path / "home", symlinks=True)
    done = subprocess.run(
        [sys.executable, "-c", TRACE, str(ROOT)],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr

    trace = json.loads((home / "walk.json").read_text())
    walked = trace["walked"]
    assert trace["code"] == 130
    assert walked[0] == "dualpath_cli/cli/main.py main"
    assert any(name.startswith("dualpath_cli/training/") for name in walked)
    assert len(walked) <= MOST_FUNCTIONS, "\n".join(walked)
    assert len({name.split()[0] for name in walked}) <= MOST_FILES
