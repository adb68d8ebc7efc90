"""Classes of tokens by part of speech; imports nothing slow."""

from collections.abc import Mapping
from dataclasses import dataclass

UPOS = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN",
    "PUNCT", "SCONJ", "SPACE", "SYM", "VERB", "X",
)  # fmt: skip
"""Universal part-of-speech tags, and spaCy's SPACE."""
PATHS: Mapping[str, tuple[float, float]] = {"wide": (0.0, 1.0), "deep": (1.0, 0.0)}
"""The gates (g_d, g_w) of tokens that are forced to a path."""
RANDOM = "random-as-"
"""The beginning of the name of the random tokens beside a class."""


@dataclass(frozen=True)
class TokenClass:
    """Tokens by part of speech."""

    name: str
    upos: tuple[str, ...]
    forced: bool = False
    """Whether ablate forces them to each path unless told otherwise."""

    def to(self, path: str) -> "ForcedClass":
        return ForcedClass(self.name, self.upos, path)


@dataclass(frozen=True)
class ForcedClass:
    """A class of tokens and the path that they are forced to."""

    name: str
    upos: tuple[str, ...]
    path: str
    """A key of `PATHS`."""

    @property
    def gates(self) -> tuple[float, float]:
        """(g_d, g_w) of the forced path."""
        return PATHS[self.path]


ARITHMETIC = TokenClass("arithmetic", ("NUM", "SYM"), forced=True)
STRUCTURE = TokenClass("structure", ("SPACE", "PUNCT", "SYM"))
FUNCTION = TokenClass("function", ("ADJ", "ADV", "PART", "PRON", "VERB"), forced=True)
CLOSED = TokenClass("closed-class", ("ADP", "AUX", "CCONJ", "DET", "PART", "PRON", "SCONJ"))
PAPER = (ARITHMETIC, STRUCTURE, FUNCTION, CLOSED)
"""The paper's claims are about these. Its authors' revision forces `ARITHMETIC` and `FUNCTION`; the
paper names `STRUCTURE` as leaning deep; `CLOSED` are function words as grammars have them."""

OTHERS: tuple[TokenClass, ...] = ()
"""Further classes. `routing` measures them and shows them in a table, a figure and on the page;
`ablate --suite token-classes` forces those that are `forced`. Their tests are corrected apart from
the paper's."""


def measured() -> tuple[TokenClass, ...]:
    """Returns all classes: the paper's, then further ones."""
    return (*PAPER, *OTHERS)
