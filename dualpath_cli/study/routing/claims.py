"""The paper's claims about routing as numbers with intervals and tests, one by one, for any run.

A claim sets a number against a bound, and against the same number of the untrained model: what that
has as well was not learned. Both are tests, and all of a run's tests are one family (Holm).

Shapes: R 1 + resamples, L layers with gates.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np
from scipy.stats import rankdata

from dualpath_cli.files import without_nan
from dualpath_cli.output.table import Column, Columns, Table, with_interval
from dualpath_cli.statistics.bootstrap import Floats, correlation_interval, interval
from dualpath_cli.statistics.significance import LEVEL, holm, p_value, permutation_p
from dualpath_cli.study.parts_of_speech import ARITHMETIC, CLOSED, FUNCTION, STRUCTURE, TokenClass
from dualpath_cli.study.routing.readouts import CORNER
from dualpath_cli.study.routing.summary import Summary

REASONING = "gsm8k"
"""The source that the paper calls a reasoning task; what it is compared with asks for knowledge."""
LEAST_LAYERS = 8
"""Profiles over fewer layers are not correlated: two orders of four layers are the same, or each
other's reverse, by chance in one case of twelve."""
LEANINGS: Mapping[TokenClass, tuple[bool, str]] = {
    ARITHMETIC: (True, "arithmetic (NUM, SYM) leans deep"),
    STRUCTURE: (True, "SPACE, PUNCT, SYM lean deep"),
    FUNCTION: (False, "ADJ, ADV, PART, PRON, VERB lean wide"),
    CLOSED: (False, "function words (closed classes) lean wide"),
}
"""Classes of tokens with the claim about each, and whether it says deep or else wide."""


@dataclass(frozen=True)
class Statistic:
    """One number that a claim is about."""

    claim: str
    number: str  # the quantity, in words
    values: Floats  # as it is and resampled, (R,)
    bound: float = 0.0
    above: bool = True  # whether the claim wants the number above or below the bound
    pairs: Sequence[Floats] = ()  # of a correlation, the two sequences that are correlated


@dataclass(frozen=True)
class Claim:
    """One number of a source, or of a pair of them, and what the claim says of it."""

    claim: str
    source: str
    number: str
    value: float
    low: float  # of the 95 % interval over the text, for this number alone
    high: float
    bound: float
    above: bool
    untrained: float  # the same number of the model before training
    p: float  # of the number against the bound, two-sided; of a correlation, by permutation
    p_untrained: float  # of the number against that of the untrained model, two-sided
    p_holm: float = math.nan  # the same, corrected for the number of tests in the family;
    p_untrained_holm: float = math.nan  # `decided` sets both

    @property
    def verdict(self) -> Literal["holds", "fails", "as untrained", "open"]:
        """`holds`: beyond the bound and beyond the untrained model, on the side that is claimed.

        `as untrained`: beyond the bound, but not beyond the untrained model; `fails`: on the other
        side of the bound; `open`: none of these is certain.
        """
        side = 1 if self.above else -1
        beyond = side * (self.value - self.bound)
        if self.p_holm < LEVEL and beyond < 0:
            return "fails"
        if self.p_holm < LEVEL and beyond > 0:
            learned = self.p_untrained_holm < LEVEL and side * (self.value - self.untrained) > 0
            return "holds" if learned else "as untrained"
        return "open"


def claims(sources: Mapping[str, Summary], untrained: Mapping[str, Summary]) -> list[Claim]:
    """Every claim for each source, or pair of sources, that can speak of it.

    `untrained` are the summaries of the same sources under the model as it was before training.
    """
    statements = [
        _claim(name, statistic, null, summary.clusters)
        for name, summary in sources.items()
        for statistic, null in _beside(_single(summary), _single(untrained[name]))
    ]
    pairs = list(combinations(sources, 2))
    if REASONING in sources:
        others = (name for name in sources if name != REASONING)
        pairs = [*((REASONING, other) for other in others),
                 *(pair for pair in pairs if REASONING not in pair)]  # fmt: skip
    for pair in pairs:
        both, nulls = ([of_model[name] for name in pair] for of_model in (sources, untrained))
        clusters = min(summary.clusters for summary in both)
        for statistic, null in _beside(_pair(*pair, *both), _pair(*pair, *nulls)):
            statements.append(_claim(", ".join(pair), statistic, null, clusters))
    return decided(statements)


def same_profile(names: str, runs: Sequence[Summary], untrained: Sequence[Summary]) -> list[Claim]:
    """Whether two runs of as many layers have one profile of deep share over their layers."""

    def profiles(summaries: Sequence[Summary]) -> Iterator[Statistic]:
        one, other = (summary.means["deep_share"] for summary in summaries)
        text = "runs share one profile of deep share over layers"
        number = f"correlation over {one.shape[1]} layers"
        yield Statistic(text, number, _correlation(one, other), pairs=(one[0], other[0]))

    if len(runs[0].layers) < LEAST_LAYERS:
        return []
    clusters = min(summary.clusters for summary in runs)
    return [
        _claim(names, statistic, null, clusters)
        for statistic, null in _beside(profiles(runs), profiles(untrained))
    ]


def decided(statements: Sequence[Claim]) -> list[Claim]:
    """Corrects the p-values of one family of tests for their number."""
    corrected = holm([p for claim in statements for p in (claim.p, claim.p_untrained)])
    return [
        replace(claim, p_holm=p, p_untrained_holm=p_untrained)
        for claim, p, p_untrained in zip(statements, corrected[::2], corrected[1::2], strict=True)
    ]


def number_of_tests(statements: Sequence[Claim]) -> int:
    return sum(p == p for claim in statements for p in (claim.p, claim.p_untrained))


