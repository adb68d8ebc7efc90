"""The audit's findings recomputed from the paper's tables, without code of the audit."""

import json
from math import sqrt
from pathlib import Path
from typing import Any

import pytest

from tests.flops.test_audit import claim

TASKS = ["ARC-c", "ARC-e", "HellaSwag", "PIQA", "SIQA", "WinoGrande"]


@pytest.fixture(scope="module")
def results(paper_source: Path) -> Any:
    return json.loads((paper_source / "tables.json").read_text(encoding="utf-8"))["results"]


def test_the_tie_of_commonsense_at_f160m_is_decided_by_its_rows(results: Any) -> None:
    table = results["F160M"]
    tied = ("dual_a50_k3", "dual_a75_k3")
    assert {table["Commonsense BPB"][name] for name in tied} == {0.9572}
    a50, a75 = (sum(table[f"{task} BPB"][name] for task in TASKS) / 6 for name in tied)
    assert a75 < a50 < 0.9573
    found = claim("F160M: among K = 4 and the controls").found
    assert "Commonsense BPB goes to a75_k3 (0.9572 against 0.9610)" in found


def test_leads_in_accuracy_are_those_of_independent_samples_of_1024_documents(results: Any) -> None:
    """Of commonsense at F80M, the mean of six tasks, and of GSM8K."""

    def errors(metrics: list[str], one: str, other: str) -> float:
        table = results["F80M"]
        shares = [(table[m][f"dual_{one}"], table[m][f"dual_{other}"]) for m in metrics]
        variance = sum(p * (1 - p) / 1024 for pair in shares for p in pair) / len(metrics) ** 2
        return sum(p - q for p, q in shares) / len(metrics) / sqrt(variance)  # type: ignore[no-any-return]

    commonsense = errors([f"{task} Acc." for task in TASKS], "a50_k4", "a75_k4")
    found = claim("F80M: among K = 4 and the controls").found
    assert f"Commonsense Acc. ({commonsense:.1f} over a75_k4)" in found
    gsm8k = errors(["GSM8k Acc."], "a75_k4", "a50_k4")
    found = claim("F80M: alpha = 75 % is strongest on math").found
    assert f"GSM8k Acc. ({gsm8k:.1f} over a50_k4)" in found
    assert 0 < commonsense < gsm8k < 2


def test_loops_help_in_most_steps_and_the_optimum_shifts_among_k_4(results: Any) -> None:
    def quality(budget: str, name: str, metrics: list[str]) -> float:
        return sum(results[budget][metric][f"dual_{name}"] for metric in metrics) / len(metrics)

    averages = ("Commonsense BPB", "Easy math avg BPB")
    lm = ["C4", "WikiText-103"]
    every = [*lm, *(m for m in results["F80M"] if m.endswith("BPB") and m not in averages)]
    steps = [
        quality("F160M", f"a{a}_k{k + 1}", every) < quality("F160M", f"a{a}_k{k}", every)
        for a in (25, 50, 75)
        for k in (2, 3)
    ]
    assert (len(every), sum(steps), len(steps)) == (17, 5, 6)
    best = {
        budget: min((25, 50, 75), key=lambda a: quality(budget, f"a{a}_k4", [*lm, *averages]))
        for budget in results
    }
    assert best == {"F80M": 50, "F160M": 25}
    assert claim("more loops generally help").verdict == "holds"
    assert claim("the optimum shifts toward capacity").verdict == "holds"
