"""Prints the trials of the learning rate as docs/study.md has them: python docs/study/rates.py"""

from pathlib import Path
from statistics import fmean

from dualpath_cli.output.csv_text import read_csv

FAMILIES = {"wide": "PureWide", "loop_k4": "PureLoop, K = 4", "a50_k4": "dual, α = 50 %, K = 4"}


def main() -> None:
    folder = Path(__file__).with_name("tune")
    rates = sorted({float(path.name.rpartition("lr")[2]) for path in folder.iterdir()})
    print("| |", " | ".join(f"{rate:g}" for rate in rates), "|")
    print("| --- |", " | ".join("---:" for _ in rates), "|")
    for name, title in FAMILIES.items():
        cells = []
        for rate in rates:
            rows = read_csv(folder / f"{name}-lr{rate:g}" / "seed_100" / "validation.csv")
            ends = [float(row["bits_per_byte"]) for row in rows if row["step"] == "750"]
            cells.append(f"{fmean(ends):.4f}" if ends else "")
        print(f"| {title} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
