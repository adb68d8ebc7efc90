"""How often the intervals of `dualpath compare --fit` include the truth; its fit of
Chinchilla's points; and what the parabola of `--best lr` misses.

python -m benchmarks.fits                 # coverage, by simulation: some 20 minutes
python -m benchmarks.fits --points CSV    # public points, with columns tokens, params
                                          # and loss
python -m benchmarks.fits --parabola      # lopsided curves without noise

Simulated sweeps have models of four sizes, half of whose parameters are applied once,
twice or four times, each on three numbers of tokens; seeds have normal noise of log L.
The points of Hoffmann et al.'s figure 4 were read off by Besiroglu et al.
(arXiv:2404.10102). They have no licence, so they are not part of this repository: the
124 of arXiv:2603.22339 are `data/isoflops/ml_scalefit/isoflops.csv` in
Open-Athena/scaling-law-analysis.
"""

import argparse
import csv
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from dualpath_cli.compare.fits.fits import ENDS, resampled_laws
from dualpath_cli.compare.fits.law import (
    DELTA,
    HIGHEST,
    LOWEST,
    NAMES,
    Cells,
    fit_law,
    predicted,
)
from dualpath_cli.compare.rates import lowest
from dualpath_cli.report.bootstrap import Floats

TRUTH = np.array([0.9, 0.5, 0.05, 0.35, 0.40, 0.46])  # in the order of NAMES
SHOWN = ("E", "a", "b", "phi")
DESIGNS = ((2, 0.003), (3, 0.003), (5, 0.003), (3, 0.01))  # seeds, noise of log L
SWEEPS = 100
PUBLISHED = (0.36, 0.40)  # a and b of the same points in arXiv:2603.22339's package
RESAMPLES = 400


def simulated_cells(seeds: int) -> Cells:
    """Four sizes, three numbers of loops, three numbers of tokens."""
    times = np.array([1.0, 2, 4])
    sizes = []
    tokens = []
    for size, loops, its_tokens in product((0.3, 0.6, 1.2, 2.4), times, (1, 2, 4)):
        looped = np.where(times == loops, size / 2, 0)
        sizes.append(looped + np.where(times == 1, size / 2, 0))
        tokens.append(its_tokens * 1e-4)
    return Cells(
        np.array(sizes), times, np.array(tokens), np.full(len(tokens), float(seeds))
    )


def coverage(seeds: int, noise: float) -> str:
    """A row of the table: the share of intervals that include the truth, by value."""
    rng = np.random.default_rng(seeds)
    cells = simulated_cells(seeds)
    truth_C = predicted(TRUTH[None], cells)[0]
    included = []
    widths = []
    refused = 0
    for _ in range(SWEEPS):
        noise_CS = noise * rng.normal(size=(len(cells), seeds))
        scores_CS = truth_C[:, None] * np.exp(noise_CS)
        law_V = fit_law(cells, scores_CS.mean(1))
        if not ((law_V > LOWEST) & (law_V < HIGHEST)).all():
            refused += 1
            continue

        laws_RV = resampled_laws(cells, list(scores_CS), law_V, RESAMPLES)
        low_V, high_V = np.quantile(laws_RV, ENDS, axis=0)
        included.append((low_V <= TRUTH) & (high_V >= TRUTH))
        widths.append(high_V - low_V)

    shares = np.mean(included, axis=0)
    middle = np.median(widths, axis=0)
    places = [NAMES.index(name) for name in SHOWN]
    parts = [f"{shares[n]:.2f} ({middle[n]:.2f})" for n in places]
    return f"| {seeds} | {noise:.1%} | {refused} | {' | '.join(parts)} |"


def fit_points(path: Path) -> list[str]:
    """Chinchilla's law by this package's loss, of log L, and by the authors', of L."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    size_C, tokens_C, loss_C = (
        np.array([float(row[column]) / unit for row in rows])
        for column, unit in (("params", 1e6), ("tokens", 1e9), ("loss", 1))
    )
    cells = Cells(size_C[:, None], np.ones(1), tokens_C, np.ones(len(rows)))
    lines = [
        f"{len(rows)} points, Huber loss of log L: {_words(fit_law(cells, loss_C))}"
    ]

    grid = np.round(np.arange(0.30, 0.46, 0.01), 2)
    on_grid = {
        (a, b): _coefficients_of_plain_loss(a, b, size_C, tokens_C, loss_C)
        for a, b in product(grid, grid)
    }
    lowest = min(on_grid, key=lambda pair: on_grid[pair][0])
    for what, pair in (("published exponents", PUBLISHED), ("lowest", lowest)):
        loss, values = on_grid[pair]
        lines.append(
            f"Huber loss of L, {what}: {_words(values)}; 1e-6 times {loss:.3f}"
        )
    return lines


def _coefficients_of_plain_loss(
    a: float, b: float, size_C: Floats, tokens_C: Floats, loss_C: Floats
) -> tuple[float, Floats]:
    """The lowest Huber loss of L at two exponents, and its values, by a general
    search."""
    bases_CK = np.stack([np.ones_like(size_C), size_C**-a, tokens_C**-b], axis=1)

    def huber(coefficients: Floats) -> float:
        off_C = np.abs(bases_CK @ coefficients - loss_C)
        squares_C = np.where(off_C <= DELTA, off_C**2 / 2, DELTA * (off_C - DELTA / 2))
        return float(1e6 * squares_C.mean())

    start = np.linalg.lstsq(bases_CK, loss_C, rcond=None)[0]
    options = {"maxiter": 4000, "maxfev": 4000, "xatol": 1e-7, "fatol": 1e-9}
    found = minimize(huber, start, method="Nelder-Mead", options=options)
    return float(found.fun), np.array([*found.x, a, b, 0])


def parabola(lopsided: float, step: float) -> str:
    """A row: how far the parabola through three rates is off, at worst, for optima
    anywhere within a step of a grid.

    Without noise, for the curve exp(c x) - c x over log2 of the rate, whose rise on one
    side is up to twice that on the other. The step is in factors of two.
    """

    def rise(x_G: Floats) -> Floats:
        found: Floats = (np.exp(lopsided * x_G) - 1 - lopsided * x_G) / lopsided**2
        return found

    grid_K = step * np.arange(-2.0, 3.0)
    misplaced = []
    too_low = []
    for best in step * np.linspace(-0.5, 0.5, 101):
        place, value, _ = lowest(grid_K, rise(grid_K - best))
        misplaced.append(abs(place - best))
        too_low.append(abs(value))
    sides = rise(np.array([1.0])) / rise(np.array([-1.0]))
    return (
        f"| {sides[0]:.1f} | {2**step:g} | {2 ** max(misplaced):.2f} | "
        f"{max(too_low) / rise(np.array([1.0]))[0]:.2f} |"
    )


def _words(values: Sequence[float] | Floats) -> str:
    pairs = zip(NAMES[:-1], values, strict=False)
    return ", ".join(f"{name} {value:.4f}" for name, value in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=Path)
    parser.add_argument("--parabola", action="store_true")
    asked = parser.parse_args()
    if asked.points:
        print("\n".join(fit_points(asked.points)))
        return
    if asked.parabola:
        for lopsided, step in product((1e-3, 0.5, 1.0), (1, 2)):
            print(parabola(lopsided, step))
        return
    for seeds, noise in DESIGNS:
        print(coverage(seeds, noise), flush=True)


if __name__ == "__main__":
    main()
