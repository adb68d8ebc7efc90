"""Prints a table of docs/study.md: kept runs of one or more folders, against some of them.

python docs/study/tables.py docs/study/paper_rate --against wide,loop_k4
python docs/study/tables.py docs/study/narrow --against wide,loop_k4 --primary

Means of the validation sets: difference, 95 % interval, p after Holm's correction.
"""

import argparse

from kept import read_group

from dualpath_cli.compare.differences import Difference
from dualpath_cli.compare.runs import AGGREGATE


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints a table of docs/study.md.")
    parser.add_argument("folders", nargs="+", help="Folders of kept runs.")
    parser.add_argument("--against", required=True, help="Names, separated by commas.")
    parser.add_argument("--any-length", action="store_true", help="As `compare` has it.")
    parser.add_argument(
        "--primary", action="store_true", help="Correct among tests of the mean alone."
    )
    given = parser.parse_args()
    names = given.against.split(",")
    group, rows = read_group(
        given.folders, names, primary=given.primary, any_length=given.any_length
    )
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
    tested = [row for row in found.values() if row.p == row.p]
    print(f"\n{sum(row.p == row.p for row in rows)} tests in all", end="")
    if tested:
        detectable = sorted({f"{row.detectable:.4f}" for row in tested})
        print(f"; detectable, uncorrected: {', '.join(detectable)}", end="")
    print()


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
