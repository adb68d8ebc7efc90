"""Cleaning: the same text written in different ways becomes the same; a fault is named."""

import unicodedata

_BYTE_ORDER_MARK = "\ufeff"


def clean(text: str) -> str:
    """Returns a text with "\\n" line ends and in Unicode's NFC, without NULs and byte order mark.

    Cleaning a cleaned text changes nothing.
    """
    if "\0" in text:
        text = text.replace("\0", "")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    # All of them: two corpora joined may well have written one each.
    text = text.lstrip(_BYTE_ORDER_MARK)
    # No `is_normalized` first: `normalize` begins with the same quick check, and where that is
    # undecided, as in Hindi, the text would be composed twice.
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def problem(text: str, min_chars: int) -> str | None:
    """Returns why a cleaned text is rejected, or None: "empty" (only whitespace) or "too short".

    `min_chars` is the least number of characters that is not too short.
    """
    if not text or text.isspace():
        return "empty"
    return "too short" if len(text) < min_chars else None
