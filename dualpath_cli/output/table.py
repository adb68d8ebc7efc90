"""One table, and its writers for the terminal, plain text, Markdown, LaTeX and HTML.

    table = Table(
        [
            Column("configuration"),
            Column("loss", ".4f", importance=3, marks_lowest=True),
            Column("95 % interval", interval(".3f")),
            Column("parameters", ",", importance=2),
        ],
        [("wide", 2.25, (2.24, 2.26), 719_000_000), ("dual", 2.125, None, 602_100_000)],
        title="two models",
        caption="loss in nats",
    )
    show(console, table)

Where rows are objects, `Table.of` takes a function of the object beside each column.

Rows hold values, which a column's format turns into text: nothing for None and nan, and a string as
it is. The terminal's writer fits the width of the terminal: words and headings go over several
lines, and where that is not enough, the least important columns are left out and named below.
Files and pipes get every column.

CSV is written of records with all digits, by `files.csv_text.format_csv`.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    import rich.table
    from rich.console import Console, JustifyMethod

LOG_WIDTH = 160
"""Columns of characters that prose is wrapped to where the output is no terminal."""

T = TypeVar("T")
Format = str | Callable[[Any], str]


@dataclass(frozen=True)
class Column:
    """A column: what stands above it, how its values become text, what happens if room is short."""

    heading: str
    """`\\n` begins another line, on the terminal and in plain text."""
    format: Format | None = None
    """A format such as `+.4f`, or a function of the value. A column without one holds words and is
    aligned left, all others are aligned right; `""` is for numbers that are text already."""
    importance: int = 1
    """The columns of the least importance are left out first, of equal ones the last; the first
    column stays."""
    prose: bool = False
    """Whether its words are wrapped even where the output is no terminal."""
    marks_lowest: bool = False
    """Whether the lowest of several numbers is marked: by a star, or in bold."""
    label: str = ""
    """Its name in the note on columns that are left out, where it is not the heading."""
    style: Callable[[Any], str] | None = None
    """The style of a value on the terminal, in rich's words, such as `#1F2A44 on #4C8CB8`."""

    def text(self, value: Any) -> str:
        """Returns a value as text; nothing for None, nan, and a tuple that begins with either."""
        first = value[0] if isinstance(value, tuple) else value
        if first is None or first != first:
            return ""
        if isinstance(value, str):
            return value
        return self.format(value) if callable(self.format) else format(value, self.format or "")


Columns = list[tuple[Column, Callable[[T], Any]]]
"""Columns with what each shows of a row's object, as `Table.of` takes them."""


def interval(spec: str) -> Callable[[tuple[float, float]], str]:
    """Returns a format of both ends of an interval, each in a format such as `.3f`."""
    return lambda ends: f"{ends[0]:{spec}} to {ends[1]:{spec}}"


def with_error(spec: str) -> Callable[[tuple[float, float | None]], str]:
    """Returns a format of a number and its standard error, which may be None or nan."""

    def text(value: tuple[float, float | None]) -> str:
        number, error = value
        known = error is not None and error == error
        return f"{number:{spec}} ± {error:{spec}}" if known else f"{number:{spec}}"

    return text


class Cell(NamedTuple):
    """A value of a table as text, and what writers say beside it."""

    text: str
    order: float | None
    """The number that rows are sorted by, of a tuple its first one; None for words."""
    marked: bool
    """Whether it is the lowest of a column that marks it."""
    style: str


