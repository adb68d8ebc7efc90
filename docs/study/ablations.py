"""Prints what overrides cost, as docs/first_study.md has it: means over seeds, with least and most.

python docs/study/ablations.py narrow-a50_k4 --rows K=1 K=2 shuffled    # nats per token
python docs/study/ablations.py narrow-a50_k4 --classes                 # nats per forced token
"""

import argparse
from statistics import fmean

from kept import print_row, signed
from restore import STUDY, check_known, run_script

from dualpath_cli.files.csv_text import read_csv

Row = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints a table of docs/first_study.md.")
    parser.add_argument("model", help="SWEEP-CONFIGURATION, as in ablations.csv.")
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--rows", nargs="+", help="Overrides: K=1, shuffled.")
    chosen.add_argument("--classes", action="store_true", help="Classes of tokens instead.")
    given = parser.parse_args()
    kept = read_csv(STUDY / ("ablation_classes.csv" if given.classes else "ablations.csv"))
    models: dict[str, dict[str, list[Row]]] = {}
    for row in kept:
        model = models.setdefault(f"{row['sweep']}-{row['run']}", {})
        model.setdefault(row["seed"], []).append(row)
    check_known("model", [given.model], models)
    seeds = list(models[given.model].values())
    known = list(dict.fromkeys(name_of(row) for row in seeds[0]))
    names = known if given.classes else given.rows
    check_known("override", names, known)
    column = "per_forced" if given.classes else "difference"
    sources = list(dict.fromkeys(row["source"] for row in seeds[0]))
    print_row(f"{len(seeds)} seeds" if len(seeds) > 1 else "one seed", *sources)
    print_row("---", *["---:"] * len(sources))
    for name in names:
        cells = []
        for source in sources:
            rows = [
                r for rows in seeds for r in rows if (name_of(r), r["source"]) == (name, source)
            ]
            cells.append(spread([float(row[column]) for row in rows]))
        print_row(name, *cells)


def name_of(row: Row) -> str:
    """Of an override: `K=1`, or `arithmetic wide` of a class."""
    return row.get("intervention") or f"{row['token_class']} {row['path']}"


def spread(values: list[float]) -> str:
    """The mean, and from the least to the most."""
    mean = signed(fmean(values), 3)
    return (
        mean
        if len(values) == 1
        else f"{mean} ({signed(min(values), 3)} to {signed(max(values), 3)})"
    )


if __name__ == "__main__":
    run_script(main)
