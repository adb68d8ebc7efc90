"""One table, and its forms on a terminal, in a log and in Markdown.

    loss = Column("loss", ".4f", marks_lowest=True)
    columns = [Column("configuration"), loss, Column("n", ",")]
    rows = [("wide", 2.25, 719_000_000), ("dual", 2.125, None)]
    table = Table(columns, rows, title="two models", caption="loss in nats")
    show(plain_console(), table)

`page.tables` writes HTML. CSV files hold records with all digits (`format_csv`),
not the texts of a table.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dualpath_cli.base.output import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Drawing

T = TypeVar("T")
ValueFormat = str | Callable[[Any], str]

LOG_WIDTH = 100  # characters in a line of a caption if the output is not a terminal
WIDEST = 10_000  # characters of the widest table


@dataclass(frozen=True)
class Column:
    """A heading, and the format of the values below."""

    heading: str
    """On the terminal `\\n` begins another line."""
    format: ValueFormat | None = None
    """A format such as `+.4f`, or a function of the value. A column without a format
    holds words and is aligned left, others are aligned right; `""` is for numbers that
    are text already."""
    marks_lowest: bool = False
    """Whether the lowest of several numbers is marked, by a star or in bold."""

    @property
    def line(self) -> str:
        return self.heading.replace("\n", " ")

    def text(self, value: Any) -> str:
        """A value as text; empty for None, nan, and tuples that begin with None or
        nan."""
        first = value[0] if isinstance(value, tuple) else value
        if first is None or first != first:
            return ""

        if isinstance(value, str):
            return value
        if callable(self.format):
            return self.format(value)
        return format(value, self.format or "")


Columns = list[tuple[Column, Callable[[T], Any]]]
"""Columns, each with a function from a row's object to the value, for `Table.of`."""


def interval(spec: str) -> Callable[[tuple[float, float]], str]:
    """A format of both ends of an interval, each in a format such as `.3f`."""

    def text(ends: tuple[float, float]) -> str:
        low, high = ends
        return f"{low:{spec}} to {high:{spec}}"

    return text


def with_interval(spec: str) -> Callable[[tuple[float, float, float]], str]:
    """A format of a number and both ends of its interval, which may be nan."""

    def text(value: tuple[float, float, float]) -> str:
        number, low, high = value
        if low != low or high != high:
            return f"{number:{spec}}"
        return f"{number:{spec}} ({interval(spec)((low, high))})"

    return text


def with_error(spec: str) -> Callable[[tuple[float, float | None]], str]:
    """A format of a number and its standard error, which may be None or nan."""

    def text(value: tuple[float, float | None]) -> str:
        number, error = value
        if error is None or error != error:
            return f"{number:{spec}}"
        return f"{number:{spec}} ± {error:{spec}}"

    return text


class Entry(NamedTuple):
    value: Any
    text: str
    lowest: bool  # whether the value is the lowest, in a column that marks it

    @property
    def number(self) -> float | None:
        """The value, or the first value of a tuple; None for words and nan."""
        first = self.value[0] if isinstance(self.value, tuple) else self.value
        is_number = isinstance(first, Real) and first == first
        return float(first) if is_number else None

    @property
    def starred(self) -> str:
        return f"{self.text} *" if self.lowest else self.text


