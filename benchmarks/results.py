"""Results of benchmarks: a table on the screen, and JSON with the machine and its versions."""

import argparse
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dualpath_cli.output.table import Column, Table
from dualpath_cli.output.terminal import aligned

PACKAGES = ("torch", "lightning", "litdata", "torchmetrics", "transformers")


def machine() -> dict[str, Any]:
    """Machine and versions, on which a result depends; of PACKAGES those that are installed."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    facts = {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "kernels": torch.backends.cpu.get_cpu_capability(),  # AVX2, AVX512: by name alike
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "as many as cores"),
        "load": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
    }
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            facts[package] = version(package)
    return facts


def given_options(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the options of a call, without the file of results and the function they name."""
    return {name: value for name, value in vars(given).items() if name not in ("out", "run")}


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
