"""Sampling: the changes to a model's probabilities before an id is drawn; torch-free."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sampling:
    """Names, meaning and order as in transformers; by default the model's own probabilities."""

    repetition_penalty: float = 1.0
    """Divides the logits of ids that the text has already; negative logits are multiplied by it."""
    temperature: float = 1.0
    """Divides the logits."""
    top_k: int | None = None
    """Only so many of the likeliest ids, and those as likely as the last of them."""
    top_p: float = 1.0
    """Only the likeliest ids, until together they have this probability."""
    min_p: float | None = None
    """Only ids that are at least so likely, as a fraction of the likeliest."""
    greedy: bool = False
    """Only the likeliest id, after the penalty."""
