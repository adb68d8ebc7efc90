"""Sampling: the changes to a model's probabilities before an id is drawn; torch-free."""

from dataclasses import dataclass

from dualpath_cli.ranges import Range, check_ranges

RANGES: dict[str, Range] = {
    "repetition_penalty": (1e-6, 1e6),
    "temperature": (1e-6, 1e6),
    "top_k": (1, 1 << 24),
    "top_p": (1e-9, 1),
    "min_p": (0, 1),
}


@dataclass(frozen=True)
class Sampling:
    """Names, meaning and order as in transformers; by default the model's own probabilities.

    Raises:
        ValueError: for a number out of its range.
    """

    repetition_penalty: float = 1.0
    """Divides the logits of ids that the text has already; negative logits are multiplied by it."""
    temperature: float = 1.0  # divides the logits
    top_k: int | None = None
    """Only so many of the likeliest ids, and those as likely as the last of them."""
    top_p: float = 1.0  # only the likeliest ids, until together they have this probability
    min_p: float | None = None
    """Only ids that are at least so likely, as a fraction of the likeliest."""
    greedy: bool = False  # only the likeliest id, after the penalty

    def __post_init__(self) -> None:
        check_ranges(self, RANGES)
