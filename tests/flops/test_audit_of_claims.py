"""The audit's verdicts on what alpha, K, ablations and other places of the paper say, and that
each follows from the tables: with other numbers it is another verdict."""

import copy
from typing import Any

import pytest

from dualpath_cli.flops import paper
from dualpath_cli.flops.audit import ablations, passages
from dualpath_cli.flops.audit import results as audit_results
from tests.flops.test_audit import claim

OPTIMUM = "the optimum shifts toward capacity"
FLAT = "along K some segments"
MORE_LOOPS = "more loops generally help"
STEEPEN = "parameter-quality figure steepen"
FEWER, RETURNS, EXTRA = "Forcing fewer loops", "Returns of further loops", "Extra loops degrade"
GATES = "Losing a path costs"
OXY, ARITHMETIC, SCATTER = "most deep-leaning token", "trend deep (abstract)", "from left to right"
WORDS, EXAMPLES, MIDDLE = (
    "trend wide (abstract)",
    "examples of the deepest",
    "middle of the network",
)
STANDARD, ONE_LOOP, BOLD = "standard FFN width", "PureLoop with K = 1", "is bold"


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The paper's tables, to be changed for one test."""
    changed = copy.deepcopy(paper._tables())
    monkeypatch.setattr(paper, "_tables", lambda: changed)
    return changed


def set_score(tables: Any, budget: str, metric: str, label: str, value: float) -> None:
    tables["results"][budget][metric][tables["result_columns"].index(label)] = value


@pytest.mark.parametrize(
    ("words", "verdict", "evidence"),
    [
        ("F80M: among K = 4 and the controls a50_k4", "open", "best on 5 of 5. Within"),
        ("F80M: among K = 4 and the controls a50_k4", "open", "a25_k2 (1.0311 against 1.0362)"),
        ("F160M: among K = 4 and the controls a25_k4", "open", "best on 4 of 4"),
        ("F160M: among K = 4 and the controls a25_k4", "open", "a75_k3 (0.9572 against 0.9610)"),
        ("F80M: a50_k4 Pareto-dominates", "open", "24 of 24"),
        ("F160M: a25_k4 Pareto-dominates", "open", "23 of 24 cases, equal on GSM8k Acc. (wide)"),
        (
            "F80M: does a50_k4 beat",
            "note",
            "QASPER Acc. 0.4765 against 0.6771 (loop_k3), the worst",
        ),
        ("F160M: does a25_k4 beat", "note", "On 1 of 4"),
        ("F80M: alpha = 25 % is strongest", "fails", "On 0 of 4 columns"),
        ("F80M: alpha = 25 % is strongest", "fails", "a50_k4 (1.0362 against 1.0374)"),
        ("F80M: alpha = 25 % is strongest", "fails", "Commonsense Acc. and Commonsense BPB it is"),
        ("F160M: alpha = 25 % is strongest", "open", "On 4 of 4"),
        ("F80M: alpha = 75 % is strongest", "fails", "0.5198 against 0.5227"),
        ("F160M: alpha = 75 % is strongest", "fails", "0.4959 against 0.5047"),
        (OPTIMUM, "holds", "from a50_k4 (0.8693) to a25_k4 (0.8478), toward capacity"),
        (OPTIMUM, "holds", "among all nine, from a25_k3 (0.8685) to a25_k4 (0.8478), no shift"),
        (OPTIMUM, "holds", "from a50_k3 (0.7483) to a75_k3 (0.7307), toward compute"),
        (FLAT, "fails", "alpha = 25 % loses 0.0031, where the best gains 0.0024"),
        (MORE_LOOPS, "holds", "alpha = 75 % from K = 3 to 4 (0.7307 to 0.7345)"),
        (MORE_LOOPS, "holds", "5 of 6 steps of K help"),
        (MORE_LOOPS, "holds", "from K = 2 to 4 3 of 3 alphas gain"),
        (STEEPEN, "holds", "-0.0031 to -0.0041 at alpha = 50 %"),
        (FEWER, "holds", "gsm8k +0.073, +0.444, +0.927"),
        (RETURNS, "fails", "Past it 0 of 18 steps"),
        (RETURNS, "fails", "Up to it they do"),
        (EXTRA, "holds", "18 of 18 steps"),
        (EXTRA, "holds", "What diminishes is the harm"),
        (GATES, "holds", "3.62 to 5.63; 2.58 to 2.72; 0.51 to 0.94; 4.97 to 6.39, the worst"),
        (OXY, "fails", "the wide end of the colour bar itself: number 17 of 17"),
        (OXY, "fails", "deepest printed token is `:`"),
        (ARITHMETIC, "fails", "NUM, of arithmetic, among the middle"),
        (ARITHMETIC, "fails", "0 of 3 in the question and 14 of 15 in the answer"),
        (SCATTER, "fails", "they are K = 4, 3, 2"),
        (WORDS, "fails", "NOUN, of lexical content, among the middle"),
        (WORDS, "fails", "PART and PRON, which are function words, lexical content"),
        (EXAMPLES, "fails", "`=` 3 of 4, `<<` 0 of 2; `-` is not in it"),
        (MIDDLE, "note", "Layers 2 to 9 where deep share is read, 5 to 9 in the bands"),
        (STANDARD, "fails", "4864, 7104, 11392, 15744, 24448"),
        (ONE_LOOP, "as trained", "24448 against 24576 at F80M"),
        (BOLD, "holds", "As printed in 57 of 58 rows, by their rows in 58. F160M Commonsense BPB"),
    ],
)
def test_claims(words: str, verdict: str, evidence: str) -> None:
    finding = claim(words)
    assert finding.verdict == verdict
    assert evidence in finding.found


