"""Prints the table of docs/study.md about rates at width 32: python docs/study/raised_rates.py"""

from kept import print_row, read_group, signed, with_interval

from dualpath_cli.compare.configurations import Configuration
from dualpath_cli.compare.runs import AGGREGATE

RATES = {"0.0061, the paper's in effect": "narrow", "0.0122": "narrow_rate2",
         "0.0488": "narrow_rate8"}  # fmt: skip
DUAL, CONTROLS = "a50_k4", ("wide", "loop_k4")


def main() -> None:
    folders = list(RATES.values())
    controls = [f"{folder}/{name}" for folder in folders for name in CONTROLS]
    group, rows = read_group(folders, controls, primary=True)
    found = {(row.configuration, row.baseline): row for row in rows}
    configurations = {c.name: c for c in group.configurations}
    print_row("rate", "seeds", "PureWide", "PureLoop, K = 4", "dual, α = 50 %, K = 4",
              "loops, PureLoop, dual", "dual − wide", "dual − loop_k4")  # fmt: skip
    print_row("---", *["---:"] * 7)
    for title, folder in RATES.items():
        shown = [configurations[f"{folder}/{name}"] for name in (*CONTROLS, DUAL)]
        differences = [found[f"{folder}/{DUAL}", f"{folder}/{name}"] for name in CONTROLS]
        print_row(
            title,
            str(len(shown[0].seeds)),
            *map(score, shown),
            ", ".join(f"{c.expected_loops:.2f}" for c in shown[1:]),
            *(
                with_interval(row) if row.p == row.p else signed(row.difference)
                for row in differences
            ),
        )


def score(configuration: Configuration) -> str:
    error = configuration.standard_error(AGGREGATE)
    return f"{configuration.mean(AGGREGATE):.4f}" + ("" if error is None else f" ± {error:.4f}")


if __name__ == "__main__":
    main()
