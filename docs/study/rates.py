"""Prints a table of docs/first_study.md about the learning rate: python docs/study/rates.py scores

At width 64: scores are bits per byte, loops those that the router expects to make, gates those of
both paths and the step sizes of the dual model. `raised` compares families at width 32.
"""

import argparse
from statistics import fmean

from kept import mean_of_last_rows, print_row, read_group, with_interval
from restore import STUDY

from dualpath_cli.compare.configurations import Configuration
from dualpath_cli.compare.runs import AGGREGATE
from dualpath_cli.files.csv_text import read_csv

FAMILIES = {"wide": "PureWide", "loop_k4": "PureLoop, K = 4", "a50_k4": "dual, α = 50 %, K = 4"}
GATES = {"gate of the deep path": "gate_deep", "gate of the wide path": "gate_wide",
         "step sizes": "gain_"}  # fmt: skip
"""How their columns of routing.csv begin."""
TITLES = {"scores": "bits per byte", "loops": "expected loops", "gates": FAMILIES["a50_k4"]}
RAISED = {"narrow": "0.0061, the paper's in effect", "narrow_rate2": "0.0122",
          "narrow_rate8": "0.0488"}  # fmt: skip
ERRORS = (["narrow"], ["narrow_rate2", "narrow_rate8"])
"""Whose runs each error comes from: those at higher rates vary more from seed to seed."""
DUAL, CONTROLS = "a50_k4", ("wide", "loop_k4")


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints a table of docs/first_study.md.")
    parser.add_argument("table", choices=[*TITLES, "raised"])
    table = parser.parse_args().table
    if table == "raised":
        print_raised()
    else:
        print_tuning(table)


def print_tuning(table: str) -> None:
    rows = read_csv(STUDY / "tune" / "validation.csv")
    rates = sorted({float(row["run"].rpartition("lr")[2]) for row in rows})
    print_row(TITLES[table], *(f"{rate:g}" for rate in rates))
    print_row("---", *["---:"] * len(rates))
    if table == "gates":
        for row, column in GATES.items():
            print_row(row, *(f"{routing('a50_k4', rate, column):.2f}" for rate in rates))
    for name, row in FAMILIES.items():
        if table == "scores":
            scores = [bits_per_byte(rows, name, rate) for rate in rates]
            cells = [f"{score:.4f}" for score in scores]
            print_row(row, *(f"**{c}**" if s == min(scores) else c
                             for c, s in zip(cells, scores, strict=True)))  # fmt: skip
        elif table == "loops" and name != "wide":
            print_row(row, *(f"{routing(name, rate, 'expected_loops'):.2f}" for rate in rates))


def bits_per_byte(rows: list[dict[str, str]], name: str, rate: float) -> float:
    """At the end, the mean of the validation sets."""
    return fmean(
        float(row["bits_per_byte"])
        for row in rows
        if row["run"] == f"{name}-lr{rate:g}" and row["step"] == "750"
    )


def routing(name: str, rate: float, column: str) -> float:
    """The last logged mean over layers (and loops)."""
    return mean_of_last_rows("tune", f"{name}-lr{rate:g}", [100], column)


def print_raised() -> None:
    print_row("rate", "seeds", "PureWide", "PureLoop, K = 4", "dual, α = 50 %, K = 4",
              "loops, PureLoop, dual", "dual − wide", "dual − loop_k4")  # fmt: skip
    print_row("---", *["---:"] * 7)
    for folders in ERRORS:
        # One folder's names are enough alone; of several they stand behind the folder's.
        places = {folder: f"{folder}/" if len(folders) > 1 else "" for folder in folders}
        controls = [f"{place}{name}" for place in places.values() for name in CONTROLS]
        group, rows = read_group(folders, controls, primary=True)
        found = {(row.configuration, row.baseline): row for row in rows}
        configurations = {c.name: c for c in group.configurations}
        for folder, place in places.items():
            shown = [configurations[f"{place}{name}"] for name in (*CONTROLS, DUAL)]
            differences = [found[f"{place}{DUAL}", f"{place}{name}"] for name in CONTROLS]
            print_row(
                RAISED[folder],
                str(len(shown[0].seeds)),
                *map(score, shown),
                ", ".join(f"{c.expected_loops:.2f}" for c in shown[1:]),
                *map(with_interval, differences),
            )


def score(configuration: Configuration) -> str:
    error = configuration.standard_error(AGGREGATE)
    return f"{configuration.mean(AGGREGATE):.4f}" + ("" if error is None else f" ± {error:.4f}")


if __name__ == "__main__":
    main()
