"""The part of speech of each model token (UPOS), and classes of tokens by tag.

Tags are set by spaCy and by a rule for arithmetic; slow imports wait until tags are
needed.

1. a window's tokens are joined to text, which may begin and end in the middle of a
   character;
2. spaCy splits the text into words and tags the words;
3. numbers and operators of arithmetic become NUM or SYM, whatever spaCy's tag is;
4. each model token gets the tag of the word that shares most characters with the token.

Numbers are NUM: every run of digits, in words too (`1990s`), with its decimal point and
commas of thousands. Signs without another use are SYM: `=`, `<<`, `>>`, `####`, `%`,
`×` and the like, signs of currencies. The signs `+ - – * / ^ < >` and the letter x are
SYM only

- between two numbers: `5*3`, `16 - 3`, `48/2`, `(5+3)*$2`, `3 x 4`; so in ranges and
  dates, too;
- between blanks, before a number: `2 hours * 3`; `+` and `*` before any word;
- `+ * ^` inside an expression: `2x+y`, `x^2`; `+ -` as the sign of a number: `(-5)`.

So `well-known`, `30-minute`, `and/or`, `$12/hour`, and x and + in `x = 5` and `C++` are
spaCy's.
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
from dualpath_cli.base.output import joined_lines

TAGGER = "en_core_web_sm"  # the default spaCy pipeline
UPOS = (
    "ADJ",
    "ADP",
    "ADV",
    "AUX",
    "CCONJ",
    "DET",
    "INTJ",
    "NOUN",
    "NUM",
    "PART",
    "PRON",
    "PROPN",
    "PUNCT",
    "SCONJ",
    "SPACE",
    "SYM",
    "VERB",
    "X",
)
"""Universal part-of-speech tags, and spaCy's SPACE."""
PATHS: Mapping[str, tuple[float, float]] = {"wide": (0.0, 1.0), "deep": (1.0, 0.0)}
"""The gates (g_d, g_w) of tokens that are forced to a path."""
RANDOM = "random-as-"  # the beginning of the name of the random tokens beside a class
CLASSES: Mapping[str, tuple[str, ...]] = {
    "arithmetic": ("NUM", "SYM"),
    "structure": ("SPACE", "PUNCT", "SYM"),
    "function": ("ADJ", "ADV", "PART", "PRON", "VERB"),
    "closed-class": ("ADP", "AUX", "CCONJ", "DET", "PART", "PRON", "SCONJ"),
}
"""The classes of tokens in the paper's claims. The authors' revision forces arithmetic
and function; the paper says that structure leans deep; closed-class are the function
words of grammars.
"""
FORCED = ("arithmetic", "function")


@dataclass(frozen=True)
class ForcedClass:
    """A class of tokens, and the path to which they are forced."""

    name: str
    upos: tuple[str, ...]
    path: str  # a key of `PATHS`


# the first character, the one after the last, and their tag
TaggedSpan = tuple[int, int, str]

MOST_CHARACTERS = 50_000
"""Characters that spaCy tags at once: each takes 4 kB, and spaCy rejects a million."""

_NUMBER = r"\(*[$€£¥¢]?(?:\.?\d|<<)"  # the beginning of a number
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
        return {
            "pipeline": name,
            "version": meta["version"],
            "spacy": spacy.__version__,
        }

    def tags(self, windows: Iterable[Sequence[bytes]]) -> Iterator[list[str]]:
        """Yields a tag per token of each window, in order.

        A token stands as its bytes, `Tokenizer.token_values()[id]`. A token of only
        blanks is SPACE. A token without bytes, such as a special token, is "".
        """
        docs = self.nlp.pipe(_sections(windows), as_tuples=True, batch_size=8)
        words: list[TaggedSpan] = []
        for doc, (window, text, start) in docs:
            for word in doc:
                # Pipelines trained on treebanks have no tag for blanks.
                if word.is_space:
                    continue
                first = start + word.idx
                words.append((first, first + len(word), word.pos_ or "X"))

            is_last_section = start + MOST_CHARACTERS >= len(text)
            if is_last_section:
                yield align(window, words + arithmetic(text))
                words = []


