"""The claims as a table, and as rows of files."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from dualpath_cli.study.routing.claims import Claim, number_of_tests, together
from dualpath_cli.study.tables import interval_text, table_of, without_nan

VERDICTS = (
    "holds: beyond the bound, and beyond the same number of the untrained model; as untrained: "
    "beyond the bound alone; fails: on its other side; open: uncertain; mixed: not the same on all "
    "sources; numbers and bounds are our reading of the paper"
)


def as_row(claim: Claim) -> dict[str, Any]:
    """A claim as JSON and CSV have it; None where there is no interval."""
    return without_nan(asdict(claim) | {"verdict": claim.verdict})


def claim_table(statements: Sequence[Claim]) -> Table:
    """The claims as a table: a row each, what its sources say one after the other in it."""
    tests = f"{number_of_tests(statements)} tests, corrected for their number (Holm)"
    table = table_of("the paper's claims", (), (), f"{tests}; {VERDICTS}")
    table.add_column("claim")
    for name in ("value", "95 % interval", "untrained", "test"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("source by source")
    for rows in by_claim(statements).values():
        claim = rows[0]
        one = len(rows) == 1
        table.add_row(
            f"{claim.claim}: {claim.number}",
            _span([row.value for row in rows]),
            interval_text(claim.low, claim.high, "+.3f") if one else "",
            _span([row.untrained for row in rows]),
            f"{'>' if claim.above else '<'} {claim.bound:g}",
            together([row.verdict for row in rows]),
            claim.source if one else _by_verdict(rows),
        )
    return table


def by_claim(statements: Sequence[Claim]) -> dict[tuple[str, str], list[Claim]]:
    """Groups the claims of several sources, in their order."""
    groups: dict[tuple[str, str], list[Claim]] = {}
    for claim in statements:
        groups.setdefault((claim.claim, claim.number), []).append(claim)
    return groups


def _span(values: Sequence[float]) -> str:
    known = [value for value in values if value == value]
    ends = dict.fromkeys(f"{value:+.3f}" for value in (min(known), max(known))) if known else ()
    return " to ".join(ends)


def _by_verdict(rows: Sequence[Claim]) -> str:
    names: dict[str, list[str]] = {}
    for row in rows:
        names.setdefault(row.verdict, []).append(row.source)
    return "; ".join(f"{verdict}: {', '.join(sources)}" for verdict, sources in names.items())
