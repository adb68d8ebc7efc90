"""The console that everything is printed on: texts are shown as they are.

A name such as `[red]` or `:smile:` is a name, not a style and not a picture.
"""

from typing import Any

from rich.console import Console


def plain_console(**options: Any) -> Console:
    """Returns rich's console without markup, in tables and titles as well."""
    return Console(markup=False, emoji=False, **options)
