"""One table, and its forms on a terminal, in a log and in Markdown.

    columns = [Column("configuration"), Column("loss", ".4f", marks_lowest=True), Column("n", ",")]
    rows = [("wide", 2.25, 719_000_000), ("dual", 2.125, None)]
    show(plain_console(), Table(columns, rows, title="two models", caption="loss in nats"))

`page.tables` writes HTML. CSV files hold records with all digits
(`files.format_csv`), not the texts of a table.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType

T = TypeVar("T")
Format = str | Callable[[Any], str]

FOLDED = 24
"""Least characters of a column of folded words; narrower terminals print a table in parts."""
LOG_WIDTH = 100  # characters in a line of a caption if the output is no terminal


@dataclass(frozen=True)
class Column:
    """A heading, and the format of the values below."""

    heading: str
    """On the terminal `\\n` begins another line."""
    format: Format | None = None
    """A format such as `+.4f`, or a function of the value. A column without a format holds words
    and is aligned left, others are aligned right; `""` is for numbers that are text already."""
    marks_lowest: bool = False
    """Whether the lowest of several numbers is marked, by a star or in bold."""
    style: Callable[[Any], str] | None = None
    """The style of a value on the terminal, in rich's words, such as `#1F2A44 on #4C8CB8`."""

    @property
    def line(self) -> str:
        return " ".join(self.heading.split("\n")).strip()

    def text(self, value: Any) -> str:
        """A value as text; empty for None, nan, and tuples that begin with None or nan."""
        first = value[0] if isinstance(value, tuple) else value
        if first is None or first != first:
            return ""
        if isinstance(value, str):
            return value
        return self.format(value) if callable(self.format) else format(value, self.format or "")


Columns = list[tuple[Column, Callable[[T], Any]]]
"""Columns, each with a function from a row's object to the value, for `Table.of`."""


def interval(spec: str) -> Callable[[tuple[float, float]], str]:
    """A format of both ends of an interval, each in a format such as `.3f`."""
    return lambda ends: f"{ends[0]:{spec}} to {ends[1]:{spec}}"


def with_interval(spec: str) -> Callable[[tuple[float, float, float]], str]:
    """A format of a number and both ends of its interval, which may be nan."""

    def text(value: tuple[float, float, float]) -> str:
        number, *ends = value
        known = all(end == end for end in ends)
        return f"{number:{spec}}" + (f" ({interval(spec)(value[1:])})" if known else "")

    return text


def with_error(spec: str) -> Callable[[tuple[float, float | None]], str]:
    """A format of a number and its standard error, which may be None or nan."""

    def text(value: tuple[float, float | None]) -> str:
        number, error = value
        known = error is not None and error == error
        return f"{number:{spec}}" + (f" ± {error:{spec}}" if known else "")

    return text


class Entry(NamedTuple):
    value: Any
    text: str
    lowest: bool  # whether the value is the lowest, in a column that marks it

    @property
    def number(self) -> float | None:
        """The value, or the first value of a tuple; None for words and nan."""
        first = self.value[0] if isinstance(self.value, tuple) else self.value
        return float(first) if isinstance(first, Real) and first == first else None

    @property
    def starred(self) -> str:
        return f"{self.text} *" if self.lowest else self.text


