"""Tables as text, before they are drawn on a screen, in Markdown, LaTeX or HTML; and as records."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dualpath_cli.compare.configurations import Configuration, Group
from dualpath_cli.compare.differences import Difference
from dualpath_cli.study.tables import interval_text, without_nan

TESTS = (
    "interval and p: each by itself; Holm: p corrected for the number of tests; detectable: the "
    "smallest true difference found at 5 % with a probability of 80 %, before that correction; "
    "undecided: the interval holds 0"
)


@dataclass(frozen=True)
class Cell:
    """A field of a table."""

    text: str
    order: float | None = None
    """What rows are sorted by, where the text is a number."""
    best: bool = False
    """Whether it is the best of its column."""


@dataclass(frozen=True)
class Sheet:
    """A table as text."""

    title: str
    caption: str
    names: tuple[str, ...]
    """Headings of its first columns, which are words."""
    numbers: tuple[str, ...]
    """Headings of the others."""
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def headings(self) -> tuple[str, ...]:
        """Of all columns."""
        return (*self.names, *self.numbers)


def sheet_of_group(group: Group, errors: bool = True) -> Sheet:
    """A row a configuration; without `errors` the standard error of the aggregate alone."""
    best, wide = {measure: _best(group, measure) for measure in group.measures}, group.wide
    lengths = len({c.tokens for c in group.configurations}) > 1
    routed = any(c.expected_loops is not None for c in group.configurations)
    rows = []
    for c in group.configurations:
        cells = [
            Cell(c.name),
            Cell(c.family),
            _number(c.alpha, ".0f"),
            _number(c.loops, "d"),
            *([_number(c.expected_loops, ".2f")] if routed else []),
            _number(c.parameters, "", count(c.parameters)),
            _ratio(c.parameters, wide.parameters if wide else None),
            _number(c.flops_linear, "", count(c.flops_linear)),
            _number(c.flops_total, "", count(c.flops_total)),
        ]
        if lengths:
            cells += [_number(c.tokens, "", count(c.tokens)), _number(c.hours, ".3g")]
        cells.append(_number(len(c.seeds), "d"))
        for n, measure in enumerate(group.measures):
            text = f"{c.mean(measure):.4f}"
            error = c.standard_error(measure)
            if error is not None and (errors or n == 0):
                text += f" ± {error:.4f}"
            cells.append(Cell(text, c.mean(measure), c is best[measure]))
        micro = 1e6 * c.seconds_per_token
        cells.append(_number(micro, ".0f" if micro >= 100 else ".2f"))
        cells.append(_ratio(c.seconds_per_token, wide.seconds_per_token if wide else None))
        rows.append(tuple(cells))
    numbers = (
        "α %", "K", *(("loops",) if routed else ()), "params", "params/wide", "linear", "total",
        *(("tokens", "hours") if lengths else ()), "seeds", *group.measures, "µs/token",
        "time/wide",
    )  # fmt: skip
    caption = (
        "bits per byte, the lowest of each column marked; ± one standard error over seeds, not "
        "that of a difference; linear, total: FLOPs per token and layer; time as measured"
    )
    if routed:
        caption += "; loops: that the router expects to make, as last logged in training"
    if lengths:
        caption += "; hours: of one run, its tokens at its measured speed"
    note = f"; {group.note}" if group.note else ""
    return Sheet(group.name, caption + note, ("configuration", "family"), numbers, tuple(rows))


def sheets_of_tests(rows: Sequence[Difference], total: int) -> list[Sheet]:
    """A table for each group and baseline; `total` tests were made in all."""
    parts: dict[tuple[str, str], list[Difference]] = {}
    for row in rows:
        parts.setdefault((row.group, row.baseline), []).append(row)
    return [_sheet_of_tests(part, total) for part in parts.values()]


def _sheet_of_tests(rows: Sequence[Difference], total: int) -> Sheet:
    cells = []
    for row in rows:
        known = row.p == row.p
        cells.append((
            Cell(row.configuration),
            Cell(row.measure),
            Cell(row.verdict),
            Cell(row.test if known else ""),
            _number(row.seeds, "d"),
            _number(row.difference, "+.4f"),
            Cell(interval_text(row.low, row.high, "+.4f"), row.low if known else None),
            _number(row.p, ".2g"),
            _number(row.p_holm, ".2g"),
            _number(row.df if known else math.nan, ".0f"),
            _number(row.detectable, ".4f"),
        ))  # fmt: skip
    return Sheet(
        f"{rows[0].group}: bits per byte less those of {rows[0].baseline}, {_tests(total)} in all",
        TESTS,
        ("configuration", "on", "verdict", "test"),
        ("seeds", "difference", "95 % interval", "p", "Holm", "df", "detectable"),
        tuple(cells),
    )


def _tests(total: int) -> str:
    return f"{total:,} {'test' if total == 1 else 'tests'}"


def _best(group: Group, measure: str) -> Configuration | None:
    """The lowest, of several."""
    if len(group.configurations) < 2:
        return None
    return min(group.configurations, key=lambda c: c.mean(measure))


def _number(value: float | None, spec: str, text: str | None = None) -> Cell:
    if value is None or value != value:
        return Cell("")
    return Cell(format(value, spec) if text is None else text, float(value))


def _ratio(value: float, whole: float | None) -> Cell:
    return Cell("") if whole is None else _number(value / whole, ".2f")


def count(value: float) -> str:
    """Such as 719.0M, 1.361B, 602.1K."""
    for unit, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if value >= unit:
            return f"{value / unit:#.4g}{suffix}"
    return f"{value:.4g}"


def records_of_groups(groups: Sequence[Group]) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of table.csv and their columns: a group has measures of its own."""
    records = []
    for group in groups:
        for c in group.configurations:
            wide = group.wide
            record: dict[str, Any] = {
                "group": group.name, "configuration": c.name, "family": c.family,
                "alpha": c.alpha, "loops": c.loops, "expected_loops": c.expected_loops,
                "layers": c.layers,
                "parameters": c.parameters,
                "parameters_to_wide": wide and c.parameters / wide.parameters,
                "linear_flops": c.flops_linear, "total_flops": c.flops_total,
                "training_tokens": c.tokens, "seeds": len(c.seeds),
                "microseconds_per_token": 1e6 * c.seconds_per_token,
                "time_to_wide": wide and c.seconds_per_token / wide.seconds_per_token,
            }  # fmt: skip
            for measure in group.measures:
                record[measure] = c.mean(measure)
                record[f"{measure}_standard_error"] = c.standard_error(measure)
            records.append(record)
    return records, list(dict.fromkeys(column for record in records for column in record))


def records_of_tests(rows: Sequence[Difference]) -> list[dict[str, Any]]:
    """Rows of tests.csv."""
    return [without_nan({**asdict(row), "verdict": row.verdict}) for row in rows]


def records_of_runs(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Rows of runs.csv: every run with its scores, from which all else can be computed again."""
    return [
        {"group": group.name, "configuration": c.name, "seed": run.seed, "run": str(run.folder),
         "tokens_per_second": run.tokens_per_second, **run.scores}
        for group in groups for c in group.configurations for run in c.runs
    ]  # fmt: skip
