"""A table on the screen, in Markdown, and in LaTeX with booktabs."""

import re

from rich.table import Table

from dualpath_cli.compare.sheet import Cell, Sheet
from dualpath_cli.study.tables import table_of

_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "α": r"$\alpha$", "µ": r"$\mu$", "×": r"$\times$", "±": r"$\pm$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}  # fmt: skip


def screen(sheet: Sheet) -> Table:
    """As a table of rich; the best of a column has a star."""
    table = table_of(sheet.title, sheet.names, sheet.numbers, sheet.caption)
    for row in sheet.rows:
        table.add_row(*(f"{cell.text} *" if cell.best else cell.text for cell in row))
    return table


def markdown(sheet: Sheet) -> str:
    """As a table of Markdown with its title and caption; the best of a column is bold."""

    def line(cells: list[str]) -> str:
        return f"| {' | '.join(cells)} |"

    return "\n".join([
        f"**{_of_markdown(sheet.title)}**",
        "",
        line([_of_markdown(heading) for heading in sheet.headings]),
        line(["---"] * len(sheet.names) + ["---:"] * len(sheet.numbers)),
        *(line([_markdown_cell(cell) for cell in row]) for row in sheet.rows),
        "",
        _of_markdown(sheet.caption),
        "",
    ])  # fmt: skip


def _markdown_cell(cell: Cell) -> str:
    return f"**{_of_markdown(cell.text)}**" if cell.best else _of_markdown(cell.text)


def _of_markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", text)


def latex(sheet: Sheet) -> str:
    """As a tabular of booktabs; the best of a column is bold."""

    def line(cells: list[str]) -> str:
        return " & ".join(cells) + r" \\"

    return "\n".join([
        f"% {sheet.title}",
        f"% {sheet.caption}",
        rf"\begin{{tabular}}{{{'l' * len(sheet.names)}{'r' * len(sheet.numbers)}}}",
        r"\toprule",
        line([_of_latex(heading) for heading in sheet.headings]),
        r"\midrule",
        *(line([_latex_cell(cell) for cell in row]) for row in sheet.rows),
        r"\bottomrule",
        r"\end{tabular}",
        "",
    ])  # fmt: skip


def _latex_cell(cell: Cell) -> str:
    return rf"\textbf{{{_of_latex(cell.text)}}}" if cell.best else _of_latex(cell.text)


def _of_latex(text: str) -> str:
    """Escaped, and a minus before a number as one."""
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"(?<![\w\\-])-(?=\d)", "$-$", escaped)
