"""Prints the table of docs/study.md about rates at width 32: python docs/study/raised_rates.py"""

from kept import print_row, read_group, with_interval

from dualpath_cli.compare.configurations import Configuration
from dualpath_cli.compare.runs import AGGREGATE

RATES = {"narrow": "0.0061, the paper's in effect", "narrow_rate2": "0.0122",
         "narrow_rate8": "0.0488"}  # fmt: skip
ERRORS = (["narrow"], ["narrow_rate2", "narrow_rate8"])
"""Whose runs each error comes from: those at higher rates vary more from seed to seed."""
DUAL, CONTROLS = "a50_k4", ("wide", "loop_k4")


def main() -> None:
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
                RATES[folder],
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
