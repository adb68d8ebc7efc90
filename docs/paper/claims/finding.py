"""What the audit says of a claim: the claim, what computation makes of it, and a verdict."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal

from dualpath_cli.flops import paper

Verdict = Literal["holds", "as written", "as trained", "fails", "open", "note"]

CLEAR = 2
"""Standard errors that a lead in accuracy needs."""
RULE = (
    "One rule for every claim: it is graded in the scope that its section states (K = 4 in the "
    "main results), in each case that it covers, or in most where it says 'generally', by the "
    "printed numbers; averages that print alike are ordered by their rows. Verdicts: holds; as "
    "written, as trained: for the model of the text or for the trained one alone; fails; open: "
    f"true as printed, but an accuracy that it rests on leads by less than {CLEAR} standard errors "
    "(bits per byte have no error in the tables: there any lead counts); note: no claim of the "
    "paper."
)


@dataclass(frozen=True)
class Finding:
    """A claim of the paper, or a question to its tables, and what computation makes of it."""

    claim: str
    found: str
    verdict: Verdict


def grade(*cases: bool, generally: bool = False, lead: float = inf) -> Verdict:
    """The verdict on a claim by RULE.

    `cases` are those that it covers, `lead` the smallest of the leads in accuracy that it rests
    on, in standard errors.
    """
    if not (2 * sum(cases) > len(cases) if generally else all(cases)):
        return "fails"
    return "open" if lead < CLEAR else "holds"


def by_reading(
    claim: str, judge: Callable[[paper.Reading], tuple[str, bool]], quantity: str = ""
) -> Finding:
    """A finding whose text and truth `judge` gives for each reading."""
    judged = {reading.replace("_", " "): judge(reading) for reading in paper.READINGS}
    texts = "; ".join(f"{reading}: {text}" for reading, (text, _) in judged.items())
    written, trained = judged["as written"][1], judged["as trained"][1]
    verdict: Verdict = "as written" if written else "as trained"
    if written == trained:
        verdict = grade(written)
    return Finding(claim, f"{quantity}{texts}.", verdict)
