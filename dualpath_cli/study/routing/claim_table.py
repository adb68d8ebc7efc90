"""The claims as tables, of one run and of several, and as rows of files."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dualpath_cli.files import without_nan
from dualpath_cli.output.table import Column, Columns, Table, with_interval
from dualpath_cli.study.routing.claims import Claim, number_of_tests, together

VERDICTS = (
    "holds: beyond the bound, and beyond the same number of the untrained model; as untrained: "
    "beyond the bound alone; fails: on its other side; open: uncertain; mixed: not the same on all "
    "sources; numbers and bounds are our reading of the paper"
)


def as_row(claim: Claim) -> dict[str, Any]:
    """A claim as JSON and CSV have it; None where there is no interval."""
    return without_nan(asdict(claim) | {"verdict": claim.verdict})


def claim_table(statements: Sequence[Claim], bands: str = "") -> Table:
    """The claims as a table: a row each, of all sources together.

    `bands` says which layers are meant, for the caption.
    """
    by_claim: dict[tuple[str, str], list[Claim]] = {}
    for claim in statements:
        by_claim.setdefault((claim.claim, claim.number), []).append(claim)
    columns: Columns[list[Claim]] = [
        (Column("claim"), lambda rows: f"{rows[0].claim}: {rows[0].number}"),
        (Column("value, 95 % interval", _value), list),
        (Column("untrained", ""), lambda rows: _span([row.untrained for row in rows])),
        (Column("test", ""), lambda rows: f"{'>' if rows[0].above else '<'} {rows[0].bound:g}"),
        (Column("verdict"), _verdict),
        (Column("source"), _sources),
    ]
    tests = f"{number_of_tests(statements)} tests, corrected for their number (Holm)"
    caption = f"{bands}value: of several sources the lowest and highest; {tests}; {VERDICTS}"
    return Table.of(list(by_claim.values()), columns, "the paper's claims", caption)


def _value(rows: Sequence[Claim]) -> str:
    if len(rows) > 1 or rows[0].value != rows[0].value:
        return _span([row.value for row in rows])
    return with_interval("+.3f")((rows[0].value, rows[0].low, rows[0].high))


def _verdict(rows: Sequence[Claim]) -> str:
    """That of all sources; where it is mixed, also which source has which."""
    all_of_them = together([row.verdict for row in rows])
    names: dict[str, list[str]] = {}
    for row in rows:
        names.setdefault(row.verdict, []).append(row.source)
    by_verdict = "; ".join(f"{verdict}: {', '.join(of)}" for verdict, of in names.items())
    return all_of_them if len(names) == 1 else f"{all_of_them} ({by_verdict})"


def _sources(rows: Sequence[Claim]) -> str:
    return ", ".join(row.source for row in rows)


Verdicts = dict[tuple[str, str, str], dict[str, str]]
"""By claim, source and test: a cell for each run, value and verdict."""


def verdicts(rows: Sequence[dict[str, Any]]) -> Verdicts:
    """Sets the runs' claims side by side, those of all sources one after the other."""
    found: Verdicts = {}
    for row in rows:
        test = f"{'>' if row['above'] else '<'} {row['bound']:g}"
        value = "" if row["value"] is None else f"{row['value']:+.3f} "
        key = (f"{row['claim']}: {row['number']}", row["source"], test)
        found.setdefault(key, {})[row["run"]] = f"{value}{row['verdict']}"
    claims = list(dict.fromkeys(claim for claim, _, _ in found))
    return {key: found[key] for key in sorted(found, key=lambda key: claims.index(key[0]))}


def runs_table(found: Verdicts, runs: Sequence[str], *, sortable: bool = False) -> Table:
    """The claims run by run: a row a claim and source, a column a run.

    Rows name their claim where those before do not, or all where they are `sortable`.
    """
    columns = [Column("claim"), *(Column(name) for name in ("source", "test", *runs))]
    rows = []
    before = ""
    for (claim, source, test), cells in found.items():
        name = "" if claim == before and not sortable else claim
        rows.append((name, source, test, *(cells.get(run) for run in runs)))
        before = claim
    return Table(columns, rows, "the paper's claims, run by run", VERDICTS, names=2)


def _span(values: Sequence[float]) -> str:
    known = [value for value in values if value == value]
    ends = dict.fromkeys(f"{value:+.3f}" for value in (min(known), max(known))) if known else ()
    return " to ".join(ends)
