"""What the audit says of a claim: the claim, what computation makes of it, and a verdict."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["holds", "as written", "fails", "open", "note"]
"""``as written`` holds for the model of the text but not as trained; ``open`` cannot be decided
from the tables; ``note`` answers a question that the paper does not claim to answer."""


@dataclass(frozen=True)
class Finding:
    """A claim of the paper, or a question to its tables, and what computation makes of it."""

    claim: str
    found: str
    verdict: Verdict


def holds(true: bool) -> Verdict:
    """The verdict on a claim that is simply true or false."""
    return "holds" if true else "fails"
