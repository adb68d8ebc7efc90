"""One table, and its writers for Markdown, LaTeX and HTML; `terminal` has the others.

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
    print(markdown(table))

Where rows are objects, `Table.of` takes a function of the object beside each column.

Rows hold values, which a column's format turns into text: nothing for None and nan, and a string as
it is. CSV is written of records with all digits, by `files.csv_text.format_csv`.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from numbers import Real
from typing import Any, NamedTuple, TypeVar

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
    once: bool = False
    """Whether a value that all rows have stands in the caption instead, by `Table.of`."""
    prose: bool = False
    """Whether its words are wrapped even where the output is no terminal."""
    marks_lowest: bool = False
    """Whether the lowest of several numbers is marked: by a star, or in bold."""
    label: str = ""
    """Its name in the note on columns that are left out, where it is not the heading."""
    note: str = ""
    """Its explanation, which begins the caption where the column is shown."""
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


def with_interval(spec: str) -> Callable[[tuple[float, float, float]], str]:
    """Returns a format of a number and both ends of its interval, which may be nan."""

    def text(value: tuple[float, float, float]) -> str:
        number, *ends = value
        known = all(end == end for end in ends)
        return (
            f"{number:{spec}} ({ends[0]:{spec}} to {ends[1]:{spec}})"
            if known
            else f"{number:{spec}}"
        )

    return text


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

    @property
    def starred(self) -> str:
        """The text, with a star where it is marked."""
        return f"{self.text} *" if self.marked else self.text


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
        kept, values, same = [], [], []
        rows = list(items)
        for column, value in columns:
            of_column = [value(item) for item in rows]
            texts = set(map(column.text, of_column))
            if not column.once or len(texts) > 1:
                kept.append(column)
                values.append(of_column)
            elif any(texts):
                same.append(f"{_one_line(column.heading)} {texts.pop()}")
        in_all = f"in all rows: {', '.join(same)}" if same else ""
        caption = "; ".join(filter(None, (caption, in_all)))
        return cls(kept, list(zip(*values, strict=True)), title, caption)

    def cells(self) -> list[list[Cell]]:
        """Returns the rows as text, each as long as the columns, or empty where it divides."""
        by_column = [
            _cells(column, [row[place] if place < len(row) else None for row in self.rows])
            for place, column in enumerate(self.columns)
        ]
        by_row: list[list[Cell]] = [list(cells) for cells in zip(*by_column, strict=True)]
        return [cells if row else [] for row, cells in zip(self.rows, by_row, strict=True)]

    def explanation(self, places: Sequence[int] | None = None) -> str:
        """Returns the caption: notes on the columns at `places` (all), and names of the others."""
        shown = range(len(self.columns)) if places is None else places
        notes = dict.fromkeys(self.columns[place].note for place in shown)
        caption = "; ".join(filter(None, (*notes, self.caption)))
        left_out = ", ".join(
            column.label or _one_line(column.heading)
            for place, column in enumerate(self.columns)
            if place not in shown
        )
        named = f"left out, as there is no room: {left_out}" if left_out else ""
        return "\n".join(filter(None, (caption, named)))


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
    caption = table.explanation()
    lines += ["", escape(caption)] if caption else []
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
        *(f"% {_one_line(comment)}" for comment in (table.title, table.explanation()) if comment),
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
<p>{escape(table.explanation())}</p>
</section>"""


def _one_line(text: str) -> str:
    return " ".join(text.split("\n")).strip()