Section = tuple[str, tuple[Sequence[bytes], str, int]]


def _sections(windows: Iterable[Sequence[bytes]]) -> Iterator[Section]:
    """Cuts each window's text to what spaCy tags at once.

    Yields a section, and with it the window, its whole text, and the section's first
    character.
    """
    for window in windows:
        text = text_of(window)
        for start in range(0, max(1, len(text)), MOST_CHARACTERS):
            yield text[start : start + MOST_CHARACTERS], (window, text, start)


def text_of(window: Sequence[bytes]) -> str:
    """The text of a window's tokens; each byte of a broken character is one U+FFFD."""
    text = b"".join(window).decode(errors="surrogateescape")
    return re.sub("[\udc80-\udcff]", "\ufffd", text)


def arithmetic(text: str) -> list[TaggedSpan]:
    """The numbers (NUM) and the operators (SYM) of a text, by the rule above."""
    matches = _ARITHMETIC.finditer(text)
    return [(match.start(), match.end(), str(match.lastgroup)) for match in matches]


def align(window: Sequence[bytes], spans: Iterable[TaggedSpan]) -> list[str]:
    """Returns the tag of each token from spans of the window's text; later spans hide
    earlier.

    A token takes the tag of the span with the most common bytes; among ties, of the
    first. Characters in no span do not count, so ` I` is a word; a token outside all
    spans is SPACE.
    """
    characters = b"".join(window).decode(errors="surrogateescape")
    sizes = (len(c.encode(errors="surrogateescape")) for c in characters)
    byte_of_character = [0, *accumulate(sizes)]

    span_of_byte = [-1] * byte_of_character[-1]
    tag_of_span = []
    for number, (start, end, tag) in enumerate(spans):
        first = byte_of_character[start]
        last = byte_of_character[end]
        span_of_byte[first:last] = [number] * (last - first)
        tag_of_span.append(tag)

    tags = []
    position = 0
    for token in window:
        own_bytes = span_of_byte[position : position + len(token)]
        position += len(token)
        shared = Counter(number for number in own_bytes if number >= 0)
        if shared:
            # A counter lists ties in order of appearance.
            ((best, _),) = shared.most_common(1)
            tags.append(tag_of_span[best])
        else:
            tags.append("SPACE" if token else "")

    return tags


def _way_out(pipeline: str) -> str:
    """The end of a message about a pipeline."""
    is_name = pipeline.isidentifier() and not Path(pipeline).exists()
    name = pipeline if is_name else TAGGER
    return (
        f"python -m spacy download {name}, or give a folder that spaCy's nlp.to_disk "
        "wrote"
    )


def check_pipeline(pipeline: str) -> None:
    """Raises UserError unless spaCy and a pipeline are installed, without importing
    either."""
    if find_spec("spacy") is None:
        raise UserError(
            "parts of speech need the package spacy: in the clone, pip install '.[pos]'"
        )

    is_installed = pipeline.isidentifier() and find_spec(pipeline) is not None
    if not is_installed and not Path(pipeline).exists():
        raise UserError(
            f"spaCy pipeline '{pipeline}' is not installed: {_way_out(pipeline)}"
        )


def _load(pipeline: str) -> Any:
    """spaCy's pipeline without components that universal tags do not need."""
    check_pipeline(pipeline)
    import spacy

    try:
        nlp = spacy.load(pipeline, exclude=["ner", "lemmatizer"])
        if "parser" in nlp.pipe_names and "attribute_ruler" not in nlp.pipe_names:
            nlp.disable_pipe("parser")  # only the ruler's tags depend on the parse
        sets_tags = any(word.pos_ for word in nlp("She sees 3 dogs."))
    except Exception as error:  # from a damaged folder or a missing component
        reason = joined_lines(f"{type(error).__name__}: {error}")
        raise UserError(
            f"spaCy pipeline '{pipeline}': {reason}; {_way_out(pipeline)}"
        ) from None

    if not sets_tags:
        raise UserError(
            f"spaCy pipeline '{pipeline}' sets no universal part-of-speech tags; "
            f"give another: {_way_out(TAGGER)}"
        )

    return nlp
