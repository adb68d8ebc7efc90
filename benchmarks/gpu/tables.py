"""Markdown tables of the results, and the page that holds them: no cell is typed by hand."""

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.gpu.parts import Bench, Part
from benchmarks.gpu.results import Row, rows_of
from dualpath_cli.errors import UserError
from dualpath_cli.files.atomic import write_text
from dualpath_cli.output.table import Column, Table, markdown


def table_of(part: Part, bench: Bench, rows: dict[str, Row]) -> Table:
    """The rows that were measured, with a line that names the others."""
    names = list(dict.fromkeys(name for cell in part.cells(bench) for name in cell.rows))
    columns = [Column(part.title), *(measured.column for measured in part.columns)]
    found = [[name, *shown(part, rows[name])] for name in names if rows.get(name)]
    return Table(columns, found, caption=not_run([name for name in names if not rows.get(name)]))


def not_run(names: list[str]) -> str:
    """A line behind a table; empty where everything was run."""
    return f"Not run: {', '.join(names)}." if names else ""


def shown(part: Part, row: Row) -> list[Any]:
    """The values of a row; the first one says why there are no others."""
    for reason in ("absent", "failed"):
        if reason in row:
            return [f"{reason}: {row[reason]}"]
    values = []
    for measured in part.columns:
        try:
            values.append(measured.value(row))
        except KeyError:
            values.append(None)
    return values


def fill(page: Path, folder: Path, parts: list[Part], bench: Bench) -> None:
    """Writes the tables of all parts that `folder` has results of into a page.

    A table stands between ``<!-- gpu PART -->`` and ``<!-- end -->``, the names of parts that have
    none between ``<!-- gpu not run -->`` and ``<!-- end -->``.

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
        table = markdown(table_of(part, bench, rows_of(content["cells"])))
        section = f"\n## {part.name}\n\n{table}\n{measured_on(content)}\n\n"
        text = replaced(text, part.name, section, page)
    without = [part.name for part in parts if not place_of(part.name, text, page)[2].strip()]
    write_text(page, replaced(text, "not run", f"\n{not_run(without)}\n" if without else "", page))


def place_of(name: str, text: str, page: Path) -> re.Match[str]:
    """Where a page has room for a part: group 1 is the mark before it, group 2 what stands there.

    Raises:
        UserError: if there is no such place.
    """
    found = re.search(rf"(<!-- gpu {name} -->\n)(.*?)(?=<!-- end -->)", text, re.DOTALL)
    if not found:
        raise UserError(f"{page} has no '<!-- gpu {name} -->' before an '<!-- end -->'")
    return found


def replaced(text: str, name: str, section: str, page: Path) -> str:
    """The text of a page with another section of a part."""
    place = place_of(name, text, page)
    return f"{text[: place.start(2)]}{section}{text[place.end(2) :]}"


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
