"""Prints a table of docs/first_study.md: kept runs of one or more folders, against some of them.

python docs/study/tables.py paper_rate --against wide,loop_k4
python docs/study/tables.py narrow --against wide,loop_k4 --primary
python docs/study/tables.py narrow --against wide,loop_k4 --by-set

Means of the validation sets: difference, 95 % interval, p after Holm's correction. Below, how many
tests hold by the pairs' own differences, and the mean lead of all dual models. --by-set shows the
differences on single validation sets; bold is p < 0.05 after Holm's correction for the tests of all
sets, their mean, and all baselines.
"""

import argparse
from statistics import fmean

from kept import print_row, read_group, signed, with_interval
from restore import run_script

from dualpath_cli.compare.configurations import Group
from dualpath_cli.compare.differences import Difference
from dualpath_cli.compare.runs import AGGREGATE
from dualpath_cli.statistics.levels import LEVEL, holm


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints a table of docs/first_study.md.")
    parser.add_argument("folders", nargs="+", help="Of kept runs, beside this file.")
    parser.add_argument("--against", required=True, help="Names, separated by commas.")
    parser.add_argument("--any-length", action="store_true", help="As `compare` has it.")
    parser.add_argument(
        "--primary", action="store_true", help="Correct among tests of the mean alone."
    )
    parser.add_argument(
        "--rows", nargs="+", help="These alone; p is corrected for their tests, while the error "
        "comes from all configurations.",
    )  # fmt: skip
    parser.add_argument("--sets", nargs="+", help="Validation sets, whose mean is taken.")
    parser.add_argument("--seeds", nargs="+", type=int, help="These alone.")
    parser.add_argument("--by-set", action="store_true", help="Differences on single sets.")
    given = parser.parse_args()
    names = [name.strip() for name in given.against.split(",")]
    group, rows = read_group(
        given.folders, names, primary=given.primary, any_length=given.any_length,
        shown=given.rows, sets=given.sets, seeds=given.seeds,
    )  # fmt: skip
    if given.by_set:
        print_by_set(group, rows, names)
        return
    found = {(row.configuration, row.baseline): row for row in rows if row.measure == AGGREGATE}
    print_row("", "parameters", "loops", "seeds", "bits per byte", *(f"minus {n}" for n in names))
    print_row("---", *["---:"] * (4 + len(names)))
    configurations = [c for c in group.configurations if c.name in (given.rows or [c.name])]
    families = {c.name: c.family for c in configurations}
    lowest = min(c.mean(AGGREGATE) for c in configurations)
    for c in configurations:
        mean, error, wide = c.mean(AGGREGATE), c.standard_error(AGGREGATE), group.wide
        score = f"**{mean:.4f}**" if mean == lowest else f"{mean:.4f}"
        print_row(
            c.name,
            f"{c.parameters / wide.parameters:.2f}" if wide else f"{c.parameters:,}",
            "" if c.expected_loops is None else f"{c.expected_loops:.2f}",
            str(len(c.seeds)),
            score + ("" if error is None else f" ± {error:.4f}"),
            *(difference(found.get((c.name, name))) for name in names),
        )
    print()
    for name in names:
        leads = [row.difference for row in found.values()
                 if row.baseline == name and families[row.configuration] == "dual"]  # fmt: skip
        if leads:
            print(f"the {len(leads)} dual models minus {name}, in the mean: {signed(fmean(leads))}")
    if tested := [row for row in rows if row.p == row.p]:
        detectable = sorted({f"{row.detectable:.4f}" for row in tested if row.measure == AGGREGATE})
        pairs = sum(p < LEVEL for p in holm([row.p_pair for row in tested]))
        print(
            f"{len(tested)} tests in all; detectable, uncorrected: {', '.join(detectable)}; p < "
            f"{LEVEL:g} after correction: {sum(row.p_holm < LEVEL for row in tested)}, by the "
            f"pairs' own differences {pairs}"
        )


def print_by_set(group: Group, rows: list[Difference], names: list[str]) -> None:
    sets = group.measures[1:]
    print_row("", *sets)
    print_row("---", *["---:"] * len(sets))
    for name in names:
        for c in group.configurations:
            found = {r.measure: r for r in rows if (r.configuration, r.baseline) == (c.name, name)}
            if found:
                cells = [(signed(found[s].difference), found[s].p_holm < LEVEL) for s in sets]
                shown = [f"**{text}**" if clear else text for text, clear in cells]
                print_row(f"{c.name} − {name}", *shown)


def difference(row: Difference | None) -> str:
    """With its interval and Holm's p where there is a test."""
    if row is None:
        return ""
    return signed(row.difference) if row.p != row.p else f"{with_interval(row)}, {row.p_holm:.2g}"


if __name__ == "__main__":
    run_script(main)
