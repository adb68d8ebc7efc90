"""Classes of tokens by part of speech, and what studies do with each; imports nothing slow."""

from collections.abc import Mapping
from dataclasses import dataclass

UPOS = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN",
    "PUNCT", "SCONJ", "SPACE", "SYM", "VERB", "X",
)  # fmt: skip
"""Universal part-of-speech tags, and spaCy's SPACE."""
PATHS: Mapping[str, tuple[float, float]] = {"wide": (0.0, 1.0), "deep": (1.0, 0.0)}
"""What forcing tokens to a path makes of (g_d, g_w)."""
RANDOM = "random-as-"
"""What the name of the random tokens beside a class begins with."""


@dataclass(frozen=True)
class Leaning:
    """Tokens that are said to lean to one path: routing reads whether they do."""

    name: str
    upos: tuple[str, ...]
    path: str
    """A key of `PATHS`."""
    claim: str
    """What is said of them, as the table of claims shows it."""
    forced: bool = False
    """Whether ablate forces them to each path unless told otherwise."""


LEANINGS = (
    Leaning("arithmetic", ("NUM", "SYM"), "deep", "arithmetic (NUM, SYM) leans deep", forced=True),
    Leaning("structure", ("SPACE", "PUNCT", "SYM"), "deep", "SPACE, PUNCT, SYM lean deep"),
    Leaning(
        "function", ("ADJ", "ADV", "PART", "PRON", "VERB"), "wide",
        "ADJ, ADV, PART, PRON, VERB lean wide", forced=True,
    ),
    Leaning(
        "closed-class", ("ADP", "AUX", "CCONJ", "DET", "PART", "PRON", "SCONJ"), "wide",
        "function words (closed classes) lean wide",
    ),
)  # fmt: skip
"""The forced ones are of the authors' revision; `structure` is what their paper names as leaning
deep, `closed-class` function words as grammars have them. A class that is added here is read by
routing, and where it is `forced`, ablated."""


@dataclass(frozen=True)
class TokenClass:
    """Tokens by part of speech, and the path that they are forced to."""

    name: str
    upos: tuple[str, ...]
    path: str
    """A key of `PATHS`."""

    @property
    def gates(self) -> tuple[float, float]:
        """(g_d, g_w) of the forced path."""
        return PATHS[self.path]


AUTHORS = tuple(
    TokenClass(leaning.name, leaning.upos, "wide" if leaning.path == "deep" else "deep")
    for leaning in LEANINGS
    if leaning.forced
)
"""Those of the authors' revision: each to the path that it is said not to lean to."""
TOKEN_CLASSES = tuple(
    TokenClass(forced.name, forced.upos, path) for forced in AUTHORS for path in PATHS
)
"""Those that ablate forces unless told otherwise, each to both paths: a class that suffers from
one path alone leans to the other; one that suffers from both is merely sensitive."""
