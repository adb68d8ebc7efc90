"""Sampling: the changes to a model's probabilities before an id is drawn; torch-free."""

from dataclasses import dataclass

from dualpath_cli.base.ranges import check_ranges


@dataclass(frozen=True)
class Sampling:
    """Names, meaning and order as in transformers; by default the model's own probabilities.

    Raises:
        ValueError: for a number out of its range.
    """

    temperature: float = 1.0
    """Divide logits by this: below 1, likely tokens become likelier."""
    top_k: int | None = None
    """Draw from the K likeliest tokens, with ties at the last; 0 is off."""
    top_p: float = 1.0
    """Draw from the likeliest tokens that together have this probability."""
    greedy: bool = False
    """Always take the likeliest token."""

    def __post_init__(self) -> None:
        if self.temperature == 0:
            raise ValueError("temperature must be above 0, not 0; greedy takes the likeliest")
        check_ranges(self, {"temperature": (1e-6, 1e6), "top_k": (0, 1 << 24), "top_p": (1e-9, 1)})
