"""Words in the plainest way."""

import re


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
