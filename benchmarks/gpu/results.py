"""What was measured, in a JSON file a part: written after every cell, so that a kill loses none."""

import hashlib
import json
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from dualpath_cli.errors import UserError
from dualpath_cli.files.atomic import write_text

Row = dict[str, Any]
"""One row of a table by column. `absent` or `failed` says in words why the others are missing."""

ROOT = Path(__file__).parents[2]
MEASURED = ("dualpath_cli/model", "dualpath_cli/kernels", "dualpath_cli/decoding", "benchmarks/gpu")
"""Folders whose source the numbers depend on."""


class Results:
    """The rows of one part's cells, in `gpu-PART.json`; cells that are there are not run again."""

    def __init__(self, folder: Path, part: str, machine: dict[str, Any]) -> None:
        """Takes up what an earlier call with the same machine, versions and source has left.

        Raises:
            UserError: if the file is of another machine, version or source.
        """
        self.path = folder / f"gpu-{part}.json"
        self.part = part
        self.machine = machine
        self.cells: dict[str, dict[str, Row]] = {}
        if self.path.exists():
            earlier = json.loads(self.path.read_text(encoding="utf-8"))
            self.cells = earlier["cells"]
            for key, value in machine.items():
                if earlier["machine"].get(key) != value:
                    raise UserError(
                        f"{self.path} was measured with {key} {earlier['machine'].get(key)}, and "
                        f"now it is {value}; give another --out, or delete the file"
                    )

    def has(self, cell: str) -> bool:
        """Whether a cell was measured, or found to be impossible on this machine."""
        rows = self.cells.get(cell, {})
        return bool(rows) and not any("failed" in row for row in rows.values())

    def add(self, cell: str, rows: dict[str, Row]) -> None:
        """Keeps the rows of a cell, and writes the file."""
        self.cells[cell] = rows
        content = {
            "part": self.part,
            "machine": self.machine,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "cells": self.cells,
        }
        write_text(self.path, json.dumps(content, indent=1) + "\n")


def rows_of(cells: dict[str, dict[str, Row]]) -> dict[str, Row]:
    """Rows by name; cells that fill different columns of one row are put together."""
    rows: dict[str, Row] = {}
    for cell in cells.values():
        for name, row in cell.items():
            rows.setdefault(name, {}).update(row)
    return rows


def describe_machine(device: torch.device, rehearsal: bool) -> dict[str, Any]:
    """What the numbers depend on: device, driver, versions, source; nothing that is left to chance.

    `source` is a hash of the files in MEASURED, for folders without git.
    """
    cuda = device.type == "cuda"
    about: dict[str, Any] = {
        "rehearsal": rehearsal,
        "device": torch.cuda.get_device_name(device) if cuda else "CPU",
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "triton": _version("triton"),
        "commit": _output("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"),
        "source": _source(),
    }
    if cuda:
        properties = torch.cuda.get_device_properties(device)
        about |= {
            "memory_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return about


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _output(*words: str) -> str | None:
    """First line that a program prints; None where it is missing or fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else None


def _source() -> str:
    digest = hashlib.sha256()
    for folder in MEASURED:
        for path in sorted((ROOT / folder).glob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]
