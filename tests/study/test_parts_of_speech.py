"""Parts of speech: exact to the byte, arithmetic by rule; random tokens beside a
class."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.language import Language

from dualpath_cli.base.errors import UserError
from dualpath_cli.study import parts_of_speech
from dualpath_cli.study.controls import (
    Masks,
    MatchQuality,
    class_masks,
    matched_random_tokens,
    tag_windows,
)
from dualpath_cli.study.parts_of_speech import (
    TaggedSpan,
    Tagger,
    align,
    arithmetic,
    text_of,
)
from tests.data.small_tokenizer import tokenizer_with

# Alignment

TEXTS = st.text() | st.text(
    alphabet="ab 1.\n\u00a0é\u0301ß日本\ufffd\u200d🥐👩", max_size=20
)


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The bytes as tokens that end at these places, and the rest."""
    ends = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(ends)]


PLACES = st.lists(st.integers(0, 10**6), max_size=12)


@st.composite
def windows(draw: st.DrawFn) -> list[bytes]:
    """Tokens of bytes cut out of a text, or of bytes that are no text at all."""
    data = draw(TEXTS).encode()
    first, last = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 2)))
    return cut(draw(st.just(data[first:last]) | st.binary(max_size=12)), draw(PLACES))


def characters_of(data: bytes) -> list[tuple[str, int]]:
    """Characters and their sizes: at each place the first size that is one, or a lone
    byte."""
    found = []
    at = 0
    while at < len(data):
        for size in (1, 2, 3, 4):
            try:
                found.append((data[at : at + size].decode(), size))
                break
            except UnicodeDecodeError:
                continue
        else:
            found.append(("\ufffd", 1))
        at += found[-1][1]
    return found


def aligned_slowly(window: list[bytes], spans: list[TaggedSpan]) -> list[str]:
    """For each token, asks each of its bytes for the span of its character, and
    counts."""
    character_of_byte = [
        number
        for number, (_, size) in enumerate(characters_of(b"".join(window)))
        for _ in range(size)
    ]
    tags = []
    at = 0
    for token in window:
        votes = []
        for _ in token:
            over = [
                s for s, (a, b, _) in enumerate(spans) if a <= character_of_byte[at] < b
            ]
            votes += over[-1:]
            at += 1
        best = sorted(votes, key=lambda vote: (-votes.count(vote), votes.index(vote)))[
            :1
        ]
        tags.append(spans[best[0]][2] if best else "SPACE" if token else "")
    return tags


@given(windows(), st.data())
def test_tokens_get_the_tags_that_a_count_of_their_bytes_one_by_one_gives(window, data):
    place = st.integers(0, len(characters_of(b"".join(window))))
    span = st.tuples(place, place, st.sampled_from(["NOUN", "VERB", "NUM"]))
    spans = [
        (min(a, b), max(a, b), tag)
        for a, b, tag in data.draw(st.lists(span, max_size=6))
    ]
    assert align(window, spans) == aligned_slowly(window, spans)


@given(windows())
def test_the_text_of_a_window_has_one_character_for_each_and_for_each_broken_byte(
    window,
):
    assert text_of(window) == "".join(c for c, _ in characters_of(b"".join(window)))


# Arithmetic

MARKED = """
16 - 3 - 4 = <<16-3-4=9>>9 eggs
NN S N S N S SSNNSNSNSNSSN

5*3 48/2 2^3 1<2>1 7–9 3 × 4 ÷ 2 − 1
NSN NNSN NSN NSNSN NSN N S N S N S N

80,000+50,000=$<<80000+50000=130000>>130,000
NNNNNNSNNNNNNSSSSNNNNNSNNNNNSNNNNNNSSNNNNNNN

(16-3)*(-2) + .5*$20 at 50% * -1/-2
 NNSN S SN  S NNSSNN    NNS S SNSSN

2 hours * 3 - $5 + 4% - 1 ≥ x >= 2
N       S N S SN S NS S N S   SS N

sum: 1,000.50, 3.5, 1,2 and 1,0000.
     NNNNNNNN  NNN  N N     N NNNN

#### 72
SSSS NN

# 3 ## a ##### b
  N

the price + the tip * two, 2x+10=3*y, x^2, x=-3
          S         S      N SNNSNS    SN   SSN

3 x 4, 3x4, 3 X $4, 6 eggs x 2, solve x = 2x+5 for x or 5x
N S N  NSN  N S SN  N      S N          S N SN          N

$18, 18€, 50 %, ¢5, = == <= => <- ->
SNN  NNS  NN S  SN  S SS SS S

well-known, 30-minute, and/or, $12/hour, a 5-year-old, km/h, F-16, COVID-19
            NN                 SNN         N                   NN        NN

C++, A+ grades, Google+ is x-ray - not 5 - at all
                                       N

He came - and went -- 5 of them--7 <p> a < b
                      N          N

  * 3 eggs * * * a
    N

2 eggs - (3 / ((1+1))) = 2 eggs - <<2-3/2=.5>>
N      S  N S   NSN    S N      S SSNSNSNSNNSS

in the 1990s, 2nd, H2O, 12:30, 2020-05-01, 5-10
       NNNN   N     N   NN NN  NNNNSNNSNN  NSNN

x.5 and 3.8.18 and ... .5 -.5 ... -5 +1
  N     NNN NN         NN SNN     SN SN
"""


