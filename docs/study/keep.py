"""Keeps of finished runs what tables and figures are made of, without weights.

python docs/study/keep.py runs/study/matched docs/study/matched
dualpath compare docs/study/matched --out OUT       # the same tables and figures
"""

import argparse
import shutil
from pathlib import Path

from kept import run_script

from dualpath_cli.compare.runs import TrainedRun, read_run
from dualpath_cli.errors import UserError

FILES = ("recipe.yaml", "versions*.json", "metrics.csv", "validation.csv", "routing.csv")


def main() -> None:
    parser = argparse.ArgumentParser(description="Keeps what tables and figures are made of.")
    parser.add_argument("sweep", type=Path, help="Folder of a sweep.")
    parser.add_argument("kept", type=Path, help="Folder to keep its finished runs in.")
    given = parser.parse_args()
    runs = sorted(path.parent for path in given.sweep.glob("**/recipe.yaml"))
    if not runs:
        raise UserError(f"no run in '{given.sweep}'")
    for run in runs:
        if isinstance(read_run(run), TrainedRun):
            copy(run, given.kept / run.relative_to(given.sweep), FILES)
    copy(given.sweep, given.kept, ("sweep.yaml", "plan.csv", "tune/chosen.csv"))


def copy(source: Path, target: Path, names: tuple[str, ...]) -> None:
    for path in (path for name in names for path in source.glob(name)):
        to = target / path.relative_to(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)


if __name__ == "__main__":
    run_script(main)
