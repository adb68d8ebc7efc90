"""Power and errors of family A of the study on loops, by simulation of the whole
protocol: `python docs/study/power.py`.

A design is a base and five other arms at three rates with eight seeds. An arm whose
lowest mean is at an edge of its rates gets one more rate. The tests are those of
`compare --best lr`, then come the second check and the verdicts of loops.md. The first
arm differs from the base by a known amount, in bits per byte, and its curve may be
flatter than the others. All random numbers are fixed. Takes ten minutes of a core.
"""

from collections import Counter
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray
from row import share_as_large, verdict

from dualpath_cli.compare.rates import resampled
from dualpath_cli.report.blocks import block_spread, holm

Floats = NDArray[np.float64]

SEEDS = 8
ARMS = 5  # beside the base
MIDDLE = 0.049  # of three rates a factor of two apart
WITHIN_CELL = 0.0117
"""Standard deviation of seeds in a cell: the mean of eight cells of the last study."""
BEND = 0.0085
"""Rise of the curve in one step of rates, a factor of two."""
FLAT = 0.0018
"""The same, of PureLoop in docs/study/first.md."""
FARTHEST = 0.3
"""Most steps between an optimum and the rate in the middle."""
MARGIN = 0.014
DESIGNS = 1000
RESAMPLES = 4000
"""Resamples of a test; `compare` takes five times as many."""


class Arm:
    """An arm's true curve, and the scores that were drawn from it."""

    def __init__(
        self, rng: np.random.Generator, difference: float, bend: float
    ) -> None:
        self._rng = rng
        self._difference = difference
        self._bend = bend
        self._optimum = rng.uniform(-FARTHEST, FARTHEST)
        self.scores: dict[int, Floats] = {}  # (SEEDS,), by steps from the middle rate
        for step in (-1, 0, 1):
            self._train(step)
        if edge := self.edge:
            self._train(2 * edge)

    def _train(self, step: int) -> None:
        expected = self._difference + self._bend * (step - self._optimum) ** 2
        self.scores[step] = expected + WITHIN_CELL * self._rng.normal(size=SEEDS)

    @property
    def rows(self) -> Floats:
        """Scores by rate and seed, (K, SEEDS)."""
        return np.stack([self.scores[step] for step in sorted(self.scores)])

    @property
    def edge(self) -> int:
        """-1 or 1 if the lowest mean is that of the lowest or the highest rate, else
        0."""
        lowest = int(self.rows.mean(1).argmin())
        last = len(self.scores) - 1
        return {0: -1, last: 1}.get(lowest, 0)

    @property
    def logs(self) -> Floats:
        return np.log(MIDDLE * 2.0 ** np.array(sorted(self.scores)))


def test_all(arms: list[Arm], base: Arm) -> list[dict[str, Any]]:
    """The tests of the arms against the base, as `compare --best lr` makes them; p is
    nan without a test."""
    rows = np.concatenate([arm.rows for arm in (base, *arms)])
    spread = block_spread(rows)
    error = spread.error / 2**0.5

    tests: list[dict[str, Any]] = []
    for arm in arms:
        if arm.edge or base.edge:
            tests.append({"p": nan})
            continue
        ours, theirs = ((each.logs, each.rows.mean(1)) for each in (arm, base))
        tests.append(resampled(ours, theirs, error, spread.df, RESAMPLES))
    return tests


def judge(arms: list[Arm], base: Arm) -> tuple[list[str], list[dict[str, Any]]]:
    """The verdicts of loops.md on all arms, and the tests that they rest on."""
    tests = test_all(arms, base)
    corrected = holm([1.0 if np.isnan(test["p"]) else test["p"] for test in tests])

    verdicts = []
    for arm, test, p_holm in zip(arms, tests, corrected, strict=True):
        if np.isnan(test["p"]):
            verdicts.append("no verdict")
            continue
        ours, theirs = ((each.logs, each.rows.T) for each in (arm, base))
        # The second check can only change a verdict of significance.
        share = 0.0
        if p_holm < 0.05:
            share = share_as_large(ours, theirs, own_noise=True)["share"]
        verdicts.append(verdict(test, p_holm, share, MARGIN))
    return verdicts, tests


def simulate(difference: float, bend: float) -> str:
    """The shares of the first arm's verdicts and of false verdicts on any other arm."""
    rng = np.random.default_rng(1)
    said: Counter[str] = Counter()
    holds = tested = false = extended = 0
    for _ in range(DESIGNS):
        base = Arm(rng, 0.0, BEND)
        first = Arm(rng, difference, bend)
        arms = [first, *(Arm(rng, 0.0, BEND) for _ in range(ARMS - 1))]
        verdicts, tests = judge(arms, base)

        said[verdicts[0].partition(",")[0]] += 1
        false += any(word.startswith(("better", "worse")) for word in verdicts[1:])
        extended += any(len(arm.scores) > 3 for arm in (base, *arms))
        if not np.isnan(tests[0]["p"]):
            tested += 1
            holds += tests[0]["low"] <= difference <= tests[0]["high"]

    words = ("better", "worse", "no difference that matters", "undecided", "no verdict")
    shares = ", ".join(f"{word} {said[word] / DESIGNS:.3f}" for word in words)
    return (
        f"bend {bend}, difference {difference:+.3f}: {shares}; 95 % intervals that "
        f"hold it {holds / tested:.3f}; a false verdict on another arm "
        f"{false / DESIGNS:.3f}; an arm with a further rate {extended / DESIGNS:.3f}"
    )


def main() -> None:
    for difference in (0.0, 0.010, 0.014, 0.018, 0.022):
        print(simulate(difference, BEND), flush=True)
    for difference in (-0.014, 0.0, 0.014):
        print(simulate(difference, FLAT), flush=True)


if __name__ == "__main__":
    main()