def _beside(
    trained: Iterator[Statistic], untrained: Iterator[Statistic]
) -> Iterator[tuple[Statistic, Statistic | None]]:
    """Sets each number beside that of the untrained model, if that has one."""
    nulls = {(statistic.claim, statistic.number): statistic for statistic in untrained}
    for statistic in trained:
        yield statistic, nulls.get((statistic.claim, statistic.number))


def _claim(source: str, statistic: Statistic, null: Statistic | None, clusters: int) -> Claim:
    values, bound = statistic.values, statistic.bound
    if statistic.pairs:
        ends = correlation_interval(values, clusters)
        p = permutation_p(*(pair.tolist() for pair in statistic.pairs))
    else:
        ends, p = interval(values, clusters), p_value(values, bound, clusters)
    # Resamples of both models have the same text, so that what is text in both cancels.
    untrained = np.full_like(values, np.nan) if null is None else null.values
    return Claim(
        statistic.claim, source, statistic.number,
        float(values[0]), float(ends[0]), float(ends[1]), bound, statistic.above,
        float(untrained[0]), p, p_value(values - untrained, 0.0, clusters),
    )  # fmt: skip


def _single(summary: Summary) -> Iterator[Statistic]:
    share, cosine = summary.means["deep_share"], summary.means["cosine"]
    middle, last = summary.middle, summary.last
    others = [place for place in range(share.shape[1]) if place not in middle]
    if middle and last and not set(middle) & set(last):
        number = f"deep share, {summary.named(middle)}"
        text = "the middle layers are wide-dominated"
        yield Statistic(text, number, share[:, middle].mean(1), 0.5, above=False)
        text = "the middle layers are wider than the others"
        gap = share[:, middle].mean(1) - share[:, others].mean(1)
        yield Statistic(text, f"{number} - that of the others", gap, above=False)
        text, number = "the last layers are deep-dominated", f"deep share, {summary.named(last)}"
        yield Statistic(text, number, share[:, last].mean(1), 0.5)
        rise = share[:, last].mean(1) - share[:, middle].mean(1)
        number = f"deep share, {summary.named(last)} - {summary.named(middle)}"
        yield Statistic("deep share rises to the end", number, rise)
        text, number = "the paths do different things", f"cosine, {summary.named(middle)}"
        yield Statistic(text, number, cosine[:, middle].mean(1), 0.5, above=False)
    yield from _polarisation(summary)
    for token_class, (deep, text) in LEANINGS.items():
        values = summary.class_differences[token_class]
        if np.isfinite(values[0]).all():
            number = "its deep share - that of other tokens"
            yield Statistic(text, number, values.mean(1), above=deep)


def _polarisation(summary: Summary) -> Iterator[Statistic]:
    """Whether gates move apart with depth; the last layer has no scale to compare."""
    early, late = summary.bands.get("early", []), summary.bands.get("late", [])
    late = [place for place in late if not summary.is_last(place)]
    if not early or not late:
        return
    text = "gates polarise with depth"
    bands = f"{summary.named(late)} - {summary.named(early)}"
    committed = summary.means["only_deep"] + summary.means["only_wide"]
    corners = f"tokens with gates above {1 - CORNER:g} and below {CORNER:g}"
    for number, values in (
        (f"|g_d - g_w|, {bands}", summary.means["gate_difference"]),
        (f"{corners}, {bands}", committed),
    ):
        yield Statistic(text, number, values[:, late].mean(1) - values[:, early].mean(1))


def _pair(one: str, other: str, first: Summary, second: Summary) -> Iterator[Statistic]:
    if one == REASONING:
        yield from _aligned(one, other, first, second)
    common = sorted(set(first.known_tags) & set(second.known_tags))
    if len(common) >= 3:
        ranks = [
            rankdata(summary.tag_means[:, common].mean(2), axis=1, nan_policy="propagate")
            for summary in (first, second)
        ]
        text = "parts of speech have one order in all texts"
        pairs = [rank[0] for rank in ranks]
        yield Statistic(text, "rank correlation", _correlation(*ranks), pairs=pairs)


def _aligned(one: str, other: str, first: Summary, second: Summary) -> Iterator[Statistic]:
    after = [summary.aligned[:, summary.offsets > 0] for summary in (first, second)]
    # Where both have enough sequences; the same tokens of both, counted from the anchor.
    known = np.isfinite(after[0][0, :, 0]) & np.isfinite(after[1][0, :, 0])
    if not known.any():
        return
    with np.errstate(invalid="ignore"):
        gap = np.nanmean(after[0][:, known] - after[1][:, known], axis=1)
    for band, values in (("late", gap[:, first.bands["late"]].mean(1)), ("all", gap.mean(1))):
        text = f"{one} is deeper than {other} after the anchor, in {band} layers"
        number = f"mean of {known.sum()} positions' deep share, {one} - {other}"
        yield Statistic(text, number, values)


def _correlation(one: Floats, other: Floats) -> Floats:
    """Of each row with the same row of the other, (R,)."""
    one, other = (values - values.mean(1, keepdims=True) for values in (one, other))
    with np.errstate(invalid="ignore"):  # ranks may all be equal
        return np.asarray((one * other).sum(1) / np.sqrt((one**2).sum(1) * (other**2).sum(1)))


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
        (Column("source"), lambda rows: ", ".join(row.source for row in rows)),
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
    names: dict[str, list[str]] = {}
    for row in rows:
        names.setdefault(row.verdict, []).append(row.source)
    by_verdict = "; ".join(f"{verdict}: {', '.join(of)}" for verdict, of in names.items())
    return rows[0].verdict if len(names) == 1 else f"mixed ({by_verdict})"


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
