"""Text as it comes: the pieces are the whole, no half characters, nothing of a stop."""

from hypothesis import example, given
from hypothesis import strategies as st

from dualpath_cli.decoding.writing import TextStream

VALUES = [b"a", b"b", b".", b"ab.", b"a.b", "é".encode()[:1], "é".encode()[1:], "日".encode()[:2],
          "日".encode()[2:], b"\xff", "日é".encode()]  # fmt: skip
"""Of ids: texts, parts of characters, and a byte that is of none."""
STOPS = st.lists(st.text("ab.é日", min_size=1, max_size=4), max_size=3)
IDS = st.lists(st.integers(0, len(VALUES) - 1), max_size=12)


def decode(ids: list[int]) -> str:
    return b"".join(VALUES[id] for id in ids).decode("utf-8", errors="replace")


def whole(ids: list[int], stops: list[str]) -> tuple[str, bool]:
    """The text before the first stop, looked for anew after each id in all that there is."""
    for count in range(1, len(ids) + 1):
        text = decode(ids[:count])
        places = [text.find(stop) for stop in stops if stop in text]
        if places:
            return text[: min(places)], True
    return decode(ids), False


@given(IDS, STOPS)
@example([0, 1, 0, 1, 2], ["abab.", "b."])
@example([5, 5, 6, 7], ["é"])
def test_the_pieces_add_up_to_the_text_before_the_first_stop(ids, stops):
    stream, pieces = TextStream(VALUES, stops), []
    for id in ids:
        pieces.append(stream.push(id))
        if stream.stopped:
            break
    pieces.append(stream.finish())
    assert ("".join(pieces), stream.stopped) == whole(ids, stops)


@given(IDS, IDS, STOPS)
def test_what_was_given_out_holds_whatever_follows(ids, later, stops):
    """The prefix is certain: neither half a character nor the beginning of a stop is in it."""
    stream = TextStream(VALUES, stops)
    given_out = "".join(stream.push(id) for id in ids)
    assert whole([*ids, *later], stops)[0].startswith(given_out)


def test_nothing_is_held_back_that_is_certain():
    stream = TextStream(VALUES, ["ab.ab"])
    assert [stream.push(id) for id in (0, 1, 1, 2, 5, 6, 3, 2)] == [
        "", "", "abb", ".", "", "é", "", "ab..",
    ]  # fmt: skip
