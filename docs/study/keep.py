"""Keeps of a sweep's finished runs what tables and figures are made of, without weights.

python docs/study/keep.py runs/study/narrow docs/study/narrow

`runs.yaml` holds sweep.yaml, and of each run its recipe and its facts (versions.json) where they
differ from those that all runs share, which stand there once. `metrics.csv`, `validation.csv`,
`routing.csv` and, where averages were scored, `validation_average.csv` hold the rows of all runs,
with the run and its seed as columns. `restore.py` makes run folders of them.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import yaml
from restore import RUNS, TABLES, Content, run_script

from dualpath_cli.compare.runs import TrainedRun, read_run
from dualpath_cli.errors import UserError
from dualpath_cli.files.csv_text import format_csv, read_csv


def main() -> None:
    parser = argparse.ArgumentParser(description="Keeps what tables and figures are made of.")
    parser.add_argument("sweep", type=Path, help="Folder of a sweep.")
    parser.add_argument("kept", type=Path, help="Folder to keep its finished runs in.")
    given = parser.parse_args()
    folders = sorted(path.parent for path in given.sweep.glob("runs/*/*/recipe.yaml"))
    finished = [folder for folder in folders if isinstance(read_run(folder), TrainedRun)]
    if not finished:
        raise UserError(f"no finished run in '{given.sweep}'")
    given.kept.mkdir(parents=True, exist_ok=True)
    write_runs(finished, given.sweep / "sweep.yaml", given.kept / RUNS)
    for table in TABLES:
        if records := records_of(finished, table):
            text = format_csv(records, max((list(record) for record in records), key=len))
            (given.kept / table).write_text(text, encoding="utf-8")


def write_runs(folders: Sequence[Path], sweep: Path, path: Path) -> None:
    """Writes recipes and facts of runs, and the sweep that they belong to, into one file."""
    files = [{file.name: read_content(file) for file in content_files(run)} for run in folders]
    shared = shared_part(files)
    runs = {f"{run.parent.name}/{run.name}": difference(content, shared)
            for run, content in zip(folders, files, strict=True)}  # fmt: skip
    begun = {"sweep": read_content(sweep)} if sweep.exists() else {}  # a folder of trials has none
    text = yaml.safe_dump(
        {**begun, "shared": shared, "runs": runs},
        sort_keys=False, allow_unicode=True, width=100, default_flow_style=None,
    )  # fmt: skip
    path.write_text(text, encoding="utf-8")


def content_files(run: Path) -> list[Path]:
    """The recipe of a run and its facts; several of these where it was continued."""
    return [run / "recipe.yaml", *sorted(run.glob("versions*.json"))]


def read_content(file: Path) -> Content:
    text = file.read_text(encoding="utf-8")
    content: Content = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
    return content


def shared_part(contents: Sequence[Content]) -> Content:
    """The keys and values that all mappings share, at any depth."""
    first, *others = contents
    shared: Content = {}
    for key, value in first.items():
        if not all(key in other for other in others):
            continue
        values = [other[key] for other in contents]
        if all(isinstance(one, dict) for one in values):
            shared[key] = shared_part(values)
        elif all(one == value for one in values):
            shared[key] = value
    return shared


def difference(content: Content, shared: Content) -> Content:
    """The part that `restore.py` lays over `shared` to get the content back."""
    found: Content = {}
    for key, value in content.items():
        if key not in shared:
            found[key] = value
        elif isinstance(value, dict) and (inner := difference(value, shared[key])):
            found[key] = inner
    return found


def records_of(folders: Sequence[Path], name: str) -> list[dict[str, str]]:
    """The rows of a table in all runs; some have columns that others lack."""
    return [
        {"run": folder.parent.name, "seed": folder.name.removeprefix("seed_"), **row}
        for folder in folders
        for row in read_csv(folder / name)
    ]


if __name__ == "__main__":
    run_script(main)
