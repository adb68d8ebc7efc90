"""The claims as tables, of one run and of several, and as rows of files."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dualpath_cli.files.csv_text import without_nan
from dualpath_cli.output.table import Column, Table, interval
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
    """The claims as a table: a row each, what its sources say one after the other in it.

    `bands` says which layers are meant, for the caption.
    """
    columns = [
        Column("claim", prose=True), Column("value", "", importance=2),
        Column("95 % interval", interval("+.3f"), importance=2), Column("untrained", ""),
        Column("test", ""), Column("verdict", importance=3),
        Column("source by source", importance=0, prose=True),
    ]  # fmt: skip
    by_claim: dict[tuple[str, str], list[Claim]] = {}
    for claim in statements:
        by_claim.setdefault((claim.claim, claim.number), []).append(claim)
    rows = []
    for of_one in by_claim.values():
        claim = of_one[0]
        one = len(of_one) == 1
        rows.append((
            f"{claim.claim}: {claim.number}",
            _span([row.value for row in of_one]),
            (claim.low, claim.high) if one else None,
            _span([row.untrained for row in of_one]),
            f"{'>' if claim.above else '<'} {claim.bound:g}",
            together([row.verdict for row in of_one]),
            claim.source if one else _by_verdict(of_one),
        ))  # fmt: skip
    tests = f"{number_of_tests(statements)} tests, corrected for their number (Holm)"
    return Table(columns, rows, "the paper's claims", f"{bands}{tests}; {VERDICTS}")


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


def runs_table(found: Verdicts, runs: Sequence[str]) -> Table:
    """The claims run by run: a row a claim and source, a column a run."""
    columns = [Column("claim", prose=True), *(Column(name) for name in ("source", "test", *runs))]
    rows = []
    before = ""
    for (claim, source, test), cells in found.items():
        name = "" if claim == before else claim
        rows.append((name, source, test, *(cells.get(run) for run in runs)))
        before = claim
    return Table(columns, rows, "the paper's claims, run by run", VERDICTS)


def _span(values: Sequence[float]) -> str:
    known = [value for value in values if value == value]
    ends = dict.fromkeys(f"{value:+.3f}" for value in (min(known), max(known))) if known else ()
    return " to ".join(ends)


def _by_verdict(rows: Sequence[Claim]) -> str:
    names: dict[str, list[str]] = {}
    for row in rows:
        names.setdefault(row.verdict, []).append(row.source)
    return "; ".join(f"{verdict}: {', '.join(sources)}" for verdict, sources in names.items())
