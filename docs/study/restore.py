"""Makes run folders, without weights, of what is kept of a sweep.

python docs/study/restore.py narrow runs/study/narrow
dualpath compare runs/study/narrow --out OUT    # its tables and figures
dualpath sweep ... --out runs/study/narrow      # more seeds: the command stands on its page
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.files.csv_text import format_csv, read_csv
from dualpath_cli.run.run_folder import AVERAGES

STUDY = Path(__file__).parent
RUNS = "runs.yaml"
TABLES = ("metrics.csv", "validation.csv", "routing.csv", AVERAGES)

Content = dict[str, Any]
"""Of a recipe.yaml, a versions.json, a sweep.yaml."""
Rows = list[dict[str, str]]


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes run folders of what is kept of a sweep.")
    parser.add_argument("kept", help="Name of a folder of kept runs beside this file.")
    parser.add_argument("sweep", type=Path, help="Folder to write; it must not exist yet.")
    given = parser.parse_args()
    check_kept([given.kept])
    if given.sweep.exists():
        raise UserError(f"'{given.sweep}' exists; name a new folder, or remove it")
    restore(given.kept, given.sweep)


def restore(kept: str, sweep: Path) -> None:
    """Writes the folders of all runs that are kept under a name."""
    content = yaml.safe_load((STUDY / kept / RUNS).read_text(encoding="utf-8"))
    tables = {name: rows_by_run(STUDY / kept / name) for name in TABLES}
    for run, own in content["runs"].items():
        folder, files = sweep / "runs" / run, over(content["shared"], own)
        folder.mkdir(parents=True)
        for name, part in files.items():
            write(folder / name, part)
        for name, rows in tables.items():
            if run in rows:
                text = table(rows[run], files["recipe.yaml"]["model"]["loops"])
                (folder / name).write_text(text, encoding="utf-8")
    if "sweep" in content:
        write(sweep / "sweep.yaml", content["sweep"])


def over(shared: Content, own: Content) -> Content:
    """`own` laid over what all runs share."""
    both = {key: value for key, value in shared.items() if key not in own}
    for key, value in own.items():
        inner = shared.get(key)
        both[key] = over(inner, value) if isinstance(inner, dict) else value
    return both


def write(path: Path, content: Content) -> None:
    text = (json.dumps(content, indent=2) if path.suffix == ".json"
            else yaml.safe_dump(content, sort_keys=False, allow_unicode=True))  # fmt: skip
    path.write_text(text, encoding="utf-8")


def rows_by_run(path: Path) -> dict[str, Rows]:
    """The rows of each run, as CONFIGURATION/seed_N, without the columns that name it."""
    runs: dict[str, Rows] = defaultdict(list)
    for row in read_csv(path):
        runs[f"{row.pop('run')}/seed_{row.pop('seed')}"].append(row)
    return runs


def table(rows: Rows, loops: int) -> str:
    """Rows as CSV, without the gains of loops that the run's model does not make."""
    others = {name for name in rows[0] if name.startswith("gain_deep_")}
    others -= {f"gain_deep_{k}" for k in range(1, loops + 1)}
    return format_csv(rows, [name for name in rows[0] if name not in others])


def check_kept(names: Iterable[str]) -> None:
    """Raises a UserError for a name under which no sweep is kept."""
    check_known("sweep", names, sorted(path.parent.name for path in STUDY.glob(f"*/{RUNS}")))


def check_known(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raises a UserError that says which name is not known, and what is."""
    known = list(dict.fromkeys(known))
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"; choose from {', '.join(known)}"
            raise UserError(f"no {what} '{name}'{hint}")


def run_script(main: Callable[[], None]) -> None:
    """Ends with one line and exit code 2 where a word is wrong."""
    try:
        main()
    except UserError as error:
        print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    run_script(main)
