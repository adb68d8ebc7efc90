"""How much of the package runs between a command line and the first step of training,
and in which order.

What is counted is what a reader meets who follows `dualpath fit` in a debugger: each
function once, from `main` to `Trainer.fit`.
"""

import inspect
import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import CodeType, FrameType

import pytest

from dualpath_cli.cli.main import main
from tests.cli.processes import SERVER
from tests.conftest import Share
from tests.training.tiny_run import write_home

ROOT = Path(__file__).parents[2]
MOST_FUNCTIONS = 295
MOST_FILES = 58
"""These may only fall."""
MOST_ON_THE_PAGE = 40


def trace_fit(home: Path) -> None:
    """Writes walk.json: the functions from `main` to `Trainer.fit`, the calls of these
    by their numbers, and the exit code."""
    from lightning.pytorch import Trainer

    packages = tuple(
        str(ROOT / name) + os.sep for name in ("dualpath_cli", "data_prep")
    )
    numbers: dict[CodeType, int] = {}
    calls: list[int] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED and code.co_name[0] != "<"
        if event == "call" and is_function and code.co_filename.startswith(packages):
            calls.append(numbers.setdefault(code, len(numbers)))

    def stop(*arguments: object, **options: object) -> None:
        sys.setprofile(None)
        raise KeyboardInterrupt

    Trainer.fit = stop  # type: ignore[method-assign]
    os.chdir(home)
    sys.setprofile(note)
    words = ["fit", "--config", "tiny.yaml", "--run.name", "new", "--optim.lr", "1e-3"]
    code = main(words)
    functions = [
        f"{Path(each.co_filename).relative_to(ROOT).as_posix()} {each.co_qualname}"
        for each in numbers
    ]
    trace = {"code": code, "functions": functions, "calls": calls}
    Path("walk.json").write_text(json.dumps(trace))


@pytest.fixture(scope="module")
def calls(share: Share, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """File and qualified name of each function that is called, as often as it is."""
    home = tmp_path_factory.mktemp("walk") / "home"
    shutil.copytree(share("home", write_home), home, symlinks=True)
    process = SERVER.Process(target=trace_fit, args=(home,))
    process.start()
    process.join()
    assert process.exitcode == 0

    trace = json.loads((home / "walk.json").read_text())
    assert trace["code"] == 130
    return [trace["functions"][number] for number in trace["calls"]]


def test_fit_walks_through_no_more_functions_and_files_than_it_did(calls):
    walked = list(dict.fromkeys(calls))
    assert walked[0] == "dualpath_cli/cli/main.py main"
    assert any(name.startswith("dualpath_cli/training/") for name in walked)
    assert len(walked) <= MOST_FUNCTIONS, "\n".join(walked)
    assert len({name.split()[0] for name in walked}) <= MOST_FILES


def test_the_page_goes_from_arguments_to_a_launch_by_the_functions_that_are_called(
    calls,
):
    """In their order."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    before, walk, *_ = page.partition("## Arguments to a launch")[2].split("```")
    columns = [re.split(r"\s{2,}", line.strip()) for line in walk.strip().splitlines()]
    texts = [cells[1 if "/" in cells[0] else 0] for cells in columns]
    stays = [name for text in texts for name in re.split(" > |, ", text)]
    assert f"{len(stays)} functions" in " ".join(before.split())
    assert len(stays) <= MOST_ON_THE_PAGE

    left = (f".{name.split()[1]}" for name in calls)
    passed_over = [
        stay for stay in stays if not any(name.endswith(f".{stay}") for name in left)
    ]
    assert passed_over == [], "the first is not called after the one before it"
