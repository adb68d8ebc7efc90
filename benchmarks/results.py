"""Results of benchmarks: a table on the screen, and JSON with the machine and its versions."""

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from dualpath_cli.output.table import Column, Table
from dualpath_cli.output.terminal import aligned

PACKAGES = ("torch", "lightning", "litdata", "torchmetrics", "transformers")


def machine() -> dict[str, Any]:
    """What a result depends on, beside the code; of packages those that are installed."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "as many as cores"),
        "load": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        **{name: version for name in PACKAGES if (version := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def write(path: str | None, result: Mapping[str, Any]) -> None:
    """Writes a result and the machine to a file, if one is named; prints the machine."""
    facts = machine()
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    if path is not None:
        Path(path).write_text(json.dumps({"machine": facts, **result}, indent=1) + "\n")


def show(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table of cells that are text already."""
    headings = [Column(columns[0]), *(Column(heading, "") for heading in columns[1:])]
    print("\n".join(aligned(Table(headings, list(rows)))))


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Returns a cell: the median, and the least and the most of all rounds."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"
