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
from dualpath_cli.report.bootstrap import Floats

RESAMPLES = 20_000
SEED = 0


def lowest(logs_K: Floats, means_RK: Floats) -> tuple[Floats, Floats, Floats]:
    """Where the parabola through the lowest mean and its neighbours is lowest, its
    value there, and its bend: how far it rises from there over one step of rates.

    Never beyond the three rates. Where the lowest mean is that of an edge, the lowest
    point may lie between that and its neighbour.
    """
    near_R3 = neighbours(means_RK)
    x0, x1, x2 = np.moveaxis(logs_K[near_R3], -1, 0)
    y0, y1, y2 = np.moveaxis(np.take_along_axis(means_RK, near_R3, -1), -1, 0)

    # Newton's form: y0 + left_slope (x - x0) + curvature (x - x0) (x - x1)
    left_slope = (y1 - y0) / (x1 - x0)
    right_slope = (y2 - y1) / (x2 - x1)
    curvature = (right_slope - left_slope) / (x2 - x0)

    # Without a bend upwards there is no lowest point but the lowest mean.
    convex = curvature > 0
    vertex = (x0 + x1) / 2 - left_slope / np.where(convex, 2 * curvature, 1)
    place = np.where(convex, vertex, logs_K[means_RK.argmin(-1)]).clip(x0, x2)

    value = y0 + (place - x0) * (left_slope + curvature * (place - x1))
    bend = curvature * ((x2 - x0) / 2) ** 2
    return place, value, bend


def neighbours(means_RK: Floats) -> npt.NDArray[np.intp]:
    """The places (R, 3) of the lowest mean and of the rates beside it; of an edge those
    of the three outermost rates."""
    middle_R = means_RK.argmin(-1).clip(1, means_RK.shape[-1] - 2)
    places: npt.NDArray[np.intp] = middle_R[..., None] + np.arange(-1, 2)
    return places


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
    (docs/statistics.md).
    """
    _, our_value, our_bend = lowest(*ours)
    _, their_value, their_bend = lowest(*theirs)

    # The error itself is drawn, too: its variance is known to `df` degrees of freedom.
    rng = np.random.default_rng(SEED)
    scale = error / np.sqrt(rng.chisquare(df, (resamples, 1)) / df)
    values = []
    for logs, means in (ours, theirs):
        noise = scale * rng.normal(size=(resamples, len(means)))
        values.append(lowest(logs, means + noise)[1])
    differences = values[0] - values[1]

    shares = (0.025, 0.05, 0.95, 0.975)
    low, low_90, high_90, high = np.quantile(differences, shares).tolist()
    beyond = int(min((differences >= 0).sum(), (differences <= 0).sum()))

    # Half the 95 % interval over Student's quantile is the difference's error.
    quantile = Spread(1.0, df).reach
    spread = Spread((high - low) / 2 / quantile, df)
    return {
        "difference": float(our_value - their_value),
        "low": low,
        "high": high,
        "bend": float(our_bend / error),
        "bend_baseline": float(their_bend / error),
        "low_90": low_90,
        "high_90": high_90,
        "detectable": spread.detectable,
        "p": min(1.0, 2 * (1 + beyond) / (1 + resamples)),
    }