@dataclass(frozen=True)
class Table:
    """Columns, and rows with a value for each of them.

    A shorter row ends in empty cells, what is beyond the last column is not shown; a row without
    values divides the rows before from those after.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    caption: str = ""

    @classmethod
    def of(
        cls,
        items: Iterable[T],
        columns: Columns[T],
        title: str = "",
        caption: str = "",
    ) -> "Table":
        """Returns a table with a row an item; each column has a function that gives its value."""
        rows = [[value(item) for _, value in columns] for item in items]
        return cls([column for column, _ in columns], rows, title, caption)

    def cells(self) -> list[list[Cell]]:
        """Returns the rows as text, each as long as the columns, or empty where it divides."""
        by_column = [
            _cells(column, [row[place] if place < len(row) else None for row in self.rows])
            for place, column in enumerate(self.columns)
        ]
        by_row: list[list[Cell]] = [list(cells) for cells in zip(*by_column, strict=True)]
        return [cells if row else [] for row, cells in zip(self.rows, by_row, strict=True)]


def _cells(column: Column, values: Sequence[Any]) -> list[Cell]:
    orders = [_order(value) for value in values]
    numbers = [order for order in orders if order is not None]
    lowest = orders.index(min(numbers)) if column.marks_lowest and len(numbers) > 1 else None
    return [
        Cell(
            column.text(value), order, place == lowest, column.style(value) if column.style else ""
        )
        for place, (value, order) in enumerate(zip(values, orders, strict=True))
    ]


def _order(value: Any) -> float | None:
    number = value[0] if isinstance(value, tuple) else value
    return float(number) if isinstance(number, Real) and number == number else None


# Terminal and plain text


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
        whole, broken = _lines(column, place, cells)
        natural.append(max(map(cell_len, whole), default=0))
        may_break = width is not None or column.prose
        least.append(max(map(cell_len, broken), default=0) if may_break else natural[-1])
    places, widths, caption = _fitted(
        table, natural, least, width, 3 if box else 2, 1 if box else 0
    )
    text = RichTable(
        title=table.title or None, title_justify="left",
        caption=caption or None, caption_justify="left",
        box=boxes.HEAVY_HEAD if box else None, show_header=any(c.heading for c in columns),
    )  # fmt: skip
    for place in places:
        side: JustifyMethod = "left" if columns[place].format is None else "right"
        text.add_column(columns[place].heading, justify=side, width=widths[place], overflow="fold")
    for row in cells:
        if row:
            text.add_row(*(Text(_starred(row[place]), row[place].style) for place in places))
        else:
            text.add_section()
    return text


def aligned(table: Table, width: int | None = None) -> list[str]:
    """Returns the lines of a table without title: columns two spaces apart, the caption below.

    With a `width` columns are left out until the others fit. Does not draw with rich, which is
    slow to import.
    """
    columns, cells = table.columns, table.cells()
    natural = [
        max(map(len, _lines(column, place, cells)[0]), default=0)
        for place, column in enumerate(columns)
    ]
    places, widths, caption = _fitted(table, natural, natural, width, 2, -2)
    headings = zip_longest(*(columns[place].heading.split("\n") for place in places), fillvalue="")
    lines = [list(heading) for heading in headings if any(heading)]
    lines += [[_starred(row[place]) for place in places] if row else [] for row in cells]
    texts = []
    for line in lines:
        padded = [
            text.ljust(widths[place])
            if columns[place].format is None
            else text.rjust(widths[place])
            for text, place in zip(line, places, strict=False)
        ]
        texts.append("  ".join(padded).rstrip())
    return [*texts, *caption.splitlines()]


def _starred(cell: Cell) -> str:
    return f"{cell.text} *" if cell.marked else cell.text


def _lines(
    column: Column, place: int, cells: Sequence[Sequence[Cell]]
) -> tuple[list[str], list[str]]:
    """The lines of a column as it is, and broken at every space, though not within a number."""
    texts = [_starred(row[place]) for row in cells if row]
    heading = column.heading
    words = [word for text in texts for word in text.split()] if column.format is None else texts
    return [*heading.split("\n"), *texts], [*heading.split(), *words]


def _fitted(
    table: Table,
    natural: Sequence[int],
    least: Sequence[int],
    width: int | None,
    beside: int,
    around: int,
) -> tuple[list[int], list[int], str]:
    """Returns the places of the columns that have room, the widths of all, and the caption.

    `natural` and `least` are the widths of each column as it is and broken into lines; there are
    `beside` more characters a column, and `around` more in all.
    """
    places = list(range(len(table.columns)))

    def over(widths: Sequence[int]) -> int:
        room = LOG_WIDTH if width is None else width
        return sum(widths[place] + beside for place in places) + around - room

    while width is not None and over(least) > 0 and len(places) > 1:
        places.remove(min(places[1:], key=lambda n: (table.columns[n].importance, -n)))
    widths = list(natural)
    while over(widths) > 0:
        shrinking = [place for place in places if widths[place] > least[place]]
        if not shrinking:
            break
        widths[max(shrinking, key=lambda place: widths[place])] -= 1
    left_out = [
        c.label or _one_line(c.heading) for n, c in enumerate(table.columns) if n not in places
    ]
    note = f"left out, as there is no room: {', '.join(left_out)}" if left_out else ""
    return places, widths, "\n".join(filter(None, (table.caption, note)))


# Files


def markdown(table: Table, escape: Callable[[str], str] | None = None) -> str:
    """Returns a table of Markdown between its title and caption; the lowest number is bold.

    `escape` makes text of what Markdown would read as a mark; by default a backslash does.
    """
    escape = escape or _of_markdown

    def line(texts: Iterable[str]) -> str:
        return f"| {' | '.join(texts)} |"

    def text(cell: Cell) -> str:
        return f"**{escape(cell.text)}**" if cell.marked else escape(cell.text)

    rules = ("---" if column.format is None else "---:" for column in table.columns)
    lines = [f"**{escape(table.title)}**", ""] if table.title else []
    lines += [line(escape(_one_line(column.heading)) for column in table.columns), line(rules)]
    lines += [line(map(text, row)) for row in table.cells() if row]
    lines += ["", escape(table.caption)] if table.caption else []
    return "\n".join([*lines, ""])


def _of_markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", text)


_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "α": r"$\alpha$", "µ": r"$\mu$", "×": r"$\times$", "±": r"$\pm$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}  # fmt: skip


def latex(table: Table) -> str:
    """Returns a tabular of booktabs below its title and caption; the lowest number is bold."""

    def line(texts: Iterable[str]) -> str:
        return " & ".join(texts) + r" \\"

    def text(cell: Cell) -> str:
        return rf"\textbf{{{_of_latex(cell.text)}}}" if cell.marked else _of_latex(cell.text)

    sides = "".join("l" if column.format is None else "r" for column in table.columns)
    return "\n".join([
        *(f"% {_one_line(comment)}" for comment in (table.title, table.caption) if comment),
        rf"\begin{{tabular}}{{{sides}}}",
        r"\toprule",
        line(_of_latex(_one_line(column.heading)) for column in table.columns),
        r"\midrule",
        *(line(map(text, row)) if row else r"\midrule" for row in table.cells()),
        r"\bottomrule",
        r"\end{tabular}",
        "",
    ])  # fmt: skip


def _of_latex(text: str) -> str:
    """Escaped, and a minus before a number as one."""
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"(?<![\w\\-])-(?=\d)", "$-$", escaped)


def html(table: Table) -> str:
    """Returns a section of a page: a heading, the table, its caption.

    A heading holds a button; a cell its number as `data-order`, to sort by.
    """
    sides = ["" if column.format is None else ' class="number"' for column in table.columns]
    heads = "".join(
        f'<th scope="col"{side}><button>{escape(_one_line(column.heading))}</button></th>'
        for column, side in zip(table.columns, sides, strict=True)
    )

    def text(cell: Cell, side: str) -> str:
        order = "" if cell.order is None else f' data-order="{cell.order!r}"'
        words = f"<strong>{escape(cell.text)}</strong>" if cell.marked else escape(cell.text)
        return f"<td{side}{order}>{words}</td>"

    rows = "\n".join(f"<tr>{''.join(map(text, row, sides))}</tr>" for row in table.cells() if row)
    return f"""<section>
<h2>{escape(table.title)}</h2>
<div class="scroll" tabindex="0"><table>
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody>
</table></div>
<p>{escape(table.caption)}</p>
</section>"""


def _one_line(text: str) -> str:
    return " ".join(text.split("\n")).strip()
