"""The best learning rate of a configuration that was trained at several, and what it is
worth.

Bits per byte over the log of the rate are a parabola through the best rate and its
neighbours; its lowest point is the choice. A test of two configurations resamples the
means of all rates of both with the noise of randomised blocks, chooses anew in every
resample, and so counts the choice.

Shapes: R resamples, K rates.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from dualpath_cli.report.blocks import Spread

Floats = npt.NDArray[np.float64]
RESAMPLES, SEED = 20_000, 0


def lowest(logs_K: Floats, means_RK: Floats) -> tuple[Floats, Floats, Floats]:
    """Where the parabola through the lowest mean and its neighbours is lowest, its
    value there, and its bend: how far it rises from there over one step of rates.

    Never beyond the three rates: a lowest mean at the edge is itself the lowest point.
    """
    at = means_RK.argmin(-1).clip(1, len(logs_K) - 2)
    near = at[..., None] + np.arange(-1, 2)
    x, y = logs_K[near], np.take_along_axis(means_RK, near, -1)
    slope = (y[..., 1] - y[..., 0]) / (x[..., 1] - x[..., 0])
    after = (y[..., 2] - y[..., 1]) / (x[..., 2] - x[..., 1])
    bend = (after - slope) / (x[..., 2] - x[..., 0])
    convex = bend > 0
    vertex = (x[..., 0] + x[..., 1]) / 2 - slope / np.where(convex, 2 * bend, 1)
    place = np.where(convex, vertex, logs_K[means_RK.argmin(-1)]).clip(
        x[..., 0], x[..., 2]
    )
    value = y[..., 0] + (place - x[..., 0]) * (slope + bend * (place - x[..., 1]))
    return place, value, bend * ((x[..., 2] - x[..., 0]) / 2) ** 2


def resampled(
    ours: tuple[Floats, Floats],
    theirs: tuple[Floats, Floats],
    error: float,
    df: int,
    resamples: int = RESAMPLES,
) -> dict[str, Any]:
    """Intervals and p of the difference of two lowest points, of log rates and means
    (K,) each.

    `error` is the standard error of one mean, its variance known to `df` degrees of
    freedom, and the unit of both bends. By percentiles, which in simulation hold the
    true difference in 95 to 99 % where both curves bend alike, in less elsewhere
    (docs/statistics.md). Half the 95 % interval over Student's quantile is the
    difference's error, from which `detectable` follows.
    """
    (_, ours_at, our_bend), (_, theirs_at, their_bend) = lowest(*ours), lowest(*theirs)
    rng = np.random.default_rng(SEED)
    scale = error / np.sqrt(rng.chisquare(df, (resamples, 1)) / df)
    values = [
        lowest(logs, means + scale * rng.normal(size=(resamples, len(means))))[1]
        for logs, means in (ours, theirs)
    ]
    differences = values[0] - values[1]
    low, low_90, high_90, high = np.quantile(
        differences, (0.025, 0.05, 0.95, 0.975)
    ).tolist()
    beyond = int(min((differences >= 0).sum(), (differences <= 0).sum()))
    return {
        "difference": float(ours_at - theirs_at),
        "low": low,
        "high": high,
        "bend": float(our_bend / error),
        "bend_baseline": float(their_bend / error),
        "low_90": low_90,
        "high_90": high_90,
        "detectable": Spread((high - low) / 2 / Spread(1.0, df).reach, df).detectable,
        "p": min(1.0, 2 * (1 + beyond) / (1 + resamples)),
    }
