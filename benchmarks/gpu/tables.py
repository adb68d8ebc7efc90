"""Markdown tables of the results, and the page that holds them: no cell is typed by hand."""

import json
import re
from pathlib import Path

from benchmarks.gpu.parts import Bench, Part
from benchmarks.gpu.results import Row, rows_of
from dualpath_cli.errors import UserError
from dualpath_cli.output.atomic import write_text

EMPTY = "not measured yet"


def markdown(part: Part, bench: Bench, rows: dict[str, Row]) -> str:
    """Returns a part's table; rows and columns that were not measured stay empty."""
    names = dict.fromkeys(name for cell in part.cells(bench) for name in cell.rows)
    lines = [[part.title, *(column.heading for column in part.columns)]]
    lines.append(["---", *["---:"] * len(part.columns)])
    lines += [[name, *shown(part, rows.get(name, {}))] for name in names]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def shown(part: Part, row: Row) -> list[str]:
    """The cells of a row; the first one says why there are no others."""
    for reason in ("absent", "failed"):
        if reason in row:
            return [f"{reason}: {row[reason]}".replace("|", "/"), *[""] * (len(part.columns) - 1)]
    if not row:
        return [EMPTY, *[""] * (len(part.columns) - 1)]
    cells = []
    for column in part.columns:
        try:
            cells.append(column.show(row))
        except KeyError:
            cells.append("")
    return cells


def fill(page: Path, folder: Path, parts: list[Part], bench: Bench) -> None:
    """Writes the tables of all parts that `folder` has results of into a page.

    A table stands between ``<!-- gpu PART -->`` and ``<!-- end -->``.

    Raises:
        UserError: if the results are of a rehearsal, or the page has no place for a table.
    """
    text = page.read_text(encoding="utf-8")
    for part in parts:
        path = folder / f"gpu-{part.name}.json"
        if not path.exists():
            continue
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["machine"]["rehearsal"]:
            raise UserError(f"{path} is of a rehearsal, whose numbers mean nothing; give others")
        table = markdown(part, bench, rows_of(content["cells"]))
        text = replaced(text, part, f"{table}\n{measured_on(content)}\n", page)
    write_text(page, text)


def replaced(text: str, part: Part, table: str, page: Path) -> str:
    """The text of a page with another table of a part."""
    place = re.compile(rf"(<!-- gpu {part.name} -->\n).*?(?=<!-- end -->)", re.DOTALL)
    if not place.search(text):
        raise UserError(f"{page} has no '<!-- gpu {part.name} -->' before an '<!-- end -->'")
    return place.sub(lambda found: f"{found[1]}\n{table}\n", text, count=1)


def measured_on(content: dict) -> str:
    """One line on what a part was measured with, and when."""
    machine = content["machine"]
    about = [
        machine["device"],
        f"driver {machine.get('driver')}",
        f"torch {machine['torch']}",
        f"cuDNN {machine.get('cudnn')}",
        f"source {machine['source']}",
        content["written"][:10],
    ]
    return ", ".join(about) + "."
