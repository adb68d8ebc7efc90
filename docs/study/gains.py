"""Prints the table of docs/first_study.md about gains: python docs/study/gains.py"""

from kept import mean_of_last_rows, print_row, read_group, signed, with_interval

from dualpath_cli.compare.runs import AGGREGATE

DECAYED, NOT = "decay_matrices+norms+gains+biases", "decay_matrices+norms+biases"
FIRST = f"{DECAYED}-gain_init_-7"
ROWS = {
    "−7, decayed (the paper's as trained, inferred)": FIRST,
    "−7, not decayed": f"{NOT}-gain_init_-7",
    "−2, decayed": f"{DECAYED}-gain_init_-2",
    "−2, not decayed": f"{NOT}-gain_init_-2",
}


def main() -> None:
    group, rows = read_group(["gains"], [f"wide-{FIRST}", f"a50_k4-{FIRST}"], primary=False)
    found = {(row.configuration, row.baseline): row for row in rows if row.measure == AGGREGATE}
    configurations = {c.name: c for c in group.configurations}
    print_row("gains", "step sizes, wide, dual", "PureWide", "", "dual, α = 50 %, K = 4", "",
              "dual − wide")  # fmt: skip
    print_row("---", "---:", "---:", "---", "---:", "---", "---:")
    for title, settings in ROWS.items():
        sizes, cells = [], []
        for family in ("wide", "a50_k4"):
            c = configurations[f"{family}-{settings}"]
            size = mean_of_last_rows("gains", c.name, c.seeds, "gain_")
            sizes.append(f"{size:.3f}" if size < 0.01 else f"{size:.2f}")
            cells.append(f"{c.mean(AGGREGATE):.4f} ± {c.standard_error(AGGREGATE):.4f}")
            row = found.get((c.name, f"{family}-{FIRST}"))
            cells.append(with_interval(row) if row else "")
        wide, dual = (configurations[f"{name}-{settings}"] for name in ("wide", "a50_k4"))
        less = dual.mean(AGGREGATE) - wide.mean(AGGREGATE)
        print_row(title, ", ".join(sizes), *cells, signed(less))


if __name__ == "__main__":
    main()
