"""Prints a table of docs/study.md about the learning rate: python docs/study/rates.py scores

scores are bits per byte, loops those that the router expects to make, gates those of both paths
and the step sizes of the dual model.
"""

import argparse
from statistics import fmean

from kept import STUDY, mean_of_last_rows, print_row

from dualpath_cli.output.csv_text import read_csv

FAMILIES = {"wide": "PureWide", "loop_k4": "PureLoop, K = 4", "a50_k4": "dual, α = 50 %, K = 4"}
TUNE = STUDY / "tune"
GATES = {"gate of the deep path": "gate_deep", "gate of the wide path": "gate_wide",
         "step sizes": "gain_"}  # fmt: skip
"""How their columns of routing.csv begin."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints a table of docs/study.md.")
    parser.add_argument("table", choices=["scores", "loops", "gates"])
    table = parser.parse_args().table
    rates = sorted({float(path.name.rpartition("lr")[2]) for path in TUNE.iterdir()})
    title = {"scores": "bits per byte", "loops": "expected loops", "gates": FAMILIES["a50_k4"]}
    print_row(title[table], *(f"{rate:g}" for rate in rates))
    print_row("---", *["---:"] * len(rates))
    if table == "gates":
        for row, column in GATES.items():
            print_row(row, *(f"{routing('a50_k4', rate, column):.2f}" for rate in rates))
    for name, row in FAMILIES.items():
        if table == "scores":
            scores = [bits_per_byte(name, rate) for rate in rates]
            cells = [f"{score:.4f}" for score in scores]
            print_row(row, *(f"**{c}**" if s == min(scores) else c
                             for c, s in zip(cells, scores, strict=True)))  # fmt: skip
        elif table == "loops" and name != "wide":
            print_row(row, *(f"{routing(name, rate, 'expected_loops'):.2f}" for rate in rates))


def bits_per_byte(name: str, rate: float) -> float:
    """At the end, the mean of the validation sets."""
    rows = read_csv(TUNE / f"{name}-lr{rate:g}" / "seed_100" / "validation.csv")
    return fmean(float(row["bits_per_byte"]) for row in rows if row["step"] == "750")


def routing(name: str, rate: float, column: str) -> float:
    """The last logged mean over layers (and loops)."""
    return mean_of_last_rows(TUNE / f"{name}-lr{rate:g}" / "seed_100" / "routing.csv", column)


if __name__ == "__main__":
    main()
