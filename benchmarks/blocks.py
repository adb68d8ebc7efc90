"""How often the paired tests of `dualpath compare` err, and find what there is, by simulation.

python -m benchmarks.blocks

Tables of C configurations and S seeds are drawn with an effect of the seed and normal noise, and
two configurations of each are compared: by the variance of all of them (randomised blocks), and by
that of their own differences (Student's paired t).
"""

from itertools import chain

import numpy as np
from scipy.stats import t

from benchmarks.results import show
from dualpath_cli.statistics.blocks import block_spread, noncentrality

DRAWS = 20_000
SHAPES = ((4, 2), (8, 2), (4, 3), (8, 3), (12, 3), (8, 5))
NOISES = {
    "equal": lambda c: np.ones(c),
    "the tested one twice as noisy": lambda c: np.array([2.0, *[1.0] * (c - 1)]),
    "all others twice as noisy": lambda c: np.array([1.0, 1.0, *[2.0] * (c - 2)]),
}
"""Standard deviations by configuration; the first one is tested against the second."""


def found(tables: np.ndarray) -> list[str]:
    """Shares of tables (N, C, S) whose first two rows differ at 5 %.

    By the variance of all rows, and by that of these two.
    """
    gaps = np.abs(tables[:, 0].mean(1) - tables[:, 1].mean(1))
    shares = []
    for rows in (tables, tables[:, :2]):
        spreads = [block_spread(table) for table in rows]
        bound = t.ppf(0.975, spreads[0].df)
        shares.append(f"{np.mean(gaps > bound * np.array([s.error for s in spreads])):.3f}")
    return shares


def main() -> None:
    levels: dict[str, list[list[str]]] = {name: [] for name in NOISES}
    powers = []
    for c, s in SHAPES:
        draw = np.random.default_rng((c, s))
        tables = draw.normal(0, 5, (DRAWS, 1, s)) + draw.normal(0, 1, (DRAWS, c, s))
        size = noncentrality((c - 1) * (s - 1)) * np.sqrt(2 / s)
        tables[:, 0] += size
        powers.append([str(c), str(s), f"{size:.2f}", *found(tables)])
        for name, deviations in NOISES.items():
            noise = draw.normal(0, 1, (DRAWS, c, s)) * deviations(c)[:, None]
            null = draw.normal(0, 5, (DRAWS, 1, s)) + noise
            levels[name].append([name, str(c), str(s), *found(null)])
    columns = ["configurations", "seeds", "blocks", "paired t"]
    show(["noise", *columns], chain(*levels.values()))
    show([*columns[:2], "detectable", *columns[2:]], powers)


if __name__ == "__main__":
    main()
