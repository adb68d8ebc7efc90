"""Tables on a terminal, which they fit, and as plain text.

Words are wrapped, in a drawn table to two lines (prose to more), and where that is not enough, the
least important columns are left out and named below it. Files and pipes get every column.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING

from dualpath_cli.output.table import Table

if TYPE_CHECKING:
    import rich.table
    from rich.console import Console, JustifyMethod

LOG_WIDTH = 100
"""Characters a line that prose is wrapped to where the output is no terminal."""


EMPTY = -1
"""Importance of a column without a value: it is left out before all others."""


@dataclass(frozen=True)
class Frame:
    """Numbers of characters in a line that belong to no cell."""

    beside: int
    """A column."""
    around: int
    """A line; negative where the last column needs no space after it."""


def show(console: "Console", table: Table, *, box: bool = True) -> None:
    """Prints a table that fits a terminal; elsewhere it is as wide as its columns.

    `box` draws lines around the cells.
    """
    from dualpath_cli.output.console import plain_console

    if console.is_terminal:
        console.print(drawn(table, console.width, box=box))
        return
    text = drawn(table, None, box=box)
    room = sum(column.width or 0 for column in text.columns) + 3 * len(text.columns) + 1
    log = plain_console(
        file=console.file, width=max(room, LOG_WIDTH), quiet=console.quiet,
        color_system=console.color_system,
    )  # fmt: skip
    log.print(text)


def drawn(table: Table, width: int | None, *, box: bool = True) -> "rich.table.Table":
    """Returns a table as rich draws it, at most `width` characters wide.

    With None no column is left out, and prose alone is wrapped.
    """
    from rich import box as boxes
    from rich.cells import cell_len
    from rich.table import Table as RichTable
    from rich.text import Text

    columns, cells = table.columns, table.cells()
    natural, least = [], []
    for place, column in enumerate(columns):
        texts = [row[place].starred for row in cells if row]
        words = [word for text in texts for word in text.split()]
        natural.append(_widest([*column.heading.split("\n"), *texts], cell_len))
        # A heading is broken at every space, as words are; a number is not.
        broken = [*column.heading.split(), *(words if column.format is None else texts)]
        may_break = width is not None or column.prose
        narrowest = _widest(broken, cell_len) if may_break else natural[-1]
        if column.format is None and not column.prose:
            fitting = (w for w in range(narrowest, natural[-1]) if _fit_two_lines(texts, w))
            narrowest = next(fitting, natural[-1])
        least.append(narrowest)
    frame = Frame(3, 1) if box else Frame(2, 0)
    places, widths = _fitted(table, natural, least, width, frame)
    text = RichTable(
        title=table.title or None, title_justify="left",
        caption=table.explanation(places) or None, caption_justify="left",
        box=boxes.HEAVY_HEAD if box else None, show_header=any(c.heading for c in columns),
    )  # fmt: skip
    for place in places:
        side: JustifyMethod = "left" if columns[place].format is None else "right"
        text.add_column(columns[place].heading, justify=side, width=widths[place], overflow="fold")
    for row in cells:
        if row:
            text.add_row(*(Text(row[place].starred, row[place].style) for place in places))
        else:
            text.add_section()
    return text


def aligned(table: Table, width: int | None = None) -> list[str]:
    """Returns the lines of a table without title: columns two spaces apart, the caption below.

    With a `width` words are wrapped, and columns left out until the others fit. Does not draw with
    rich, which is slow to import.
    """
    columns, cells = table.columns, table.cells()
    places, widths = _room(table, width)
    headings_of = zip_longest(*(columns[n].heading.split("\n") for n in places), fillvalue="")
    lines = [list(heading) for heading in headings_of if any(heading)]
    for row in cells:
        texts_of = [
            _wrapped(row[place].starred, widths[place])
            if columns[place].format is None
            else [row[place].starred]
            for place in places
            if row
        ]
        lines.extend(list(line) for line in zip_longest(*texts_of, fillvalue=""))
        if not row:
            lines.append([])
    found = []
    for line in lines:
        padded = [
            text.ljust(widths[place])
            if columns[place].format is None
            else text.rjust(widths[place])
            for text, place in zip(line, places, strict=False)
        ]
        found.append("  ".join(padded).rstrip())
    caption = table.explanation(places).splitlines()
    return found + [part for line in caption for part in (wrap(line, width) if width else [line])]


def fits(table: Table, width: int | None) -> bool:
    """Whether `aligned` leaves no column out."""
    return len(_room(table, width)[0]) == len(table.columns)


def _room(table: Table, width: int | None) -> tuple[list[int], list[int]]:
    """The places of the columns that are not left out, and the widths of all."""
    natural, least, cells = [], [], table.cells()
    for place, column in enumerate(table.columns):
        headings, texts = column.heading.split("\n"), [row[place].starred for row in cells if row]
        natural.append(_widest([*headings, *texts], len))
        broken = [line for text in texts for line in _wrapped(text, 1)]
        may_break = width is not None and column.format is None
        least.append(_widest([*headings, *broken], len) if may_break else natural[-1])
    return _fitted(table, natural, least, width, Frame(2, -2))


def _wrapped(text: str, width: int) -> list[str]:
    """The lines of a text; those after the first are indented further than it is."""
    if len(text) <= width:
        return [text]
    indent = " " * (len(text) - len(text.lstrip()) + 4)
    return wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _fit_two_lines(texts: Iterable[str], width: int) -> bool:
    """Whether each text takes two lines at most: more would hide which row is which."""
    return all(
        len(wrap(text, width, break_long_words=False, break_on_hyphens=False)) <= 2
        for text in texts
    )


def _widest(texts: Iterable[str], length: Callable[[str], int]) -> int:
    return max(map(length, texts), default=0)


def _fitted(
    table: Table, natural: Sequence[int], least: Sequence[int], width: int | None, frame: Frame
) -> tuple[list[int], list[int]]:
    rows = [row for row in table.cells() if row]
    importance = [
        column.importance if any(row[place].text for row in rows) else EMPTY
        for place, column in enumerate(table.columns)
    ]
    room = LOG_WIDTH if width is None else width
    return fit(natural, least, importance, room, frame, may_drop=width is not None)


def fit(
    natural: Sequence[int],
    least: Sequence[int],
    importance: Sequence[int],
    width: int,
    frame: Frame,
    *,
    may_drop: bool,
) -> tuple[list[int], list[int]]:
    """Returns the places of the columns that are kept, and the widths of all columns.

    `natural` and `least` are each column's width with its texts whole and broken into lines. The
    columns of the least importance are dropped first, of equal ones the last; the first column
    stays. Then the widest columns are narrowed, until the table is at most `width` wide or none can
    be narrower.
    """
    places = list(range(len(natural)))

    def over(widths: Sequence[int]) -> int:
        return sum(widths[place] + frame.beside for place in places) + frame.around - width

    while may_drop and over(least) > 0 and len(places) > 1:
        places.remove(min(places[1:], key=lambda place: (importance[place], -place)))
    widths = list(natural)
    while over(widths) > 0:
        wide = [place for place in places if widths[place] > least[place]]
        if not wide:
            break
        widths[max(wide, key=lambda place: widths[place])] -= 1
    return places, widths
