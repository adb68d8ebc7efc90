"""Prints the paper's claims about routing, seed by seed: python docs/study/routing.py

From routing/claims.csv, which `dualpath routing` wrote: the numbers from the least source to the
most, and on how many sources a claim holds, fails, is open, or is as in the untrained model.
"""

from collections import Counter

from kept import print_row, signed
from restore import STUDY

from dualpath_cli.files.csv_text import read_csv

SAID = {"holds": "holds", "fails": "fails", "open": "open", "as untrained": "untrained"}


def main() -> None:
    rows = read_csv(STUDY / "routing" / "claims.csv")
    runs = list(dict.fromkeys(row["run"] for row in rows))
    claims = list(dict.fromkeys((row["claim"], row["number"]) for row in rows))
    print_row("claim", "bound", *(run.replace("_", " ") for run in runs))
    print_row("---", "---:", *["---"] * len(runs))
    for claim, number in claims:
        found = [row for row in rows if (row["claim"], row["number"]) == (claim, number)]
        sign, bound = ">" if found[0]["above"] == "True" else "<", float(found[0]["bound"])
        cells = [cell_of([row for row in found if row["run"] == run]) for run in runs]
        text = f"{claim}: {number}".replace("|", r"\|").replace(" - ", " − ")
        print_row(text, f"{sign} {bound:g}", *cells)


def cell_of(rows: list[dict[str, str]]) -> str:
    """Of one claim and run."""
    values = [float(row["value"]) for row in rows]
    counts = Counter(SAID[row["verdict"]] for row in rows)
    verdicts = ", ".join(f"{name} {count}" for name, count in counts.most_common())
    ends = dict.fromkeys([signed(min(values), 2), signed(max(values), 2)])
    return f"{' to '.join(ends)}: {verdicts}"


if __name__ == "__main__":
    main()
