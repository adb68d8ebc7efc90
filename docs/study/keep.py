"""Keeps of finished runs what tables and figures are made of, without weights.

python docs/study/keep.py runs/study/matched docs/study/matched
dualpath compare docs/study/matched --out OUT       # the same tables and figures
"""

import shutil
import sys
from pathlib import Path

from dualpath_cli.compare.runs import TrainedRun, read_run

FILES = ("recipe.yaml", "versions*.json", "metrics.csv", "validation.csv", "routing.csv")


def main() -> None:
    given, kept = map(Path, sys.argv[1:])
    for run in sorted(path.parent for path in given.glob("**/recipe.yaml")):
        if isinstance(read_run(run), TrainedRun):
            copy(run, kept / run.relative_to(given), FILES)
    copy(given, kept, ("sweep.yaml", "plan.csv", "tune/chosen.csv"))


def copy(source: Path, target: Path, names: tuple[str, ...]) -> None:
    for path in (path for name in names for path in source.glob(name)):
        to = target / path.relative_to(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)


if __name__ == "__main__":
    main()
