"""A comparison, printed and written: tables, CSV files, figures and the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dualpath_cli.base.files import write_texts
from dualpath_cli.base.output import amount, printable
from dualpath_cli.compare import figures, routing_figure
from dualpath_cli.compare.configurations import Group
from dualpath_cli.compare.differences import Difference
from dualpath_cli.compare.fits import report
from dualpath_cli.compare.fits.report import ScalingLaws
from dualpath_cli.compare.studies import (
    Record,
    ablations_of,
    evaluations_of,
    routing_of,
    table_of_classes,
    table_of_scores,
)
from dualpath_cli.compare.tables import (
    group_tables,
    records_of_groups,
    records_of_runs,
    records_of_tests,
    tables_of_tests,
)
from dualpath_cli.report import page
from dualpath_cli.report.console import plain_console, print_line
from dualpath_cli.report.figures import save
from dualpath_cli.report.table import Table, format_csv, markdown, show


@dataclass(frozen=True)
class Comparison:
    """All that is known of some runs."""

    groups: Sequence[Group]
    differences: Sequence[Difference]
    ablations: Sequence[Record]
    ablation_classes: Sequence[Record]
    routings: Sequence[Record]
    evaluations: Sequence[Record]
    left_out: Sequence[str]  # a line for each run or report that is left out
    laws: ScalingLaws | None = None  # with --fit

    @classmethod
    def with_studies(
        cls,
        groups: Sequence[Group],
        differences: Sequence[Difference],
        left_out: Sequence[str],
        laws: ScalingLaws | None,
    ) -> "Comparison":
        """Adds the ablations, routings and evaluations that the runs of the groups
        have."""
        ablations, classes, damaged = ablations_of(groups)
        routings, unrouted = routing_of(groups)
        evaluations, unscored = evaluations_of(groups)
        return cls(
            groups,
            differences,
            ablations,
            classes,
            routings,
            evaluations,
            left_out=[*left_out, *damaged, *unrouted, *unscored],
            laws=laws,
        )

    @property
    def tests_made(self) -> int:
        return sum(row.tested for row in self.differences)

    @property
    def notes(self) -> list[str]:
        """A line for each thing that no table says."""
        return [*self.left_out, *(self.laws.notes if self.laws else ())]

    def tables_of_laws(self) -> list[Table]:
        return self.laws.tables() if self.laws else []

    def tables_of_studies(self) -> list[Table]:
        tables = []
        for group in self.groups:
            classes = [
                row for row in self.ablation_classes if row["group"] == group.name
            ]
            if classes:
                tables.append(table_of_classes(classes))
            scores = [row for row in self.evaluations if row["group"] == group.name]
            if scores:
                tables.append(table_of_scores(scores))
        return tables


def print_comparison(comparison: Comparison) -> None:
    """Prints a line for each run that is left out, then the tables with the tests of
    aggregates."""
    console = plain_console()
    for line in comparison.notes:
        print_line(console, line)

    for group in comparison.groups:
        of_aggregate = [
            row
            for row in comparison.differences
            if row.group == group.name and row.measure == group.measures[0]
        ]
        for table in group_tables(group, errors=False):
            show(console, table)
        for table in tables_of_tests(of_aggregate, comparison.tests_made):
            show(console, table)
    for table in [*comparison.tables_of_laws(), *comparison.tables_of_studies()]:
        show(console, table)


def write_comparison(comparison: Comparison, out: Path) -> list[Path]:
    """Writes all files, and removes those of an earlier comparison that this one has
    not."""
    groups = comparison.groups
    tests = tables_of_tests(comparison.differences, comparison.tests_made)
    laws = comparison.laws
    drawn = figures.draw(groups, comparison.differences, comparison.evaluations)
    drawn["routing"] = routing_figure.draw(groups, comparison.routings)
    drawn["profiles"] = laws.draw() if laws else None
    captions = figures.captions(groups, comparison.evaluations)
    captions["routing"] = routing_figure.CAPTION
    captions["profiles"] = report.CAPTION
    main = [table for group in groups for table in group_tables(group)]

    texts = {
        "table.csv": format_csv(records_of_groups(groups)),
        "table.md": "\n".join(map(markdown, main)),
        "tests.md": "\n".join(map(markdown, tests)),
        "tests.csv": format_csv(records_of_tests(comparison.differences)),
        "runs.csv": format_csv(records_of_runs(groups)),
        "fits.csv": format_csv(laws.records() if laws else ()),
        "multipliers.csv": format_csv(laws.records_of_multipliers() if laws else ()),
        "ablations.csv": format_csv(comparison.ablations),
        "ablation_classes.csv": format_csv(comparison.ablation_classes),
        "routing.csv": format_csv(comparison.routings),
        "evaluations.csv": format_csv(comparison.evaluations),
        "index.html": page.page(
            "Comparison of runs",
            [
                page.lead(_lead(comparison)),
                page.terms([("note", printable(line)) for line in comparison.notes]),
                page.tables(_tables_of_page(comparison, tests)),
                page.pictures(drawn, captions),
            ],
        ),
    }
    return [*write_texts(out, texts), *save(out, drawn)]


def _lead(comparison: Comparison) -> str:
    shown = [c for group in comparison.groups for c in group.configurations]
    runs = sum(len(c.all_runs) for c in shown)
    tests = "tests of the differences, " if comparison.tests_made else ""
    return (
        f"Bits per byte of {amount('runs', runs)} on validation text, lower is "
        f"better: means over seeds beside the costs of each model, {tests}and training "
        "curves."
    )


def _tables_of_page(comparison: Comparison, tests: Sequence[Table]) -> list[Table]:
    # On a phone the result stands beside the name.
    first = [
        table
        for group in comparison.groups
        for table in group_tables(group, result_first=True)
    ]
    laws = comparison.tables_of_laws()
    return [*first, *tests, *laws, *comparison.tables_of_studies()]
