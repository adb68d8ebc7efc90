"""Keeps the finished runs of docs/study/row.md, and puts them back where a sweep continues.

python docs/study/row.py keep runs/row       # scores into row.csv, small files into row.tar.xz
python docs/study/row.py restore runs/row    # before the declared commands, on another machine

No score is printed. A kept run has no checkpoints; `sweep` and `compare` take it as finished.
"""

import argparse
import csv
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STUDY = Path(__file__).parent
TABLE, ARCHIVE = STUDY / "row.csv", STUDY / "row.tar.xz"
SETS = ("novels", "peps", "rust_rfcs", "gsm8k")
FILES = ("recipe.yaml", "versions.json", "metrics.csv", "validation.csv", "routing.csv")
LAST = "1500"
"""The step of the scores."""


def rows_of(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The folder and the row of each finished run, by sweep, arm with rate, and seed."""
    for run in sorted(folder.glob("*/runs/*/seed_*")):
        path = run / "validation.csv"
        with path.open(encoding="utf-8") if path.exists() else io.StringIO() as file:
            last = {row["set"]: row for row in csv.DictReader(file) if row["step"] == LAST}
        if last.keys() == set(SETS):
            arm, _, rate = run.parent.name.replace("-lr_", " ").partition(" ")
            facts = json.loads((run / "versions.json").read_text(encoding="utf-8"))
            scores = {name: last[name]["bits_per_byte"] for name in SETS}
            known = {key: facts[key] for key in ("git_commit", "started", "device")}
            named = {"sweep": run.parts[-4], "arm": arm, "rate": rate, "seed": run.name[5:]}
            yield run, named | scores | known


def cpu() -> str:
    """The machine's CPU: its model and its instructions for products in bf16."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    lines = dict(line.split("\t", 1) for line in text.splitlines() if "\t" in line)
    flags = {"amx_bf16", "avx512_bf16"} & {*lines["flags"].split()}
    return " ".join([lines["model name"].strip(": "), *sorted(flags)])


def keep(folder: Path) -> None:
    before = list(csv.DictReader(TABLE.open(encoding="utf-8"))) if TABLE.exists() else []
    known = {(row["sweep"], row["arm"], row["rate"], row["seed"]): row for row in before}
    found, here = dict(rows_of(folder)), cpu()
    for row in found.values():
        key = (row["sweep"], row["arm"], row["rate"], row["seed"])
        known.setdefault(key, row | {"cpu": here})
    rows = [known[key] for key in sorted(known, key=lambda key: (*key[:3], int(key[3])))]
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    with tarfile.open(ARCHIVE, "w:xz") as archive:
        paths = [run / name for run in found for name in FILES]
        paths += folder.glob("*/sweep.yaml")
        for path in sorted([path for path in paths if path.exists()]):
            info = archive.gettarinfo(path, str(path.relative_to(folder)))
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = ""
            with path.open("rb") as content:
                archive.addfile(info, content)
    print(f"{len(rows)} runs in {TABLE}, {len(found)} in {ARCHIVE}")


def restore(folder: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")


def main() -> None:
    parser = argparse.ArgumentParser(description="Keeps or restores the runs of docs/study/row.md.")
    parser.add_argument("task", choices=["keep", "restore"])
    parser.add_argument("folder", type=Path, help="Folder of the study's sweeps.")
    given = parser.parse_args()
    {"keep": keep, "restore": restore}[given.task](given.folder)


if __name__ == "__main__":
    main()
