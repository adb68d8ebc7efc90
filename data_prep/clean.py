"""Cleaning: the same text written in different ways becomes the same; what is no text is named."""

import unicodedata


def clean(text: str) -> str:
    """Returns a text with "\\n" line ends and in Unicode's NFC, without NULs and byte order mark.

    Cleaning a cleaned text changes nothing.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text:
        text = text.replace("\0", "")
    # A quick check: composing costs as much as tokenising a tenth of the text.
    if not text.isascii() and not unicodedata.is_normalized("NFC", text):
        text = unicodedata.normalize("NFC", text)
    return text.lstrip("\ufeff")


def problem(text: str, min_chars: int) -> str | None:
    """Returns why a cleaned text is left out: "empty", "too short", or None."""
    if not text or text.isspace():
        return "empty"
    return "too short" if len(text) < min_chars else None
