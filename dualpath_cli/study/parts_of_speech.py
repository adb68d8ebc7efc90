"""The part of speech of each model token, a universal (UPOS) tag, and classes of tokens by it.

The tag is by spaCy and a rule for sums; nothing slow is imported before it is asked for.

1. a window's tokens are joined to text, which may begin and end in the middle of a character;
2. spaCy splits the text into words and tags them;
3. what belongs to arithmetic is NUM or SYM, whatever spaCy says;
4. each model token inherits the tag of the characters that it overlaps most.

Numbers are NUM: every run of digits, in words too (`1990s`), with its decimal point and commas of
thousands. Signs without another use are SYM: `=`, `<<`, `>>`, `####`, `%`, `×` and its like, signs
of currencies. The others, `+ - – * / ^ < >` and the letter x, are SYM only

- between two numbers: `5*3`, `16 - 3`, `48/2`, `(5+3)*$2`, `3 x 4`; so in ranges and dates, too;
- between blanks, before a number: `2 hours * 3`; `+` and `*` before any word;
- `+ * ^` inside an expression: `2x+y`, `x^2`; `+ -` as the sign of a number: `(-5)`.

So `well-known`, `30-minute`, `and/or`, `$12/hour`, `x = 5` and `C++` keep spaCy's tags for them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

from dualpath_cli.base.errors import UserError

TAGGER = "en_core_web_sm"  # the spaCy pipeline by default
UPOS = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN",
    "PUNCT", "SCONJ", "SPACE", "SYM", "VERB", "X",
)  # fmt: skip
"""Universal part-of-speech tags, and spaCy's SPACE."""
PATHS: Mapping[str, tuple[float, float]] = {"wide": (0.0, 1.0), "deep": (1.0, 0.0)}
"""The gates (g_d, g_w) of tokens that are forced to a path."""
RANDOM = "random-as-"  # the beginning of the name of the random tokens beside a class


@dataclass(frozen=True)
class TokenClass:
    name: str
    upos: tuple[str, ...]
    forced: bool = False  # whether ablate forces them to each path unless told otherwise

    def to(self, path: str) -> "ForcedClass":
        return ForcedClass(self.name, self.upos, path)


@dataclass(frozen=True)
class ForcedClass:
    """A class of tokens and the path that they are forced to."""

    name: str
    upos: tuple[str, ...]
    path: str  # a key of `PATHS`


ARITHMETIC = TokenClass("arithmetic", ("NUM", "SYM"), forced=True)
STRUCTURE = TokenClass("structure", ("SPACE", "PUNCT", "SYM"))
FUNCTION = TokenClass("function", ("ADJ", "ADV", "PART", "PRON", "VERB"), forced=True)
CLOSED = TokenClass("closed-class", ("ADP", "AUX", "CCONJ", "DET", "PART", "PRON", "SCONJ"))
PAPER = (ARITHMETIC, STRUCTURE, FUNCTION, CLOSED)
"""The paper's claims are about these. Its authors' revision forces `ARITHMETIC` and `FUNCTION`; the
paper names `STRUCTURE` as leaning deep; `CLOSED` are function words as grammars have them."""

OTHERS: tuple[TokenClass, ...] = ()
"""Further classes. `routing` measures them for summary.json; `ablate --suite token-classes` forces
those that are `forced`, whose tests are corrected apart from the paper's."""


def measured() -> tuple[TokenClass, ...]:
    return (*PAPER, *OTHERS)


Span = tuple[int, int, str]  # the first character, the one after the last, and their tag

MOST_CHARACTERS = 50_000
"""Characters that spaCy tags at once: it takes 4 kB for each and refuses a million of them."""
BATCH = 8

_NUMBER = r"\(*[$€£¥¢]?(?:\.?\d|<<)"  # how one begins
_ARITHMETIC = re.compile(
    rf"""
    (?P<NUM> \d{{1,3}}(?:,\d{{3}})+(?!\d)(?:\.\d+)? | \d+(?:\.\d+)? | (?<![\w.])\.\d+ )
  | (?P<SYM>
        << | >> | [<>]?= | (?<!\#)\#{{4}}(?!\#) | [×÷−±≠≈≤≥√%$€£¥¢]
      | (?: (?<=[\d)%]) | (?<=[\d)%]\ ) )
        (?: [-–+*/^<>] (?=\ ?\(?[-+]?{_NUMBER}) | [xX] (?=\ ?{_NUMBER}) )
      | (?<=\S\ ) [-–+*/<>xX] (?=\ {_NUMBER})
      | (?<=[\w)%]\ ) [+*] (?=\ [\w(])
      | (?<=[\w)]) [+*^] (?=[\w(])
      | (?<![\w)%–-]) [-+] (?={_NUMBER})
    )
    """,
    re.VERBOSE,
)


