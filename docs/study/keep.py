"""Keeps of a sweep's runs what tables and figures are made of, without weights.

python docs/study/keep.py runs/study/matched docs/study/matched
dualpath compare docs/study/matched --out OUT       # the same tables and figures
"""

import shutil
import sys
from pathlib import Path

FILES = ("recipe.yaml", "versions*.json", "metrics.csv", "validation.csv", "routing.csv")


def main() -> None:
    sweep, kept = map(Path, sys.argv[1:])
    for run in sorted(path.parent for path in sweep.glob("**/metrics.csv")):
        folder = kept / run.relative_to(sweep)
        folder.mkdir(parents=True, exist_ok=True)
        for path in (path for name in FILES for path in run.glob(name)):
            shutil.copyfile(path, folder / path.name)
    for path in (*sweep.glob("*.yaml"), *sweep.glob("*.csv"), *sweep.glob("tune/*.csv")):
        (kept / path.relative_to(sweep)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, kept / path.relative_to(sweep))


if __name__ == "__main__":
    main()
