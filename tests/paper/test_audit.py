"""The audit of the paper: its committed output, and that every verdict follows from the tables."""

import copy
from difflib import unified_diff
from itertools import chain
from pathlib import Path
from typing import Any

import audit
import pytest
from claims import passages, stated
from claims.finding import Finding
from claims.rows import compare, numbers

from dualpath_cli.flops import paper
from dualpath_cli.flops.request import DEFAULT_TFLOPS
from dualpath_cli.flops.table import ASSUMED

ROWS = compare()


def findings() -> list[Finding]:
    """All findings, of every part of the audit."""
    return list(chain(*audit.findings(ROWS).values()))


def claim(words: str) -> Finding:
    """What became of the one claim that holds these words."""
    (finding,) = [finding for finding in findings() if words in finding.claim]
    return finding


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The paper's tables, to be changed for one test."""
    changed = copy.deepcopy(paper.tables())
    monkeypatch.setattr(paper, "tables", lambda: changed)
    return changed


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the paper's text states, to be changed for one test."""
    changed = copy.deepcopy(stated.statements())
    monkeypatch.setattr(stated, "statements", lambda: changed)
    return changed


def set_score(tables: Any, budget: str, metric: str, label: str, value: float) -> None:
    tables["results"][budget][metric][tables["result_columns"].index(label)] = value


# What is written


def test_the_committed_output_is_what_the_script_writes() -> None:
    for name, text in audit.written().items():
        committed = Path(audit.__file__).with_name(name).read_text(encoding="utf-8")
        # pytest itself compares long texts character by character, for minutes
        assert not list(unified_diff(committed.splitlines(True), text.splitlines(True)))
    # 26 Params, 26 Times and 44 widths: PureWide and PureLoop have one, dual rows two
    assert len(list(numbers(ROWS))) == 26 + 26 + 8 + 2 * 18


# Configuration tables


def test_default_rate_and_its_range_are_those_that_the_papers_hours_imply() -> None:
    rates = sorted(row.implied_tflops for row in ROWS)
    assert round((rates[12] + rates[13]) / 2) == DEFAULT_TFLOPS
    assert f"{rates[0]:.0f} to {rates[-1]:.0f} TFLOP/s" in ASSUMED
    low, high = stated.stated("hours_range")
    assert f"{low} to {high} hours" in ASSUMED
    for row in ROWS:
        at_implied = row.hours("as_trained") * DEFAULT_TFLOPS / row.implied_tflops
        assert at_implied == pytest.approx(row.printed.hours_on_64_gpus)


# Result tables


def test_the_figures_aggregate_is_of_all_17_bits_per_byte_but_their_averages() -> None:
    for budget in paper.BUDGETS:
        metrics = {metric for metric in paper.results(budget) if not metric.endswith("Acc.")}
        assert set(paper.ALL_BENCHMARKS) == metrics - {"Commonsense BPB", "Easy math avg BPB"}
    assert len(paper.ALL_BENCHMARKS) == 17


COMMONSENSE_LEAD = [("F160M", f"{task} Acc.", "a25_k4", 0.9) for task in paper.COMMONSENSE]


@pytest.mark.parametrize(
    ("changes", "words", "verdict", "evidence"),
    [
        # an accuracy off the grid
        ([("F80M", "PIQA Acc.", "wide", 0.6480)], "How many documents", "note", "233 of 234"),
        # another peak, and a clear one
        ([("F160M", "GSM8k Acc.", "a25_k4", 0.2)], "F160M: math peaks", "fails", ""),
        ([("F80M", "GSM8k Acc.", "a75_k4", 0.1504)], "F80M: math peaks", "holds", "154 of 1024"),
        # a wrong average
        ([("F160M", "Commonsense BPB", "a25_k4", 0.962)], "printed averages", "fails", ""),
        # other winners
        ([("F80M", "C4", "a25_k4", 0.9)], "F80M: a50_k4 has the best", "fails", ""),
        ([("F80M", "C4", "wide", 1.0)], "F80M: among K = 4 and the controls", "fails", ""),
        ([("F80M", "C4", "loop_k2", 1.0)], "F80M: a50_k4 Pareto-dominates", "fails", ""),
        ([("F160M", "C4", "a50_k4", 1.0)], "F160M: alpha = 25 % is strongest", "fails", ""),
        # a lead that no sampling error explains
        (COMMONSENSE_LEAD, "F160M: alpha = 25 % is strongest", "holds", ""),
        (
            [("F80M", f"{task} BPB", "a75_k4", 0.5) for task in paper.MATH],
            "F80M: alpha = 75 % is",
            "open",
            "",
        ),
        ([("F80M", "C4", "a25_k4", 1.0)], "the optimum shifts toward capacity", "fails", ""),
        ([("F80M", "WinoGrande BPB", "a25_k4", 1.23)], "along K some segments", "holds", ""),
        (
            [("F160M", "WinoGrande BPB", f"a{a}_k4", 1.5) for a in (25, 50)],
            "more loops generally help",
            "fails",
            "",
        ),
        ([("F160M", "WinoGrande BPB", "a50_k3", 1.0)], "is bold", "fails", ""),
        ([("F160M", "WinoGrande BPB", "a50_k4", 1.5)], "figure steepen", "fails", ""),
    ],
)
def test_other_scores_would_give_other_findings(
    changes: list[tuple[str, str, str, float]], words: str, verdict: str, evidence: str, tables: Any
) -> None:
    for change in changes:
        set_score(tables, *change)
    finding = claim(words)
    assert finding.verdict == verdict
    assert evidence in finding.found
    assert verdict != "holds" or "noise" not in finding.found