@pytest.mark.parametrize(
    ("text", "marks"),
    [tuple(pair.split("\n")[:2]) for pair in MARKED[1:].split("\n\n")],
)
def test_numbers_and_operators_are_told_from_other_uses_of_their_signs(text, marks):
    found = [" "] * len(text)
    for start, end, upos in arithmetic(text):
        found[start:end] = upos[0] * (end - start)
    assert (text + "\n" + "".join(found)).rstrip() == (text + "\n" + marks).rstrip()


# Tagger

WORDS = {"she": "PRON", "sees": "VERB", "dog": "NOUN", "日本": "PROPN", "16=3": "NOUN"}


def saved(nlp: Language, folder: Path) -> Path:
    nlp.to_disk(folder)
    return folder


@pytest.fixture
def tagger(tmp_path: Path) -> Tagger:
    """Of a pipeline that knows the tags of five words."""
    nlp = spacy.blank("en")
    ruler = nlp.add_pipe("attribute_ruler")
    for word, upos in WORDS.items():
        ruler.add([[{"LOWER": word}]], {"POS": upos})
    return Tagger(saved(nlp, tmp_path / "words"))


def test_words_keep_the_pipelines_tags_and_arithmetic_has_its_own(tagger):
    window = [b"", b"She", b" sees", b" 16", b"=", b"3", b" dog", b"\n\n", b" unknown"]
    (tags,) = tagger.tags([window])
    assert tags == ["", "PRON", "VERB", "NUM", "SYM", "NUM", "NOUN", "SPACE", "X"]


@pytest.mark.parametrize("piece", [13, 26, 39, 65])
def test_texts_in_pieces_have_the_tags_of_the_whole(tagger, monkeypatch, piece):
    window = [" 日本".encode()[:5], " 日本".encode()[5:], b" sees", b" ", b"16=3"] * 5
    assert len(text_of(window)) == 65
    whole = ["PROPN", "PROPN", "VERB", "SPACE", "NUM"] * 5
    assert tagger.nlp.max_length > parts_of_speech.MOST_CHARACTERS
    monkeypatch.setattr(parts_of_speech, "MOST_CHARACTERS", piece)
    several = [window, [b"dog"], [b""], window[:-1], window]
    expected = [whole, ["NOUN"], [""], whole[:-1], whole]
    assert list(tagger.tags(several * 8)) == expected * 8


def test_a_pipeline_that_is_not_there_has_a_way_out_of_its_own():
    for pipeline, named in {"de_none": "de_none", "./none": "en_core_web_sm"}.items():
        with pytest.raises(
            UserError, match=f"'{pipeline}' is not .* spacy download {named}, or"
        ):
            parts_of_speech.check_pipeline(pipeline)


# Random tokens beside a class: as many, where and in runs as long as the class's own

NUMBERS = ("NUM", "SYM")
tags_of_windows = st.lists(
    st.lists(
        st.sampled_from(["", "NUM", "NOUN", "VERB", "ADJ"]), min_size=1, max_size=20
    ),
    min_size=1,
    max_size=8,
)


def runs_of(masks: Masks) -> Counter[tuple[int, int]]:
    """How often there is a run of some start and length, over all windows."""
    runs: Counter[tuple[int, int]] = Counter()
    for mask in masks:
        start = None
        for position, flag in enumerate([*mask.tolist(), False]):
            if flag and start is None:
                start = position
            if not flag and start is not None:
                runs[start, position - start] += 1
                start = None
    return runs


