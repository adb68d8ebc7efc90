"""`evaluate --loops 1 2 4`: each depth as if it were scored alone, and their
comparison."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualpath_cli.evaluation.depths import (
    ACCURACY,
    BITS,
    Depth,
    DepthScore,
    compare_depths,
    draw_depths,
)
from dualpath_cli.recipe.recipes import merge
from dualpath_cli.report import bootstrap
from dualpath_cli.report.bootstrap import resample_weights
from dualpath_cli.spec.intervention import Intervention
from tests.evaluation.conftest import NAME
from tests.training.tiny_run import LONG

CORE = merge(LONG, {"model": {"block": "wide", "core": [0, 0], "core_loops": 2}})
TASKS = ("--tasks", "piqa", "c4", "addition_2", "--limit", "11")


def content(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("changes", "symbol", "loops"), [(CORE, "R", "4"), (LONG, "K", "1")]
)
def test_each_depth_has_the_scores_that_it_has_alone(
    changes, symbol, loops, trained, tasks, tmp_path, output_of
):
    run = trained(**changes)
    words = ("evaluate", "--ckpt_path", run, *TASKS, "--data", tasks, "--out")
    said = output_of(*words, tmp_path / "all", "--loops", "1", "2", "4")
    folder = tmp_path / "all" / NAME
    compared = content(folder / "loops.json")

    depth = f"{symbol}={loops}"
    output_of(*words, tmp_path / "alone", "--loops", loops)
    alone = content(tmp_path / "alone" / NAME / "results.json")
    output_of(*words, tmp_path / "own")
    own = content(tmp_path / "own" / NAME / "results.json")

    found = content(folder / depth / "results.json")
    assert found["results"] == alone["results"]
    assert found["model"]["intervention"] == depth
    assert content(folder / "results.json")["results"] == own["results"]
    assert alone["results"] != own["results"]

    rows = {
        (row["benchmark"], row["metric"], row["depth"]): row
        for row in compared["scores"]
    }
    assert compared["own"] == f"{symbol}=2"
    for name, report in {depth: alone, f"{symbol}=2": own}.items():
        row = rows["c4", BITS, name]
        score = report["results"]["c4"]["rolling_bpb,none"]
        base = own["results"]["c4"]["rolling_bpb,none"]
        assert row["score"] == pytest.approx(score)
        assert row["difference"] == pytest.approx(score - base)
        assert row["documents"] == 11
        assert f"{score:.4f}" in said
    assert (folder / "loops.png").is_file()


def test_each_filter_of_a_metric_has_a_line_of_its_own():
    depths = [
        Depth("K", loops, is_own=loops == 2, change=Intervention(loops=loops))
        for loops in (2, 1)
    ]
    measured = [
        (depth, benchmark, metric)
        for depth in depths
        for benchmark, metric in (
            ("harness:gsm8k", "exact_match,strict-match"),
            ("harness:gsm8k", "exact_match,flexible-extract"),
            ("piqa", ACCURACY),
        )
    ]
    scores = [
        DepthScore(benchmark, metric, 9, depth.name, depth.loops, 0.5, 0.0, 0.0, 0.0)
        for depth, benchmark, metric in measured
    ]
    figure = draw_depths(depths, scores)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "harness:gsm8k exact_match,strict-match",
        "harness:gsm8k exact_match,flexible-extract",
        "piqa",
    ]


def test_a_model_without_a_loop_and_depths_in_two_options_are_one_line(trained, said):
    wide = trained(**merge(LONG, {"model": {"block": "wide"}, "run": {"name": "wide"}}))
    assert "only wide blocks" in said(
        "evaluate", "--ckpt_path", wide, "--loops", "1", "2"
    )
    dual = trained(**LONG)
    words = ("--loops", "1", "2", "--intervention", "K=3")
    assert "is given twice" in said("evaluate", "--ckpt_path", dual, *words)
    assert "no core" in said(
        "evaluate", "--ckpt_path", dual, "--loops", "1", "2", "--intervention", "R=3"
    )


def report_of(right: list[int], texts: list[tuple[float, int]]) -> dict[str, Any]:
    """A report of a benchmark, and of the likelihoods and bytes of texts."""
    rows = [{"acc": value, "bpb": 1.0} for value in right]
    return {
        "results": {"addition_2": {}, "c4": {}},
        "samples": {
            "addition_2": rows,
            "c4": [{"rolling_bpb": pair} for pair in texts],
        },
    }


def test_intervals_are_those_of_paired_resamples(monkeypatch):
    """Against a loop over resamples, each of whole documents."""
    monkeypatch.setattr("dualpath_cli.evaluation.depths.scores_of", lambda report: {})
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 90, 14).tolist()
    draws = [
        report_of(
            rng.integers(0, 2, 12).tolist(),
            [(float(-size * rng.uniform(1, 2)), size) for size in sizes],
        )
        for _ in range(2)
    ]
    depths = [
        Depth("R", 2, True, None),
        Depth("R", 1, False, Intervention(core_loops=1)),
    ]
    scores = compare_depths(depths, draws)
    by_key = {(s.benchmark, s.metric, s.depth): s for s in scores}

    def reference(task: str, values: list[float], weights: list[float]) -> list[float]:
        drawn = np.array([resample_weights(task, n) for n in range(len(values))]).T
        return [
            sum(w * v for w, v in zip(row, values, strict=True))
            / sum(w * v for w, v in zip(row, weights, strict=True))
            for row in drawn
        ]

    own, other = (draw["samples"] for draw in draws)
    right = [
        b["acc"] - a["acc"]
        for a, b in zip(own["addition_2"], other["addition_2"], strict=True)
    ]
    bits = [
        (a["rolling_bpb"][0] - b["rolling_bpb"][0]) / np.log(2)
        for a, b in zip(own["c4"], other["c4"], strict=True)
    ]
    for (task, metric), values, weights in (
        (("addition_2", ACCURACY), right, [1.0] * 12),
        (("c4", BITS), bits, sizes),
    ):
        means = reference(task, values, weights)
        ends = bootstrap.interval(np.array(means), len(values))
        found = by_key[task, metric, "R=1"]
        assert found.difference == pytest.approx(means[0])
        assert (found.low, found.high) == pytest.approx(ends)
        assert by_key[task, metric, "R=2"].difference == 0
