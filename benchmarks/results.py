"""Results of benchmarks: tables, and JSON files that name commit, date and machine.

python -m benchmarks.results      # docs/benchmarks/*.json into the pages of the same
                                  names

A page has its tables between ``<!-- results -->`` and ``<!-- end -->``, from NAME.json
or, of several calls, NAME-ANY.json; no number is typed.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import write_text
from dualpath_cli.base.output import one_line
from dualpath_cli.base.version import device_name, package_versions, versions
from dualpath_cli.report.table import Column, Table, markdown

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- results -->\n", "<!-- end -->"
MORE_PACKAGES = ("transformers", "tiktoken", "triton")


Row = dict[str, Any]
"""Measurements by column; `failed` says in words why they are missing."""
Rows = dict[str, Row]


def failed(error: Exception) -> Row:
    """A row that says why there are no numbers."""
    return {"failed": one_line(f"{type(error).__name__}: {error}")[:200]}


def table(title: str, rows: Rows) -> str:
    """Rows as Markdown, each measurement but lists a column; a line where all rows are
    `right`."""
    if all(row.get("right") is True for row in rows.values()):
        return f"**{title}**: all {len(rows)} right.\n"
    headings = dict.fromkeys(
        c for row in rows.values() for c in row if type(row[c]) is not list
    )
    columns = [Column(""), *(Column(heading, "") for heading in headings)]
    cells = [
        [name, *(shown(row.get(column)) for column in headings)]
        for name, row in rows.items()
    ]
    return f"**{title}**\n\n{markdown(Table(columns, cells))}"


def shown(value: object) -> str:
    """A measurement as text, three digits of a number at least."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return "" if value is None else str(value)


def conditions() -> dict[str, Any]:
    """Returns what numbers depend on: commit, date, machine and versions."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [
        line.partition(":")[2].strip()
        for line in lines
        if line.startswith("model name")
    ]
    amx = " with AMX" if torch.cpu._is_amx_tile_supported() else ""
    cpu = device_name(torch.device("cpu"))
    facts = {
        **versions(),
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "machine": f"{''.join(names[:1])} {cpu}{amx}".strip(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
    }
    for name in MORE_PACKAGES:
        with suppress(PackageNotFoundError):
            facts["packages"] |= package_versions([name])
    if torch.cuda.is_available():
        facts["machine"] = f"{torch.cuda.get_device_name()}, {facts['machine']}"
        facts["packages"]["cuDNN"] = str(torch.backends.cudnn.version())
    return facts


def result(
    facts: dict[str, Any], given: argparse.Namespace, measured: dict[str, Rows]
) -> dict[str, Any]:
    """Returns what a file of results holds: `conditions`, options, rows by the table's
    title."""
    options = {
        name: value.name if isinstance(value, Path) else value
        for name, value in vars(given).items()
        if name != "out"
    }
    return {"conditions": facts, "options": options, "measured": measured}


def publish(given: argparse.Namespace, measured: dict[str, Rows]) -> None:
    """Prints a call's tables, and writes them and all measurements to its `--out`, if
    any."""
    found = result(conditions(), given, measured)
    print(section(found))
    if given.out is not None:
        write_text(Path(given.out), as_json(found))


def as_json(content: dict[str, Any]) -> str:
    """The text of a file of results."""
    return json.dumps(content, indent=1) + "\n"


def section(result: dict[str, Any]) -> str:
    """The part of a page that a result fills."""
    facts, packages = result["conditions"], result["conditions"]["packages"]
    names = [
        f"{n} {packages[n]}"
        for n in ("torch", *MORE_PACKAGES, "cuDNN")
        if n in packages
    ]
    about = (
        f"Commit {facts['git_commit'] or 'unknown'}, {facts['date'][:10]}; "
        f"{facts['machine']}, {facts['cores']} cores, {facts['threads']} threads, load "
        f"{facts['load']}; Python {facts['python']}, {', '.join(names)}.\n"
    )
    tables = [table(title, rows) for title, rows in result["measured"].items() if rows]
    return "\n".join([*tables, about])


def filled(page: Path) -> str:
    """A page with the tables of its results, or with a line that there are none.

    Raises:
        UserError: if the page has no place for them, or a file is of a rehearsal.
    """
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise UserError(f"{page} has no '{BEGIN.strip()}' before an '{END}'")
    sections = []
    for path in sorted(page.parent.glob(f"{page.stem}*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["options"].get("rehearse"):
            raise UserError(
                f"{path} is of a rehearsal, whose numbers mean nothing; give others"
            )
        sections.append(
            f"{section(content)}All measurements: [{path.name}]({path.name}).\n"
        )
    text = "\n".join(sections)
    return f"{before}{begin}\n{text}\n{end}{after}"


def spread(values: Sequence[float]) -> str:
    """The median, and the least and the most of all rounds."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main(folder: Path = ROOT / "docs" / "benchmarks") -> int:
    """Fills all pages of a folder."""
    try:
        for page in sorted(folder.glob("*.md")):
            write_text(page, filled(page))
    except UserError as error:
        print(f"benchmarks.results: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