class Tagger:
    """Tags model tokens by a spaCy pipeline: the name of a package, or a folder."""

    def __init__(self, pipeline: str | Path = TAGGER) -> None:
        self.nlp = _load(str(pipeline))

    @property
    def facts(self) -> dict[str, str]:
        """The facts that decide the tags, for a report."""
        import spacy

        meta = self.nlp.meta
        name = f"{meta['lang']}_{meta['name']}"
        return {"pipeline": name, "version": meta["version"], "spacy": spacy.__version__}

    def tags(self, windows: Iterable[Sequence[bytes]]) -> Iterator[list[str]]:
        """Yields a tag per token of each window, in order.

        A token is the bytes that it stands for, `Tokenizer.token_values()[id]`. One of blanks only
        is SPACE. One of no bytes, as special tokens should be given, is "".
        """
        sections = (
            (text[start : start + MOST_CHARACTERS], (window, text, start))
            for window, text in ((window, text_of(window)) for window in windows)
            for start in range(0, max(1, len(text)), MOST_CHARACTERS)
        )
        words: list[Span] = []
        for doc, (window, text, start) in self.nlp.pipe(sections, as_tuples=True, batch_size=BATCH):
            words += (
                (start + word.idx, start + word.idx + len(word), word.pos_ or "X")
                for word in doc
                if not word.is_space  # a pipeline trained on a treebank has no tag for these
            )
            if start + MOST_CHARACTERS >= len(text):
                yield align(window, words + arithmetic(text))
                words = []


def text_of(window: Sequence[bytes]) -> str:
    """The text of a window's tokens; each byte of a broken character is one U+FFFD."""
    text = b"".join(window).decode(errors="surrogateescape")
    return re.sub("[\udc80-\udcff]", "\ufffd", text)


def arithmetic(text: str) -> list[Span]:
    """The numbers (NUM) and the operators (SYM) of a text, by the rule above."""
    return [(m.start(), m.end(), str(m.lastgroup)) for m in _ARITHMETIC.finditer(text)]


def align(window: Sequence[bytes], spans: Iterable[Span]) -> list[str]:
    """Returns the tag of each token, given spans of the window's text; later ones hide earlier.

    A token takes the tag of the span that it shares the most bytes with, of equals the first.
    Characters in no span weigh nothing, so ` I` is a word; a token in no span at all is SPACE.
    """
    characters = b"".join(window).decode(errors="surrogateescape")
    sizes = (len(c.encode(errors="surrogateescape")) for c in characters)
    byte_of_character = [0, *accumulate(sizes)]
    span_of_byte = [-1] * byte_of_character[-1]
    tag_of_span = []
    for number, (start, end, tag) in enumerate(spans):
        first, last = byte_of_character[start], byte_of_character[end]
        span_of_byte[first:last] = [number] * (last - first)
        tag_of_span.append(tag)
    tags = []
    end = 0
    for token in window:
        start, end = end, end + len(token)
        shared = Counter(number for number in span_of_byte[start:end] if number >= 0)
        if shared:  # a counter lists equals in the order in which it met them
            tags.append(tag_of_span[shared.most_common(1)[0][0]])
        else:
            tags.append("SPACE" if token else "")
    return tags


def check_pipeline(pipeline: str) -> str:
    """Looks whether spaCy and a pipeline are there, without importing either.

    Returns what to do if the pipeline should turn out to be damaged.
    """
    if find_spec("spacy") is None:
        raise UserError("parts of speech need the package spacy: pip install 'dualpath[pos]'")
    if Path(pipeline).name == pipeline and not Path(pipeline).exists():  # a name, not a path
        way_out = f"python -m spacy download {pipeline}"
        if not pipeline.isidentifier() or find_spec(pipeline) is None:
            raise UserError(f"spaCy pipeline '{pipeline}' is not installed: {way_out}")
        return way_out
    way_out = "give a folder that spaCy's nlp.to_disk wrote"
    if not Path(pipeline).exists():
        raise UserError(f"spaCy pipeline '{pipeline}' does not exist; {way_out}")
    return way_out


def _load(pipeline: str) -> Any:
    """spaCy's pipeline without the components that do nothing for universal tags."""
    way_out = check_pipeline(pipeline)
    import spacy

    try:
        nlp = spacy.load(pipeline, exclude=["ner", "lemmatizer"])
        if "parser" in nlp.pipe_names and "attribute_ruler" not in nlp.pipe_names:
            nlp.disable_pipe("parser")  # only the ruler's tags depend on the parse
        tagged = any(word.pos_ for word in nlp("She sees 3 dogs."))
    except Exception as error:  # whatever a damaged folder or a missing component raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"spaCy pipeline '{pipeline}': {reason}; {way_out}") from None
    if not tagged:
        raise UserError(
            f"spaCy pipeline '{pipeline}' sets no universal part-of-speech tags; "
            f"give one that does: python -m spacy download {TAGGER}"
        )
    return nlp
