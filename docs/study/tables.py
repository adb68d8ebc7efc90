"""Prints a table of docs/study.md: kept runs of one or more folders, against some of them.

python docs/study/tables.py docs/study/paper_rate wide,loop_k4
python docs/study/tables.py docs/study/narrow wide,loop_k4 --primary   # p among the means alone
"""

import sys
from dataclasses import replace

from dualpath_cli.compare.differences import Difference, differences_of
from dualpath_cli.compare.groups import groups_of
from dualpath_cli.compare.runs import AGGREGATE, TrainedRun, find_folders, read_run
from dualpath_cli.study.levels import holm

PRIMARY = "--primary"


def main() -> None:
    given = [word for word in sys.argv[1:] if word != PRIMARY]
    paths, names = given[:-1], given[-1].split(",")
    runs = [run for run in map(read_run, find_folders(paths)) if isinstance(run, TrainedRun)]
    (group,) = groups_of(runs, names)
    rows = differences_of([group])
    if PRIMARY in sys.argv:
        rows = [row for row in rows if row.measure == AGGREGATE]
        corrected = holm([row.p for row in rows])
        rows = [replace(row, p_holm=p) for row, p in zip(rows, corrected, strict=True)]
    found = {(row.configuration, row.baseline): row for row in rows if row.measure == AGGREGATE}
    print_row("", "parameters", "loops", "seeds", "bits per byte", *(f"less {n}" for n in names))
    print_row("---", *["---:"] * (4 + len(names)))
    for c in group.configurations:
        error, wide = c.standard_error(AGGREGATE), group.wide
        print_row(
            c.name,
            f"{c.parameters / wide.parameters:.2f}" if wide else f"{c.parameters:,}",
            "" if c.expected_loops is None else f"{c.expected_loops:.2f}",
            str(len(c.seeds)),
            f"{c.mean(AGGREGATE):.4f}" + ("" if error is None else f" ± {error:.4f}"),
            *(shown(found.get((c.name, name))) for name in names),
        )
    print(f"\n{sum(row.p == row.p for row in rows)} tests in all")


def print_row(*cells: str) -> None:
    print("|", " | ".join(cells), "|")


def shown(row: Difference | None) -> str:
    """The difference; where there is a test, its interval and Holm's p."""
    if row is None:
        return ""
    if row.p != row.p:
        return f"{row.difference:+.4f}"
    return f"{row.difference:+.4f} ({row.low:+.4f} to {row.high:+.4f}), {row.p_holm:.2g}"


if __name__ == "__main__":
    main()
