"""At which level tests are made, with which power, and how many were made. Torch-free."""

from collections.abc import Sequence

LEVEL = 0.05
"""A corrected p-value below this rejects."""
POWER = 0.8
"""The probability of finding the smallest detectable difference."""


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values corrected for their number (Holm 1979); nan, no test, stays and counts not.

    Rejecting all that are below 0.05 rejects a true hypothesis in one of twenty families.
    """
    order = sorted((n for n, p in enumerate(p_values) if p == p), key=lambda n: p_values[n])
    corrected = [float("nan")] * len(p_values)
    least = 0.0
    for place, number in enumerate(order):
        least = max(least, min(1.0, (len(order) - place) * p_values[number]))
        corrected[number] = least
    return corrected