@given(tags_of_windows, st.integers(0, 3))
def test_random_others_are_as_many_and_never_members_or_end_of_text(windows, seed):
    tags = [np.array(window, dtype=np.str_) for window in windows]
    members = class_masks(tags, NUMBERS)
    wanted = sum(mask.sum() for mask in members)
    others = sum((window != "").sum() for window in tags) - wanted
    if others < wanted:
        with pytest.raises(
            UserError, match=r"class 'numbers' has \d+ tokens, more than the"
        ):
            matched_random_tokens(tags, members, seed, "numbers")
        return
    drawn, match = matched_random_tokens(tags, members, seed, "numbers")
    assert [mask.shape for mask in drawn] == [mask.shape for mask in members]
    assert sum(mask.sum() for mask in drawn) == wanted
    for mask, member, window in zip(drawn, members, tags, strict=True):
        assert not (mask & member).any()
        assert not (mask & (window == "")).any()
    again, _ = matched_random_tokens(tags, members, seed, "numbers")
    assert all(np.array_equal(a, b) for a, b in zip(drawn, again, strict=True))
    for runs, mean in (
        (runs_of(members), match.run),
        (runs_of(drawn), match.random_run),
    ):
        lengths = [length for (_, length), times in runs.items() for _ in range(times)]
        assert mean == pytest.approx(
            np.mean(lengths) if lengths else np.nan, nan_ok=True
        )


@given(tags_of_windows, st.integers(0, 3))
def test_where_there_is_room_runs_keep_their_position_and_length(windows, seed):
    """Beside each window one without members for each of them."""
    room = [["NOUN"] * 20 for _ in range(sum(map(len, windows)))]
    tags = [np.array(window, dtype=np.str_) for window in windows + room]
    members = class_masks(tags, NUMBERS)
    drawn, match = matched_random_tokens(tags, members, seed, "numbers")
    assert runs_of(drawn) == runs_of(members)
    if any(mask.any() for mask in members):
        assert match == MatchQuality(1.0, 0.0, match.run, match.run)


def test_without_room_a_run_moves_and_then_is_cut():
    # The only others begin at position 4: the pair moves there from position 1.
    tags = [np.array(["NOUN", "NUM", "NUM", "", "NOUN", "NOUN"])]
    (drawn,), match = matched_random_tokens(
        tags, class_masks(tags, NUMBERS), 0, "numbers"
    )
    assert drawn.tolist() == [False] * 4 + [True] * 2
    assert match == MatchQuality(0.0, 3.0, 2.0, 2.0)
    tags = [np.array(["NOUN", "NUM", "NUM", "", "NOUN"])]
    (drawn,), match = matched_random_tokens(
        tags, class_masks(tags, NUMBERS), 0, "numbers"
    )
    assert drawn.tolist() == [True, False, False, False, True]
    assert (match.run, match.random_run) == (2.0, 1.0)


def test_every_window_is_as_likely_as_any():
    tags = [np.array(["NOUN", "NUM", "NOUN"]), *[np.array(["NOUN"] * 3)] * 4]
    members = class_masks(tags, NUMBERS)
    times = np.zeros(5)
    for seed in range(800):
        drawn, _ = matched_random_tokens(tags, members, seed, "numbers")
        assert [mask[1] for mask in drawn] == [mask.any() for mask in drawn]
        times += [mask.any() for mask in drawn]
    # Binomial(800, 1/4): mean 200, standard deviation 12.2.
    assert times[0] == 0
    assert np.abs(times[1:] - 200).max() < 5 * 12.2


def test_input_tokens_are_tagged_and_end_of_text_is_not():
    tokenizer = tokenizer_with(["h e", "l l"])
    hell = tokenizer.encode("hell")
    window = np.array(
        [tokenizer.eot_id, *hell, tokenizer.eot_id, *tokenizer.encode("hello")]
    )

    class Fake:
        def tags(self, windows):
            for values in windows:
                # Words of two documents do not touch.
                assert b"".join(values) == b"\n\nhell\n\nhell"
                yield [value.decode().upper() for value in values]

    tags = tag_windows([window[:-1]], tokenizer, Fake())
    assert [window.tolist() for window in tags] == [["", "HE", "LL", "", "HE", "LL"]]
