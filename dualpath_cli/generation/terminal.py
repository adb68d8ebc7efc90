"""Texts on the terminal: the prompt dim, what was written plain."""

import unicodedata

from rich.console import Console
from rich.filesize import decimal

from dualpath_cli.generation.texts import Text, Took


def show(console: Console, text: str, dim: bool = False) -> None:
    """Prints a part of a text as it is, without a new line.

    On a terminal, which control characters would steer, their escapes are shown.
    """
    shown = "".join(map(_visible, text)) if console.is_terminal else text
    console.out(shown, end="", style="dim" if dim else None, highlight=False)


def show_whole(console: Console, text: Text, prompt: str) -> None:
    """Prints a text that has ended, after a line that says which one it is."""
    title = f"prompt {text.prompt}, sample {text.sample}: {text.new_tokens:,} tokens, {text.end}"
    console.print(title, style="bold", highlight=False, soft_wrap=True)
    show(console, prompt, dim=True)
    show(console, f"{text.text}\n")


def summary(took: Took) -> str:
    """The last line: how many tokens, how fast, how soon, and what was kept."""
    parts = [f"{took.tokens:,} new tokens"]
    if took.later_tokens:
        speed = took.later_tokens / took.later_seconds
        parts.append(f"{speed:,.1f} tokens/s without the prompt")
    if batches := len(took.first_seconds):
        mean = f" (mean of {batches:,} batches)" if batches > 1 else ""
        parts.append(f"first token after {sum(took.first_seconds) / batches:.2f} s{mean}")
    if took.drafts.ids:
        share = took.drafts.accepted / took.drafts.ids
        parts.append(f"{share:.0%} of {took.drafts.ids:,} drafted tokens accepted")
    return ", ".join([*parts, f"cache {decimal(took.cache_bytes)}"])


def _visible(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) != "Cc":
        return character
    return repr(character)[1:-1]
