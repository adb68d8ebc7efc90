"""TextStream: the text of ids as they come, without half characters and without stops."""

import codecs
from collections.abc import Sequence


class TextStream:
    """Gives out text as soon as it is certain; the pieces add up to the text before a stop."""

    def __init__(self, token_values: Sequence[bytes], stops: Sequence[str] = ()) -> None:
        """`token_values` are the bytes of each id. A text ends before the first of `stops`."""
        self._token_values = token_values
        self._stops = stops
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stopped = False
        """Whether a stop has come: then all of the text was given out."""

    def push(self, id: int) -> str:
        """Takes the next id and returns what is certain by now.

        Held back are bytes that later ones may complete to a character, and characters that later
        ones may complete to a stop.
        """
        return self._take(self._decoder.decode(self._token_values[id]))

    def finish(self) -> str:
        """Returns what was held back; half a character becomes U+FFFD."""
        text = self._take(self._decoder.decode(b"", final=True))
        rest, self._held = self._held, ""
        return text + rest

    def _take(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        found = [text.find(stop) for stop in self._stops if stop in text]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        certain = len(text) - max((_begun(text, stop) for stop in self._stops), default=0)
        self._held = text[certain:]
        return text[:certain]


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of a text are the beginning of a stop."""
    most = min(len(text), len(stop) - 1)
    return next((count for count in range(most, 0, -1) if text.endswith(stop[:count])), 0)