@dataclass(frozen=True)
class Table:
    """Columns, and rows with a value for each of them.

    A shorter row ends in empty cells, values beyond the last column are not shown; an
    empty row draws a line between its neighbours.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    caption: str = ""

    @classmethod
    def of(
        cls, items: Iterable[T], columns: Columns[T], title: str = "", caption: str = ""
    ) -> "Table":
        """A table with a row for each item; each column has a function for its
        value."""
        rows = [[value(item) for _, value in columns] for item in items]
        return cls([column for column, _ in columns], rows, title, caption)

    def cells(self) -> list[list[Entry]]:
        """The rows, each as long as the columns, or empty for a line."""
        rows = [self._entries(row) if row else [] for row in self.rows]
        for place, column in enumerate(self.columns):
            if column.marks_lowest:
                _mark_lowest([row for row in rows if row], place)
        return rows

    def _entries(self, row: Sequence[Any]) -> list[Entry]:
        missing = [None] * len(self.columns)
        values = zip(self.columns, [*row, *missing], strict=False)
        return [Entry(value, column.text(value), False) for column, value in values]


def _mark_lowest(rows: Sequence[list[Entry]], place: int) -> None:
    """Marks the first of the lowest numbers of a column, if it has several numbers."""
    numbers = {}
    for n, row in enumerate(rows):
        number = row[place].number
        if number is not None:
            numbers[n] = number

    if len(numbers) > 1:
        lowest = rows[min(numbers, key=lambda n: numbers[n])]
        lowest[place] = lowest[place]._replace(lowest=True)


def show(console: "Console", table: Table, *, box: bool = True) -> None:
    """Prints a table between title and caption; `box` draws lines around the cells.

    A terminal folds words. Numbers are never folded: a table that they make wider than
    the terminal runs over its edge.
    """
    from rich.console import Group
    from rich.measure import Measurement
    from rich.text import Text

    # Before the widths are measured: the console itself would cut the escapes of a
    # narrow cell.
    drawing = _drawing(table, box, printable if console.is_terminal else str)
    unlimited = console.options.update(width=WIDEST)
    least = Measurement.get(console, unlimited, drawing).minimum
    if least > console.width:
        drawing.width = least

    width = console.width if console.is_terminal else LOG_WIDTH
    title = [Text(table.title, "bold")] if table.title else []
    caption = [Text(fill(table.caption, width), "dim")] if table.caption else []
    parts = Group(*title, drawing, *caption)
    if console.is_terminal:
        console.print(parts, crop=False)
        return

    # In a file no line ends in blanks.
    with console.capture() as captured:
        console.print(parts)
    for line in captured.get().splitlines():
        console.out(line.rstrip())


def _drawing(table: Table, box: bool, safe: Callable[[str], str]) -> "Drawing":
    """A table as rich draws it; texts are made `safe` for a terminal."""
    from rich import box as boxes
    from rich.cells import cell_len
    from rich.table import Table as Drawing
    from rich.text import Text

    drawing = Drawing(
        box=boxes.HEAVY_HEAD if box else None,
        pad_edge=box,
        show_header=any(column.heading for column in table.columns),
    )

    rows = table.cells()
    for place, column in enumerate(table.columns):
        cells = [safe(row[place].starred) for row in rows if row]
        texts = [*safe(column.heading).split("\n"), *cells]
        words = column.format is None
        unbroken = " ".join(texts).split() if words else texts
        drawing.add_column(
            safe(column.heading),
            justify="left" if words else "right",
            overflow="fold",
            min_width=max(map(cell_len, unbroken), default=0),
            no_wrap=not words,
        )
    for row in rows:
        if row:
            drawing.add_row(*(Text(safe(cell.starred)) for cell in row))
        else:
            drawing.add_section()
    return drawing


def markdown(table: Table, escape: Callable[[str], str] | None = None) -> str:
    """A table of Markdown between title and caption, the lowest number bold, texts
    escaped."""
    escape = escape or _escape_markdown

    def line(texts: Iterable[str]) -> str:
        return f"| {' | '.join(texts)} |"

    def text(cell: Entry) -> str:
        return f"**{escape(cell.text)}**" if cell.lowest else escape(cell.text)

    lines = []
    if table.title:
        lines += [f"**{escape(table.title)}**", ""]

    lines.append(line(escape(column.line) for column in table.columns))
    # A colon aligns a column right.
    lines.append(
        line("---" if column.format is None else "---:" for column in table.columns)
    )
    lines += [line(map(text, row)) for row in table.cells() if row]

    if table.caption:
        lines += ["", escape(table.caption)]
    return "\n".join([*lines, ""])


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", text)


def format_csv(
    records: Sequence[Mapping[str, Any]],
    columns: Sequence[str] | None = None,
    header: bool = True,
) -> str:
    """Returns records as CSV text, None as nothing.

    `columns` are by default the keys of the first record; the text is empty without
    any. Other keys are left out, and missing ones stay empty.
    """
    if columns is None and not records:
        return ""
    names = list(records[0]) if columns is None else columns
    text = io.StringIO()
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def without_nan(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a record with None for nan: null in JSON, empty in CSV."""
    return {key: None if value != value else value for key, value in record.items()}
