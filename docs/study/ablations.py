"""Prints what overrides cost, as docs/study.md has it: means over seeds, with least and most.

python docs/study/ablations.py narrow-a50_k4 narrow_sampled-a50_k4     # of docs/study/ablations
"""

import sys
from statistics import fmean

from kept import STUDY, print_row, signed

from dualpath_cli.output.csv_text import read_csv

Row = dict[str, str]
FOLDER = STUDY / "ablations"


def main() -> None:
    for model in sys.argv[1:]:
        seeds = [read_csv(path) for path in sorted(FOLDER.glob(f"{model}-seed_[0-9].csv"))]
        of_rows = [[row for row in rows if row["suite"] == "paper"] for rows in seeds]
        print_table(f"{model}, {len(seeds)} seeds, nats", of_rows, ("intervention",), "difference")
        classes = [read_csv(p) for p in sorted(FOLDER.glob(f"{model}-seed_[0-9]-classes.csv"))]
        if classes:
            title = f"{model}, {len(classes)} seeds, excess per forced token"
            print_table(title, classes, ("token_class", "path"), "per_forced")


def print_table(title: str, seeds: list[list[Row]], keys: tuple[str, ...], column: str) -> None:
    """A row for each value of `keys`, a column for each source."""
    names = list(dict.fromkeys(tuple(row[key] for key in keys) for row in seeds[0]))
    sources = list(dict.fromkeys(row["source"] for row in seeds[0]))
    print_row(title, *sources)
    print_row("---", *["---:"] * len(sources))
    for name in names:
        cells = []
        for source in sources:
            values = [
                float(row[column])
                for rows in seeds
                for row in rows
                if row["source"] == source and tuple(row[key] for key in keys) == name
            ]
            cells.append(" ".join([signed(fmean(values), 3), spread(values)]))
        print_row(" ".join(name), *cells)
    print()


def spread(values: list[float]) -> str:
    """From the least to the most."""
    return f"({signed(min(values), 3)} to {signed(max(values), 3)})"


if __name__ == "__main__":
    main()
