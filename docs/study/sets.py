"""Prints a table of docs/study.md: differences on single validation sets.

python docs/study/sets.py narrow --against wide,loop_k4

Bold: p < 0.05 after Holm's correction for the tests of all sets, their mean, and all baselines.
"""

import argparse

from kept import print_row, read_group, run_script, signed

from dualpath_cli.study.levels import LEVEL


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints a table of docs/study.md.")
    parser.add_argument("folder", help="Of kept runs, beside this file.")
    parser.add_argument("--against", required=True, help="Names, separated by commas.")
    given = parser.parse_args()
    names = [name.strip() for name in given.against.split(",")]
    group, rows = read_group([given.folder], names, primary=False)
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


if __name__ == "__main__":
    run_script(main)
