"""Prints what forcing loops costs, as docs/study.md has it: python docs/study/loops.py"""

from pathlib import Path

from dualpath_cli.output.csv_text import read_csv

FORCED = ("K=1", "K=2", "K=3", "K=5", "K=10")


def main() -> None:
    for path in sorted(Path(__file__).with_name("ablations").glob("*.csv")):
        rows = [row for row in read_csv(path) if row["suite"] == "paper"]
        sources = list(dict.fromkeys(row["source"] for row in rows))
        print("|", " | ".join([path.stem, *sources]), "|")
        print("| --- |", " | ".join("---:" for _ in sources), "|")
        for forced in FORCED:
            found = {row["source"]: float(row["difference"]) for row in rows
                     if row["intervention"] == forced}  # fmt: skip
            print("|", " | ".join([forced, *(f"{found[name]:+.3f}" for name in sources)]), "|")
        print()


if __name__ == "__main__":
    main()
