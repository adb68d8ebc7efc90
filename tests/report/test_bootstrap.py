"""Intervals: what is drawn together, sums against a slow loop, coverage of simulated
texts."""

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.data.windows import Windows
from dualpath_cli.report.bootstrap import (
    LEAST_CLUSTERS,
    RESAMPLES,
    Clusters,
    clusters_of,
    interval,
    resampled_sums,
)
from tests.conftest import Lazy

stats = Lazy("scipy.stats")


def windows_of(documents: list[int] | None, count: int) -> Windows:
    return Windows([np.zeros(2 + n % 3, np.int64) for n in range(count)], documents)


# Clusters


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60))
def test_documents_are_drawn_whole_where_there_are_ten(documents):
    windows = windows_of(documents, len(documents))
    clusters = clusters_of(windows)
    if len(set(documents)) >= LEAST_CLUSTERS:
        assert clusters.unit == "documents"
        # Windows are sorted by length; each one's cluster is still its document.
        assert clusters.of_window == [documents[number] for number in windows.numbers]
    else:
        assert clusters.unit == "windows"
        assert sorted(clusters.of_window) == list(range(len(documents)))


def test_windows_whose_documents_are_unknown_are_drawn_themselves():
    assert str(clusters_of(windows_of(None, 12))) == "12 windows"
    assert str(clusters_of(windows_of([0], 1))) == "1 window"
    assert str(Clusters("documents", range(1200))) == "1,200 documents"


# Sums and ends


def text(clusters: int, seed: int = 0) -> np.ndarray:
    """Nats and tokens of clusters, (clusters, 2); the nats are 0.3 a token on
    average."""
    draw = np.random.default_rng(seed)
    tokens = draw.integers(1, 100, clusters)
    return np.column_stack([tokens * draw.normal(0.3, 0.1, clusters), tokens]).astype(
        float
    )


@pytest.mark.parametrize("clusters", [1, 2, 13])
def test_sums_are_those_of_a_loop_over_resamples_and_windows(clusters):
    """Weights are a cluster's own: of the source's name and its number. Here of three
    windows."""
    parts = np.random.default_rng(1).random((3, clusters, 1))
    whole = text(clusters)
    values = np.concatenate(whole * parts / parts.sum(0))
    numbers = [7 * n for n in range(clusters)] * 3
    source = int.from_bytes(hashlib.blake2b(b"a", digest_size=8).digest(), "big")
    times = {
        n: np.random.default_rng((0, source, n)).poisson(1, RESAMPLES)
        for n in set(numbers)
    }
    sums = resampled_sums("a", numbers, values)
    np.testing.assert_allclose(sums[0], whole.sum(0))
    for resample in range(RESAMPLES):
        expected = sum(
            times[n][resample] * row for n, row in zip(numbers, values, strict=True)
        )
        np.testing.assert_allclose(sums[1 + resample], expected, rtol=1e-12, atol=1e-12)


def test_the_ends_are_percentiles_further_out_for_fewer_clusters():
    """The t distribution's, widened by n / (n - 1): for ten clusters 0.9 to 99.1 %."""
    values = np.arange(1.0 + RESAMPLES)
    for clusters, share in ((10, 0.00857), (30, 0.01877), (100_000, 0.02500)):
        low, high = interval(values, clusters)
        assert low == pytest.approx(1 + share * (RESAMPLES - 1), abs=0.05)
        assert high == pytest.approx(1 + (1 - share) * (RESAMPLES - 1), abs=0.05)


@pytest.mark.parametrize(
    ("clusters", "unknown", "known"),
    [(1, 0, False), (9, 0, False), (10, 0, True), (10, 10, True), (100, 11, False)],
)
def test_few_clusters_and_what_many_resamples_do_not_know_have_no_interval(
    clusters, unknown, known
):
    values = np.arange(3.0 * (1 + RESAMPLES)).reshape(-1, 3)
    values[1 : 1 + unknown] = math.nan
    ends = interval(values, clusters)
    assert (np.isfinite(ends) == known).all()
    assert np.isnan(interval(values * math.nan, 100)).all()


# Coverage, by simulation: how often an interval holds what the text was drawn from


def mean_interval(
    source: str, clusters: list[int], rows: np.ndarray
) -> tuple[float, float]:
    sums = resampled_sums(source, clusters, rows)
    with np.errstate(invalid="ignore"):  # a resample may have none of ten clusters
        low, high = interval(sums[:, 0] / sums[:, 1], len(set(clusters)))
    return float(low), float(high)


@pytest.mark.parametrize("clusters", [10, 60])
def test_an_interval_holds_the_mean_of_the_text_nineteen_times_in_twenty(clusters):
    ends = [
        mean_interval(f"text {n}", list(range(clusters)), text(clusters, n))
        for n in range(200)
    ]
    held = np.mean([low < 0.3 < high for low, high in ends])
    assert held > 0.95 - 3 * math.sqrt(0.95 * 0.05 / 200)
    width = np.mean([high - low for low, high in ends]) * math.sqrt(clusters)
    # 2 x 1.96 x 0.1 x 1.15 for tokens that differ, wider for ten
    assert 0.35 < width < 0.65


def test_the_cost_of_rare_large_effects_is_understated_as_the_page_says():
    """0.2 nats a token in one of ten documents: most misses lie below the true mean."""
    missed = []
    for seed in range(300):
        draw = np.random.default_rng(seed)
        effects = draw.normal(0, 0.02, 20) + 0.2 * (draw.random(20) < 0.1)
        tokens = np.exp(draw.normal(4, 1, 20))  # lengths span two orders of magnitude
        rows = np.column_stack([tokens * effects, tokens])
        low, high = mean_interval(f"text {seed}", list(range(20)), rows)
        missed.append((high < 0.02, low > 0.02))
    above, below = np.mean(missed, axis=0)
    assert 0.1 < above < 0.3
    assert below < 0.03
