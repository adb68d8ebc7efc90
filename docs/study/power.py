"""The power of the study on loops, by simulation: `python docs/study/power.py`.

Designs of a base and five (or four) other arms at three rates, tested as
`compare --best lr` tests them, with the verdicts of loops.md: `compare` also says *no
difference that matters* where p < 0.05 and Holm's is not. One arm differs from the base
by a known amount, in bits per byte. The numbers of loops.md, *Power*, are of other
draws: a share of 150 designs has a standard error of up to 0.04. Takes half an hour of
a core.
"""

import numpy as np
from numpy.typing import NDArray

from dualpath_cli.compare.rates import resampled
from dualpath_cli.report.blocks import holm

Floats = NDArray[np.float64]

RATES = np.array([0.0245, 0.049, 0.098])
LOG_RATES = np.log(RATES)
WITHIN_CELL = 0.0117
"""Standard deviation of seeds in a cell: the mean of eight cells of the last study."""
BEND = 0.0085
"""Rise of the curve in one step of rates, a factor of two."""
FARTHEST = 0.3
"""Most steps between an optimum and the rate in the middle."""
MARGIN = 0.014
DESIGNS = 150
RESAMPLES = 4000
DIFFERENCES = (0, 0.010, 0.014, 0.018, 0.022)


def means(rng: np.random.Generator) -> Floats:
    """The expected losses of an arm at RATES, but for a constant."""
    steps = np.log2(RATES / RATES[1]) - rng.uniform(-FARTHEST, FARTHEST)
    curve: Floats = BEND * steps**2
    return curve


def design(
    rng: np.random.Generator, seeds: int, differences: list[float]
) -> list[dict[str, float]]:
    """The tests of all arms against the base in one simulated study."""
    arms = [means(rng) + difference for difference in [0.0, *differences]]
    noise = [WITHIN_CELL * rng.normal(size=(seeds, len(RATES))) for _ in arms]
    losses = [arm + own for arm, own in zip(arms, noise, strict=True)]

    # randomised blocks: what is left without means of seeds and of cells
    rows = np.hstack(losses)
    left = rows - rows.mean(0) - rows.mean(1, keepdims=True) + rows.mean()
    df = (seeds - 1) * (rows.shape[1] - 1)
    error = float(np.sqrt((left**2).sum() / df / seeds))

    base, *others = (loss.mean(0) for loss in losses)
    return [resampled((LOG_RATES, own), (LOG_RATES, base), error, df) for own in others]


def verdicts(tests: list[dict[str, float]]) -> tuple[bool, bool]:
    """Whether the first arm is found to differ, and to differ by less than matters."""
    found = holm([test["p"] for test in tests])[0] < 0.05
    first = tests[0]
    within = first["low_90"] > -MARGIN and first["high_90"] < MARGIN
    return found, within and first["p"] >= 0.05


def main() -> None:
    rng = np.random.default_rng(1)
    for seeds in (8, 10):
        for arms in (5, 4):
            for difference in DIFFERENCES:
                said = [
                    verdicts(design(rng, seeds, [difference] + [0.0] * (arms - 1)))
                    for _ in range(DESIGNS)
                ]
                found, equal = np.mean(said, axis=0)
                print(
                    f"{seeds} seeds, {arms} pairs, difference {difference:.3f}: found "
                    f"{found:.2f}, no difference that matters {equal:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