# The table of ablations

FEWER, RETURNS, EXTRA = "Forcing fewer loops", "Returns of further loops", "Extra loops degrade"
GATES = "Losing a path costs"


@pytest.mark.parametrize(
    ("row", "losses", "words"),
    [
        ("K=2", [2.1, 4.694, 3.842], FEWER),
        ("K=7", [2.271, 4.283, 3.098], EXTRA),
        ("K=10", [2.405, 4.38, 3.16], EXTRA),
        ("gates=1,1", [7.6, 9.099, 9.211], GATES),
        ("shuffled", [2.558, 5.071, 3.72], GATES),
        ("gates=1,0", [7.684, 8.291, 9.0], GATES),
        ("gates=0.5,0.5", [5.744, 6.707, 5.749], GATES),
    ],
)
def test_other_losses_would_give_other_verdicts(
    row: str, losses: list[float], words: str, tables: Any
) -> None:
    assert claim(words).verdict == "holds"
    tables["inference_ablations"][row] = losses
    assert claim(words).verdict == "fails"


def test_returns_that_shrink_past_the_trained_loops_would_be_called_so(tables: Any) -> None:
    for k in range(5, 11):
        tables["inference_ablations"][f"K={k}"] = [
            loss - 0.04 * (1 - 0.5 ** (k - 4)) for loss in tables["inference_ablations"]["K=4"]
        ]
    assert claim(RETURNS).verdict == "holds"
    assert claim(EXTRA).verdict == "fails"


def test_harm_that_grows_would_not_be_said_to_diminish(tables: Any) -> None:
    for k in range(5, 11):
        trained = tables["inference_ablations"]["K=4"]
        tables["inference_ablations"][f"K={k}"] = [loss + 0.01 * (k - 4) ** 2 for loss in trained]
    assert claim(EXTRA).verdict == "holds"
    assert "does not diminish" in claim(EXTRA).found


# The text against its figures and captions

OXY, ARITHMETIC, WORDS = "most deep-leaning token", "trend deep (abstract)", "trend wide (abstract)"
EXAMPLES, SCATTER = "examples of the deepest", "from left to right"


def test_other_colours_tags_or_captions_would_give_other_verdicts(statements: Any) -> None:
    assert {claim(each).verdict for each in (OXY, ARITHMETIC, WORDS, EXAMPLES, SCATTER)} == {
        "fails"
    }
    bar = statements["printed_tokens"]["colour_bar"]
    (oxy,) = [token for token in statements["printed_tokens"]["triviaqa"] if token[0] == "Oxy"]
    oxy[1] = bar["deep"]
    assert claim(OXY).verdict == "holds"
    assert "the deep end of the colour bar itself: number 1 of 17" in claim(OXY).found
    words = [tag for tags in statements["classes"]["wide"].values() for tag in tags]
    statements["tag_order"] = {"highest": ["PUNCT", "SYM", "NUM"], "middle": [], "lowest": words}
    assert claim(ARITHMETIC).verdict == "holds"
    assert claim(WORDS).verdict == "holds"
    statements["deepest_examples"]["SYM"].remove("<<")
    assert claim(EXAMPLES).verdict == "holds"
    statements["scatter_loops_from_left"] = [4, 3, 2]
    assert claim(SCATTER).verdict == "holds"


def test_the_colour_bar_runs_from_wide_below_zero_to_deep_above() -> None:
    bar = stated.stated("printed_tokens")["colour_bar"]
    assert passages.lean(bar["wide"]) < passages.lean(bar["middle"]) < passages.lean(bar["deep"])
    assert passages.lean(bar["middle"]) == 0
