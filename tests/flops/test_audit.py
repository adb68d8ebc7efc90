"""The audit's numbers and verdicts, and that they follow from the tables."""

import copy
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest

from dualpath_cli.flops import paper
from dualpath_cli.flops.audit import report as audit
from dualpath_cli.flops.audit import results as audit_results
from dualpath_cli.flops.audit import tables as audit_tables
from dualpath_cli.flops.audit.finding import Finding
from dualpath_cli.flops.request import DEFAULT_TFLOPS
from dualpath_cli.flops.table import ASSUMED

ROWS = audit_tables.compare()


def findings() -> list[Finding]:
    """All findings, of every part of the audit."""
    return list(chain(*audit.findings(ROWS).values()))


def claim(words: str) -> Finding:
    """What became of the one claim that holds these words."""
    (finding,) = [finding for finding in findings() if words in finding.claim]
    return finding


@pytest.fixture
def score(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str, float], None]:
    """Changes a score of the paper's tables for one test."""
    tables = copy.deepcopy(paper._tables())
    monkeypatch.setattr(paper, "_tables", lambda: tables)

    def change(budget: str, metric: str, label: str, value: float) -> None:
        tables["results"][budget][metric][tables["result_columns"].index(label)] = value

    return change


# Configuration tables


def test_every_number_of_both_tables_is_compared() -> None:
    """26 Params, 26 Times and 44 widths: PureWide and PureLoop have one, dual rows two."""
    numbers = audit.numbers()
    assert len(numbers) == 26 + 26 + 8 + 2 * 18
    assert len({(n["budget"], n["configuration"], n["quantity"]) for n in numbers}) == len(numbers)


def test_disagreements_are_named_with_their_cause_and_agreements_have_none() -> None:
    for number in audit.numbers():
        agrees = number["agrees_as_written"] and number["agrees_as_trained"]
        assert agrees == (number["cause"] == "")
        assert number["agrees_as_trained"] == (number["quantity"] != "hours_on_64_gpus")


def test_the_two_causes_make_up_the_whole_difference_of_parameters() -> None:
    for row in ROWS:
        difference = row.params["as_trained"] - row.params["as_written"]
        assert row.tied_head + row.narrower == difference
        assert row.tied_head == 50304 * 768


def test_linear_flops_run_over_the_known_ranges() -> None:
    for reading, span in (("as_written", (0.984, 1.003)), ("as_trained", (0.995, 1.047))):
        ratios = [row.linear_ratio[reading] for row in ROWS]
        assert (round(min(ratios), 3), round(max(ratios), 3)) == span


@pytest.mark.parametrize(
    ("words", "verdict", "evidence"),
    [
        # configuration tables
        ("widths follow", "holds", "26 of 26"),
        ("Embeddings are tied", "fails", "0 of 26 Params are reproduced; untied, 3"),
        ("wider than the deep", "fails", "F80M a75_k2, F80M a75_k3, F160M a75_k2, F160M a75_k3"),
        ("at or below F_M", "as written", "as written: 0 of 24"),
        ("within 0.5 %", "fails", "0.995 to 1.047"),
        ("below 2 %", "as written", "up to 4.7 % (F80M a25_k4)"),
        ("PureWide spends strictly more", "as written", "as trained: 18 of 18"),
        ("Attention compute", "fails", "6.3M to 31.5M"),
        ("1.28G and 2.56G", "fails", "1.46G to 1.92G"),
        ("analyses of the gates", "note", "F160M a50_k4; the ablations name F80M, so not one"),
        ("larger alpha reduce", "holds", "24 of 24"),
        ("PureLoop the fewest", "holds", "F80M loop_k2 (398M) and F160M loop_k2 (719M) have more"),
        ("Parameter counts span", "holds", "238M to 1361M"),
        ("share of FFN FLOPs", "note", "as trained: 8 to 21 % at alpha = 25 %"),
        ("Training took", "holds", "12.8 to 21.4"),
        ("hours compare", "note", "42 (F80M wide) to 122 (F160M a75_k4)"),
        # result tables
        ("How many documents", "note", "234 of 234"),
        ("F80M: math peaks", "open", "a75_k4 solves 94 of 1024"),
        ("F80M: math peaks", "open", "a50_k4 solves 92"),
        ("F80M: math peaks", "open", "standard error of 0.9 points"),
        ("F160M: math peaks", "open", "wide solves 128"),
        ("printed averages", "holds", "at most 0.0000"),
        ("F80M: a50_k4 beats both", "holds", "0.67 of PureWide's parameters"),
        ("F160M: a25_k4 beats both", "holds", "0.8478 against 0.8530 (wide) and 0.8622 (loop_k2)"),
        (
            "F80M: a50_k4 has the best",
            "holds",
            "the best is a25_k3 (0.8685 against 0.8693). 6 of 9",
        ),
        ("F160M: a25_k4 has the best", "holds", "best of all nine too. 6 of 9"),
        ("F80M: does the ranking", "note", "9 of 9 beat PureWide"),
        ("F160M: does the ranking", "note", "5 of 9 beat PureWide"),
        ("seed", "note", "each row is one run"),
    ],
)
def test_claims(words: str, verdict: str, evidence: str) -> None:
    finding = claim(words)
    assert finding.verdict == verdict
    assert evidence in finding.found


