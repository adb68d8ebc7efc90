"""Prints the tables of docs/study.md about the learning rate: python docs/study/rates.py"""

from pathlib import Path
from statistics import fmean

from dualpath_cli.output.csv_text import read_csv

FAMILIES = {"wide": "PureWide", "loop_k4": "PureLoop, K = 4", "a50_k4": "dual, α = 50 %, K = 4"}
TUNE = Path(__file__).with_name("tune")
ROUTING = {
    "expected loops": ("expected_loops",),
    "gate of the deep path": ("gate_deep",),
    "gate of the wide path": ("gate_wide",),
    "step sizes": ("gain_deep_1", "gain_deep_2", "gain_deep_3", "gain_deep_4", "gain_wide"),
}
"""Columns of routing.csv."""


def main() -> None:
    rates = sorted({float(path.name.rpartition("lr")[2]) for path in TUNE.iterdir()})
    header("bits per byte", rates)
    for name, title in FAMILIES.items():
        print_row(title, [f"{bits_per_byte(name, rate):.4f}" for rate in rates])
    for what, columns in ROUTING.items():
        print()
        header(what, rates)
        for name, title in FAMILIES.items():
            values = [mean_over_layers(name, rate, columns) for rate in rates]
            if None not in values:
                print_row(title, [f"{value:.2f}" for value in values])


def header(what: str, rates: list[float]) -> None:
    print_row(what, [f"{rate:g}" for rate in rates])
    print_row("---", ["---:"] * len(rates))


def print_row(title: str, cells: list[str]) -> None:
    print("|", " | ".join([title, *cells]), "|")


def bits_per_byte(name: str, rate: float) -> float:
    """At the end, the mean of the validation sets."""
    rows = read_csv(run(name, rate) / "validation.csv")
    return fmean(float(row["bits_per_byte"]) for row in rows if row["step"] == "750")


def mean_over_layers(name: str, rate: float, columns: tuple[str, ...]) -> float | None:
    """At the last step that has one; None for a model without such columns."""
    rows = read_csv(run(name, rate) / "routing.csv")
    values = [row.get(column) for row in rows if row["step"] == "700" for column in columns]
    return fmean(map(float, filter(None, values))) if any(values) else None


def run(name: str, rate: float) -> Path:
    """Its folder."""
    return TUNE / f"{name}-lr{rate:g}" / "seed_100"


if __name__ == "__main__":
    main()
