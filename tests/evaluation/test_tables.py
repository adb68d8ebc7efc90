"""Two models on the same documents: pairs, intervals, what can be detected; the paper's means."""

import math
from typing import Any

import numpy as np
import pytest

from dualpath_cli.evaluation.tables import (
    AGGREGATE,
    ALL,
    compare,
    means_of,
    paper_scores,
    score_table,
)
from dualpath_cli.flops import paper
from dualpath_cli.report.significance import holm


def report(task: str, rows: list[dict[str, Any]], **scores: float) -> dict[str, Any]:
    results = {f"{name},none": value for name, value in scores.items()}
    samples = [{"doc_id": doc, **row} for doc, row in enumerate(rows)]
    return {"results": {task: results}, "samples": {task: samples}}


def choices(accuracies: list[int], bpbs: list[float]) -> dict[str, Any]:
    pairs = zip(accuracies, bpbs, strict=True)
    rows = [{"acc_per_char": accuracy, "bpb": bpb} for accuracy, bpb in pairs]
    return report("piqa", rows, acc_per_char=0.0, bpb=0.0)


def texts(nats: list[float], sizes: list[int]) -> dict[str, Any]:
    rows = [{"rolling_bpb": (-n, size)} for n, size in zip(nats, sizes, strict=True)]
    return report("c4", rows, rolling_bpb=sum(nats) / math.log(2) / sum(sizes))


def test_documents_are_paired_and_ties_counted():
    one = choices([1, 0, 1, 0, 1, 1] * 3, [1.0] * 18)
    other = choices([1, 1, 1, 0, 0, 1] * 2 + [1, 1, 1, 1, 1, 1], [1.0, 0.5, 2.0, 0.5, 1.0, 0.5] * 3)
    accuracy, bpb = compare(["a", "b"], [one, other])
    assert (accuracy["better"], accuracy["worse"], accuracy["ties"]) == (4, 2, 12)
    assert accuracy["difference"] == pytest.approx(2 / 18)
    assert accuracy["p"] == pytest.approx(0.6875)
    assert (bpb["metric"], bpb["better"], bpb["worse"], bpb["ties"]) == ("bpb", 9, 3, 6)
    assert (bpb["test"], accuracy["test"]) == ("t", "McNemar")
    assert [accuracy["p_holm"], bpb["p_holm"]] == holm([accuracy["p"], bpb["p"]])


def test_the_interval_and_what_is_detectable_are_those_of_the_mean_of_differences():
    """1.96 and 2.80 standard errors of 400 differences, as the bootstrap finds them."""
    draw = np.random.default_rng(0)
    before, change = draw.normal(1, 0.2, 400), draw.normal(0.01, 0.1, 400)
    (_, row) = compare(["a", "b"], [choices([1] * 400, list(before)),
                                    choices([1] * 400, list(before + change))])  # fmt: skip
    error = change.std(ddof=1) / 20
    assert row["difference"] == pytest.approx(change.mean())
    assert row["high"] - row["low"] == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert row["detectable"] == pytest.approx(2.80 * error, rel=0.1)


def test_texts_differ_by_the_bits_of_all_their_bytes():
    sizes = [10, 200, 30] * 5
    one, other = texts([5.0, 90.0, 20.0] * 5, sizes), texts([6.0, 80.0, 20.0] * 5, sizes)
    (row,) = compare(["a", "b"], [one, other])
    expected = (106 - 115) / math.log(2) / 240
    assert row["difference"] == pytest.approx(expected)
    before, after = (report["results"]["c4"]["rolling_bpb,none"] for report in (one, other))
    assert row["difference"] == pytest.approx(after - before)
    assert row["value"] == after
    assert row["low"] < expected < row["high"]
    assert (row["better"], row["worse"], row["ties"]) == (5, 5, 5)


@pytest.mark.parametrize("budget", paper.BUDGETS)
def test_means_are_those_of_the_paper(budget):
    """From its table's own rows: the means that it prints, to their rounding."""
    for configuration in paper.configurations(budget):
        theirs = paper_scores(configuration.recipe)
        parts = {name: value for name, value in theirs.items()
                 if not name.startswith(("Commonsense", "Easy", "aggregate", "mean"))}  # fmt: skip
        ours = means_of(parts)
        means = {"Commonsense Acc.", "Commonsense BPB", "Easy math avg BPB", AGGREGATE, ALL}
        assert set(ours) == means
        for name, value in ours.items():
            assert value == pytest.approx(theirs[name], abs=1.01e-4)


def test_beside_the_scores_of_a_model_of_the_paper_stand_the_papers():
    scores = {"acc_per_char": 0.25, "acc_per_char_stderr": 0.1, "bpb": 1.5, "bpb_stderr": 0.2}
    found = report("arc_challenge", [{}] * 4, **scores)
    found["n-samples"] = {"arc_challenge": {"effective": 4}}
    model = {"name": "m", "window": 8, "batch_size": 2, "precision": "float32"}
    (row,) = score_table(model, found, "f80m_a50_k4", {"arc_challenge"}).rows
    assert row[-2:] == [0.4170, 0.7983]
    assert score_table(model, found, "f80m_a50_k4").rows[0][-2:] == [None, None]  # a selection
    forced = model | {"intervention": "K=1"}
    for other in (score_table(model, found, "mine"), score_table(forced, found, "f80m_a50_k4")):
        assert len(other.rows[0]) == len(row) - 2
