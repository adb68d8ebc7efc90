"""The results: a JSON file a part, written after every cell, and the tables made of it."""

import hashlib
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.parts import Bench, Part, Row
from dualpath_cli.errors import UserError
from dualpath_cli.files.atomic import write_text
from dualpath_cli.output.table import Column, Table, markdown

ROOT = Path(__file__).parents[2]
MEASURED = ("dualpath_cli/model", "dualpath_cli/kernels", "dualpath_cli/decoding", "benchmarks/gpu")
"""Folders whose source the numbers depend on."""


class Results:
    """The rows of one part's cells, in `gpu-PART.json`."""

    def __init__(self, folder: Path, part: str, machine: dict[str, Any]) -> None:
        """Takes up what an earlier call with the same machine, versions and source has left.

        Raises:
            UserError: if the file is of another machine, version or source.
        """
        self.path = folder / f"gpu-{part}.json"
        self.content: dict[str, Any] = {"part": part, "machine": machine, "cells": {}}
        if self.path.exists():
            earlier = json.loads(self.path.read_text(encoding="utf-8"))
            for key, value in machine.items():
                if (was := earlier["machine"].get(key)) != value:
                    raise UserError(
                        f"{self.path} was measured with {key} {was}, and now it is {value}; give "
                        "another --out, or delete the file"
                    )
            self.content = earlier

    def has(self, cell: str) -> bool:
        """Whether a cell was measured, or found to be impossible on this machine."""
        rows = self.content["cells"].get(cell, {})
        return bool(rows) and not any("failed" in row for row in rows.values())

    def add(self, cell: str, rows: dict[str, Row]) -> None:
        """Keeps the rows of a cell, and writes the file."""
        self.content["cells"][cell] = rows
        self.content["written"] = datetime.now(UTC).isoformat(timespec="seconds")
        write_text(self.path, json.dumps(self.content, indent=1) + "\n")


def table_of(part: Part, bench: Bench, cells: dict[str, dict[str, Row]]) -> Table:
    """The rows that were measured, and in the caption the cells that were not."""
    rows: dict[str, Row] = {}
    asked = part.cells(bench)
    for cell in asked:
        for name, row in cells.get(cell, {}).items():  # cells may fill columns of one row
            rows[name] = rows.get(name, {}) | row
    values = []
    for name, row in rows.items():
        reasons = [f"{key}: {row[key]}" for key in ("absent", "failed") if key in row]
        values.append([name, *(reasons or [value(row) for _, value in part.columns])])
    columns = [Column(part.title), *(column for column, _ in part.columns)]
    return Table(columns, values, caption=not_run([cell for cell in asked if cell not in cells]))


def not_run(names: list[str]) -> str:
    """A line behind a table; empty where everything was run."""
    return f"Not run: {', '.join(names)}." if names else ""


def fill(page: Path, folder: Path, parts: list[Part], bench: Bench) -> None:
    """Writes the tables of all parts that `folder` has results of into a page.

    They stand between ``<!-- gpu -->`` and ``<!-- end -->``, with the names of the other parts.

    Raises:
        UserError: if the results are of a rehearsal, or the page has no such place.
    """
    sections, without = "", []
    for part in parts:
        path = folder / f"gpu-{part.name}.json"
        if not path.exists():
            without.append(part.name)
            continue
        content = json.loads(path.read_text(encoding="utf-8"))
        machine = content["machine"]
        if machine["rehearsal"]:
            raise UserError(f"{path} is of a rehearsal, whose numbers mean nothing; give others")
        table = markdown(table_of(part, bench, content["cells"]))
        about = (
            f"{machine['device']}, driver {machine.get('driver')}, torch {machine['torch']}, "
            f"cuDNN {machine.get('cudnn')}, source {machine['source']}, {content['written'][:10]}."
        )
        sections += f"\n## {part.name}\n\n{table}\n{about}\n"
    sections += f"\n{not_run(without)}\n" if without else ""
    before, start, rest = page.read_text(encoding="utf-8").partition("<!-- gpu -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not end:
        raise UserError(f"{page} has no '<!-- gpu -->' before an '<!-- end -->'")
    write_text(page, f"{before}{start}{sections}\n{end}{after}")


def describe_machine(device: torch.device, rehearsal: bool) -> dict[str, Any]:
    """The conditions of the numbers: device, driver, versions, source; nothing left to chance.

    `source` is a hash of the files in MEASURED, for folders without git.
    """
    cuda, source = device.type == "cuda", hashlib.sha256()
    for folder in MEASURED:
        for path in sorted((ROOT / folder).glob("*.py")):
            source.update(path.name.encode() + path.read_bytes())
    return {
        "rehearsal": rehearsal,
        "device": torch.cuda.get_device_name(device) if cuda else "CPU",
        "memory_bytes": torch.cuda.get_device_properties(device).total_memory if cuda else None,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "driver": driver() if cuda else None,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "source": source.hexdigest()[:12],
    }


def driver() -> str | None:
    """The version of NVIDIA's driver; None where `nvidia-smi` does not say it."""
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.partition("\n")[0].strip()
