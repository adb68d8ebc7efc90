"""How much of the package runs between a command line and the first step of training.

What is counted is what a reader meets who follows `dualpath fit` in a debugger: each
function once, from `main` to `Trainer.fit`.
"""

import inspect
import json
import os
import shutil
import sys
from pathlib import Path
from types import FrameType

from dualpath_cli.cli.main import main
from tests.cli.processes import SERVER
from tests.conftest import Share
from tests.training.tiny_run import write_home

ROOT = Path(__file__).parents[2]
MOST_FUNCTIONS = 295
MOST_FILES = 58
"""These may only fall."""


def trace_fit(home: Path) -> None:
    """Writes walk.json: the functions from `main` to `Trainer.fit`, and the exit
    code."""
    from lightning.pytorch import Trainer

    packages = tuple(
        str(ROOT / name) + os.sep for name in ("dualpath_cli", "data_prep")
    )
    walked: dict[str, None] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED and code.co_name[0] != "<"
        if event == "call" and is_function and code.co_filename.startswith(packages):
            file = Path(code.co_filename).relative_to(ROOT).as_posix()
            walked.setdefault(f"{file} {code.co_qualname}")

    def stop(*arguments: object, **options: object) -> None:
        sys.setprofile(None)
        raise KeyboardInterrupt

    Trainer.fit = stop  # type: ignore[method-assign]
    os.chdir(home)
    sys.setprofile(note)
    words = ["fit", "--config", "tiny.yaml", "--run.name", "new", "--optim.lr", "1e-3"]
    code = main(words)
    trace = {"code": code, "walked": list(walked)}
    Path("walk.json").write_text(json.dumps(trace))


def test_fit_walks_through_no_more_functions_and_files_than_it_did(
    share: Share, tmp_path: Path
):
    home = shutil.copytree(share("home", write_home), tmp_path / "home", symlinks=True)
    process = SERVER.Process(target=trace_fit, args=(home,))
    process.start()
    process.join()
    assert process.exitcode == 0

    trace = json.loads((home / "walk.json").read_text())
    walked = trace["walked"]
    assert trace["code"] == 130
    assert walked[0] == "dualpath_cli/cli/main.py main"
    assert any(name.startswith("dualpath_cli/training/") for name in walked)
    assert len(walked) <= MOST_FUNCTIONS, "\n".join(walked)
    assert len({name.split()[0] for name in walked}) <= MOST_FILES