def test_default_rate_and_its_range_are_those_that_the_papers_hours_imply() -> None:
    rates = sorted(row.implied_tflops for row in ROWS)
    assert round((rates[12] + rates[13]) / 2) == DEFAULT_TFLOPS
    assert f"{rates[0]:.0f} to {rates[-1]:.0f} TFLOP/s" in ASSUMED
    low, high = paper.stated("hours_range")
    assert f"{low} to {high} hours" in ASSUMED


def test_hours_at_the_implied_rate_are_the_papers() -> None:
    for row in ROWS:
        at_implied = row.hours("as_trained") * DEFAULT_TFLOPS / row.implied_tflops
        assert at_implied == pytest.approx(row.printed.hours_on_64_gpus)


# Result tables


def test_aggregates_of_the_text_come_out_of_the_tables() -> None:
    for budget, printed in paper.stated("aggregate_bpb").items():
        scores = audit_results.aggregate_bpb(budget)
        loops = [value for label, value in scores.items() if label.startswith("loop")]
        ours = scores | {"best_loop": min(loops)}
        assert {label: ours[label] for label in printed} == pytest.approx(printed, abs=1e-4)


@pytest.mark.parametrize(
    ("changed", "words", "verdict", "evidence"),
    [
        # an accuracy off the grid
        (("F80M", "PIQA Acc.", "wide", 0.6480), "How many documents", "note", "233 of 234"),
        # another peak
        (("F160M", "GSM8k Acc.", "a25_k4", 0.2), "F160M: math peaks", "fails", ""),
        # a wrong average
        (("F160M", "Commonsense BPB", "a25_k4", 0.9620), "printed averages", "fails", ""),
        # another best dual configuration
        (("F80M", "C4", "a25_k4", 0.9), "F80M: a50_k4 has the best", "fails", ""),
    ],
)
def test_other_scores_would_give_other_findings(
    changed: tuple[str, str, str, float], words: str, verdict: str, evidence: str, score: Any
) -> None:
    score(*changed)
    assert claim(words).verdict == verdict
    assert evidence in claim(words).found


def test_a_clear_lead_on_gsm8k_would_not_be_called_noise(score: Any) -> None:
    score("F80M", "GSM8k Acc.", "a75_k4", 0.1504)
    finding = claim("F80M: math peaks")
    assert finding.verdict == "holds"
    assert "noise" not in finding.found


# The report


def test_the_text_names_every_configuration_finding_and_verdict() -> None:
    text = audit.as_text()
    for row in paper.configurations():
        assert text.count(f"\n{row.label} ") >= 2
    unwrapped = " ".join(text.split())
    for finding in findings():
        assert f"{finding.verdict} {finding.claim} {finding.found}" in unwrapped
    assert max(map(len, text.splitlines())) <= 100


def test_the_record_holds_the_numbers_and_both_kinds_of_findings() -> None:
    record = audit.as_record()
    assert record["numbers"] == audit.numbers()
    parts = audit.findings(ROWS)
    assert list(record) == ["numbers", *parts]
    for part, found in parts.items():
        assert [Finding(**finding) for finding in record[part]] == found


def test_every_finding_is_a_claim_and_every_note_a_question() -> None:
    claims = [finding.claim for finding in findings()]
    assert len(set(claims)) == len(claims)
    for finding in findings():
        assert finding.claim.endswith("?" if finding.verdict == "note" else (".", ")."))
        assert finding.found.endswith(".")
        assert ".." not in f"{finding.claim} {finding.found}"