@pytest.mark.parametrize(
    ("changes", "words", "verdict"),
    [
        ([("F80M", "C4", "wide", 1.0)], "F80M: among K = 4 and the controls", "fails"),
        ([("F80M", "C4", "loop_k2", 1.0)], "F80M: a50_k4 Pareto-dominates", "fails"),
        ([("F160M", "C4", "a50_k4", 1.0)], "F160M: alpha = 25 % is strongest", "fails"),
        # a lead that no sampling error explains
        (
            [("F160M", f"{task} Acc.", "a25_k4", 0.9) for task in paper.COMMONSENSE],
            "F160M: alpha = 25 % is strongest",
            "holds",
        ),
        (
            [("F80M", f"{task} BPB", "a75_k4", 0.5) for task in paper.MATH],
            "F80M: alpha = 75 % is",
            "open",
        ),
        ([("F80M", "C4", "a25_k4", 1.0)], OPTIMUM, "fails"),
        ([("F80M", "WinoGrande BPB", "a25_k4", 1.23)], FLAT, "holds"),
        ([("F160M", "WinoGrande BPB", f"a{a}_k4", 1.5) for a in (25, 50)], MORE_LOOPS, "fails"),
        ([("F160M", "WinoGrande BPB", "a50_k3", 1.0)], BOLD, "fails"),
        ([("F160M", "WinoGrande BPB", "a50_k4", 1.5)], STEEPEN, "fails"),
    ],
)
def test_other_scores_would_give_other_verdicts(
    changes: list[tuple[str, str, str, float]], words: str, verdict: str, tables: Any
) -> None:
    for change in changes:
        set_score(tables, *change)
    assert claim(words).verdict == verdict


@pytest.mark.parametrize(
    ("row", "losses", "words", "verdict"),
    [
        ("K=2", [2.1, 4.694, 3.842], FEWER, "fails"),
        ("K=7", [2.271, 4.283, 3.098], EXTRA, "fails"),
        ("K=10", [2.405, 4.38, 3.16], EXTRA, "fails"),
        ("gates=1,1", [7.6, 9.099, 9.211], GATES, "fails"),
        ("shuffled", [2.558, 5.071, 3.72], GATES, "fails"),
        ("gates=1,0", [7.684, 8.291, 9.0], GATES, "fails"),
        ("gates=0.5,0.5", [5.744, 6.707, 5.749], GATES, "fails"),
    ],
)
def test_other_losses_would_give_other_verdicts(
    row: str, losses: list[float], words: str, verdict: str, tables: Any
) -> None:
    tables["inference_ablations"][row] = losses
    assert claim(words).verdict == verdict


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


def test_other_colours_tags_or_captions_would_give_other_verdicts(tables: Any) -> None:
    stated = tables["stated"]
    bar = stated["printed_tokens"]["colour_bar"]
    (oxy,) = [token for token in stated["printed_tokens"]["triviaqa"] if token[0] == "Oxy"]
    oxy[1] = bar["deep"]
    assert claim(OXY).verdict == "holds"
    assert "the deep end of the colour bar itself: number 1 of 17" in claim(OXY).found
    words = [tag for tags in stated["classes"]["wide"].values() for tag in tags]
    stated["tag_order"] = {"highest": ["PUNCT", "SYM", "NUM"], "middle": [], "lowest": words}
    assert claim(ARITHMETIC).verdict == "holds"
    assert claim(WORDS).verdict == "holds"
    stated["deepest_examples"]["SYM"].remove("<<")
    assert claim(EXAMPLES).verdict == "holds"
    stated["scatter_loops_from_left"] = [4, 3, 2]
    assert claim(SCATTER).verdict == "holds"


def test_the_colour_bar_runs_from_wide_below_zero_to_deep_above() -> None:
    bar = paper.stated("printed_tokens")["colour_bar"]
    assert passages.lean(bar["wide"]) < passages.lean(bar["middle"]) < passages.lean(bar["deep"])
    assert passages.lean(bar["middle"]) == 0


def test_differences_between_forced_loops_add_up_to_the_tables() -> None:
    ends = {source: ablations.losses("K=10")[source] - loss for source, loss in
            ablations.losses("K=1").items()}  # fmt: skip
    for source, steps in ablations._steps(1, 10).items():
        assert len(steps) == 9
        assert sum(steps) == pytest.approx(ends[source])


def test_the_figures_aggregate_is_the_mean_of_17_benchmarks() -> None:
    for budget in paper.BUDGETS:
        metrics = [
            metric
            for metric in paper.results(budget)
            if metric in ("C4", "WikiText-103")
            or (metric.endswith("BPB") and not metric.startswith(("Commonsense", "Easy math")))
        ]
        assert len(metrics) == 17
        for label, value in audit_results.mean_bpb(budget).items():
            ours = sum(paper.results(budget)[metric][label] for metric in metrics) / 17
            assert ours == pytest.approx(value)