@dataclass(frozen=True)
class Table:
    """Columns, and rows with a value for each of them.

    A shorter row ends in empty cells, values beyond the last column are not shown; an empty row
    draws a line between its neighbours.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    caption: str = ""
    names: int = 1  # first columns, which name a row; they begin every part of a table

    @classmethod
    def of(
        cls, items: Iterable[T], columns: Columns[T], title: str = "", caption: str = "",
        names: int = 1,
    ) -> "Table":  # fmt: skip
        """A table with a row for each item; each column has a function for its value."""
        rows = [[value(item) for _, value in columns] for item in items]
        return cls([column for column, _ in columns], rows, title, caption, names)

    def cells(self) -> list[list[Entry]]:
        """The rows, each as long as the columns, or empty for a line."""
        found = []
        for row in self.rows:
            values = [*row, *[None] * len(self.columns)]
            pairs = zip(self.columns, values, strict=False)
            found.append([Entry(v, column.text(v), False) for column, v in pairs] if row else [])
        for place, column in enumerate(self.columns):
            numbers = {n: row[place].number for n, row in enumerate(found) if row}
            known = {n: number for n, number in numbers.items() if number is not None}
            if column.marks_lowest and len(known) > 1:
                lowest = found[min(known, key=lambda n: known[n])]
                lowest[place] = lowest[place]._replace(lowest=True)
        return found


def show(console: "Console", table: Table, *, box: bool = True) -> None:
    """Prints a table; `box` draws lines around the cells."""
    if console.is_terminal:
        console.print(drawn(table, console.width, box=box), highlight=False)
        return
    with console.capture() as captured:
        console.print(drawn(table, None, box=box), highlight=False)
    for line in captured.get().splitlines():
        console.out(line.rstrip(), highlight=False)


def drawn(table: Table, room: int | None, *, box: bool = True) -> "Group":
    """A table drawn by rich for a terminal of `room` columns; None: not a terminal.

    On a narrow terminal words are folded, and then columns are printed in several parts, each
    with the names of the rows. Without a terminal each row is one line.
    """
    from rich import box as boxes
    from rich.cells import cell_len
    from rich.console import Group
    from rich.table import Table as Drawing
    from rich.text import Text

    beside, around = (3, 1) if box else (2, -2)
    columns, cells = table.columns, table.cells()
    least = []  # characters of each column, where words are folded
    for place, column in enumerate(columns):
        texts = [*column.heading.split("\n"), *(row[place].starred for row in cells if row)]
        width = max(map(cell_len, texts))
        if column.format is None:
            longest = max(map(cell_len, " ".join(texts).split()), default=0)
            width = max(min(width, FOLDED), longest)
        least.append(width)
    found: list[RenderableType] = [Text(table.title, "bold")] if table.title else []
    for places in _parts([width + beside for width in least], room and room - around, table.names):
        drawing = Drawing(
            box=boxes.HEAVY_HEAD if box else None, pad_edge=box,
            show_header=any(column.heading for column in columns),
        )  # fmt: skip
        # Where even one column is too wide beside the names, rich folds numbers, too.
        fits = room is None or sum(least[place] + beside for place in places) + around <= room
        for place in places:
            words = columns[place].format is None
            drawing.add_column(
                columns[place].heading, justify="left" if words else "right", overflow="fold",
                min_width=least[place] if fits else None, no_wrap=fits and not words,
            )  # fmt: skip
        for row in cells:
            styles = [c.style(cell.value) if c.style else ""
                      for c, cell in zip(columns, row, strict=False)]  # fmt: skip
            if row:
                drawing.add_row(*(Text(row[place].starred, styles[place]) for place in places))
            else:
                drawing.add_section()
        found.append(drawing)
    if table.caption:
        found.append(Text(fill(table.caption, room or LOG_WIDTH), "dim"))
    return Group(*found)


def _parts(widths: Sequence[int], room: int | None, names: int) -> list[list[int]]:
    """Places of the columns that fit beside the names, part by part."""
    parts = [list(range(names))]
    for place in range(names, len(widths)):
        taken = sum(widths[other] for other in (*parts[-1], place))
        if room is not None and taken > room and len(parts[-1]) > names:
            parts.append(list(range(names)))
        parts[-1].append(place)
    return parts


def markdown(table: Table, escape: Callable[[str], str] | None = None) -> str:
    """A table of Markdown between title and caption, the lowest number bold, texts escaped."""
    escape = escape or (lambda text: re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", text))

    def line(texts: Iterable[str]) -> str:
        return f"| {' | '.join(texts)} |"

    def text(cell: Entry) -> str:
        return f"**{escape(cell.text)}**" if cell.lowest else escape(cell.text)

    rules = ("---" if column.format is None else "---:" for column in table.columns)
    lines = [f"**{escape(table.title)}**", ""] if table.title else []
    lines += [line(escape(column.line) for column in table.columns), line(rules)]
    lines += [line(map(text, row)) for row in table.cells() if row]
    lines += ["", escape(table.caption)] if table.caption else []
    return "\n".join([*lines, ""])
