"""Part `profile`: three steps in a trace, and their kernels by class."""

from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.kernel_classes import CLASSES, kernels_of, record
from benchmarks.gpu.parts import Bench, Cell, Part, number
from benchmarks.gpu.results import Row
from benchmarks.gpu.sizes import MAIN
from benchmarks.gpu.training import TrainingStep, Variant

STEPS = 3
LONGEST = 15
"""Kernels that are listed by name."""


def trace_step(bench: Bench, out: Path) -> dict[str, Row]:
    """Traces the step as it is; writes the trace beside the results."""
    step = TrainingStep(bench, bench.sizes.model(MAIN), Variant(bench.sizes.micro_batch))
    for _ in range(bench.sizes.warm_up):
        step()
    step.check_compiled()
    trace = record(lambda: [step() for _ in range(STEPS)], bench.device)
    out.mkdir(parents=True, exist_ok=True)
    trace.export_chrome_trace(str(out / "gpu-profile-trace.json.gz"))
    kernels = kernels_of(trace, bench.device)
    total = sum(kernel.seconds for kernel in kernels)
    rows: dict[str, Row] = defaultdict(lambda: {"seconds": 0.0, "launches": 0.0, "longest": []})
    for kernel in kernels:
        row = rows[kernel.kind]
        row["seconds"] += kernel.seconds / STEPS
        row["launches"] += kernel.launches / STEPS
        row["longest"].append([kernel.name, kernel.seconds / STEPS, kernel.launches / STEPS])
    for row in rows.values():
        row["share"] = row["seconds"] * STEPS / total
        row["longest"] = row["longest"][:LONGEST]
    missing: dict[str, Any] = {"seconds": 0.0, "launches": 0.0, "share": 0.0, "longest": []}
    return {name: rows.get(name, dict(missing)) for name in CLASSES}


def part(out: Path) -> Part:
    """The part, whose trace goes to a folder."""
    return Part(
        "profile",
        "kernels",
        (
            number("ms a step", "seconds", "{:.2f}", 1e3),
            number("% of all kernels", "share", "{:.1f}", 100),
            number("launches a step", "launches"),
        ),
        lambda bench: [Cell("trace", CLASSES, partial(trace_step, bench, out))],
    )
