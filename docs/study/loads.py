"""Prints how evenly tokens were divided among experts in training, over steps.

python docs/study/loads.py experts

Of each arm of kept runs: the largest load over the mean, its entropy over ln n (1: all alike), and
experts without tokens; means over layers and seeds. Each row of metrics.csv is of the steps since
the one before.
"""

import argparse
from statistics import fmean

from kept import print_row
from restore import STUDY, check_kept, run_script

from dualpath_cli.files.csv_text import read_csv
from dualpath_cli.training.balance import COLUMNS

STEPS = (10, 100, 500, 1000, 1500)


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints the load of experts over training.")
    parser.add_argument("folder", help="Of kept runs, beside this file.")
    folder = parser.parse_args().folder
    check_kept([folder])
    rows = read_csv(STUDY / folder / "metrics.csv")
    print_row("", "", *(f"step {step:,}" for step in STEPS))
    print_row("---", "---", *["---:"] * len(STEPS))
    for arm in dict.fromkeys(row["run"] for row in rows):
        for column in COLUMNS:
            means = [
                fmean(float(value) for row in rows if row["run"] == arm and row["step"] == str(step)
                      for name, value in row.items() if name.startswith(column) and value)
                for step in STEPS
            ]  # fmt: skip
            print_row(arm, column, *(f"{mean:.3f}" for mean in means))


if __name__ == "__main__":
    run_script(main)
