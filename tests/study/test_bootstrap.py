"""Intervals against a slow reference and simulated texts; the test over runs."""

import hashlib
import math

import numpy as np
import pytest

from dualpath_cli.study.bootstrap import RESAMPLES, interval, resampled_sums, signed_rank_p


def text(windows: int, seed: int = 0) -> np.ndarray:
    """Nats and tokens of windows, (W, 2); the nats are 0.3 a token on average."""
    draw = np.random.default_rng(seed)
    tokens = draw.integers(1, 100, windows)
    return np.column_stack([tokens * draw.normal(0.3, 0.1, windows), tokens]).astype(float)


def mean_interval(source: str, nats_and_tokens: np.ndarray) -> tuple[float, float]:
    sums = resampled_sums(source, range(len(nats_and_tokens)), nats_and_tokens)
    low, high = interval(sums[:, 0] / sums[:, 1])
    return float(low), float(high)


@pytest.mark.parametrize("windows", [1, 2, 13])
def test_sums_and_ends_are_those_of_a_loop_over_resamples(windows):
    """The weights of a window are its own: of the source's name and the window's number."""
    values = text(windows)
    numbers = [7 * n for n in range(windows)]
    source = int.from_bytes(hashlib.blake2b(b"a", digest_size=8).digest(), "big")
    times = [np.random.default_rng((0, source, n)).poisson(1, RESAMPLES) for n in numbers]
    means = [values[:, 0].sum() / values[:, 1].sum()]
    for resample in range(RESAMPLES):
        nats = sum(times[w][resample] * values[w, 0] for w in range(windows))
        tokens = sum(times[w][resample] * values[w, 1] for w in range(windows))
        means.append(nats / tokens if tokens else math.nan)
    sums = resampled_sums("a", numbers, values)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(sums[:, 0] / sums[:, 1], means, rtol=1e-12)
    low, high = interval(np.array(means))
    drawn = sorted(mean for mean in means[1:] if not math.isnan(mean))
    # Linear between the two nearest of the drawn means, as percentiles are.
    for end, share in ((low, 0.025), (high, 0.975)):
        place = share * (len(drawn) - 1)
        below, above = drawn[math.floor(place)], drawn[math.ceil(place)]
        assert end == pytest.approx(below + (place % 1) * (above - below), rel=1e-12)


def test_an_interval_holds_the_mean_of_the_text_nineteen_times_in_twenty():
    held = [low < 0.3 < high for low, high in
            (mean_interval(f"text {seed}", text(60, seed)) for seed in range(200))]  # fmt: skip
    # Binomial(200, 0.95): standard deviation 0.0154. 60 windows cover a little less than all.
    assert 0.95 - 4 * 0.0154 < np.mean(held) < 0.95 + 3 * 0.0154


@pytest.mark.parametrize("windows", [40, 400])
def test_an_interval_is_as_wide_as_the_standard_error_says(windows):
    """Against that of a ratio of sums over windows (Cochran 1977, eq. 2.39)."""
    nats, tokens = text(windows, seed=1).T
    mean = nats.sum() / tokens.sum()
    error = math.sqrt(((nats - mean * tokens) ** 2).sum()) / tokens.sum()
    low, high = mean_interval("a", text(windows, seed=1))
    assert (mean - low, high - mean) == pytest.approx((1.96 * error,) * 2, rel=0.15)


@pytest.mark.parametrize(("unknown", "known"), [(0, True), (10, True), (11, False)])
def test_what_too_many_resamples_do_not_know_has_no_interval(unknown, known):
    values = np.arange(1.0 + RESAMPLES)
    values[1 : 1 + unknown] = math.nan
    assert np.isfinite(interval(values, least_known=0.99)).all() == known
    assert np.isfinite(interval(values)).all()
    assert np.isnan(interval(np.full(1 + RESAMPLES, math.nan))).all()


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        # All of one sign: two of the 2^n ways to give n ranks signs are as extreme.
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 2 / 2**6),
        ([-0.1, -0.2, -0.3, -0.4, -0.5], 2 / 2**5),
        # The least rank of the other sign: sums of 0 or 1 on either side.
        ([-0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 4 / 2**6),
        ([0.0, 0.0, 0.0], math.nan),
    ],
)
def test_the_signed_rank_test_counts_signs_of_ranks(differences, p):
    assert signed_rank_p(differences) == pytest.approx(p, nan_ok=True)
