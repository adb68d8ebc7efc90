"""Measures training on one CUDA GPU, in parts that are complete in themselves.

python -m benchmarks.gpu PART [PART...] --out FOLDER
python -m benchmarks.gpu all --rehearse --out FOLDER       # every part, tiny, on a CPU
python -m benchmarks.gpu tables --out FOLDER               # results into docs/benchmarks/gpu.md

Parts, the most important first: correct, ceilings, step, memory, attention, decode. Results are
written after each cell; a later call with the same folder goes on with those that are missing.
"""

import argparse
import fnmatch
import gc
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.gpu import attention, ceilings, correct, decode, memory, step
from benchmarks.gpu.parts import Bench, Cell, Row
from benchmarks.gpu.results import ROOT, Results, describe_machine, fill, table_of
from benchmarks.gpu.sizes import REHEARSAL, Sizes
from benchmarks.gpu.training import settings_for_comparisons
from dualpath_cli.errors import UserError, did_you_mean, one_line
from dualpath_cli.output.table import markdown

PAGE = ROOT / "docs/benchmarks/gpu.md"
PARTS = {
    module.PART.name: module.PART for module in (correct, ceilings, step, memory, attention, decode)
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.gpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="+", metavar="PART")
    parser.add_argument("--out", type=Path, required=True, help="Folder of the results.")
    parser.add_argument("--minutes", type=float, default=9, help="No cell begins that would end "
                        "later, if it took as long as the longest before it.")  # fmt: skip
    parser.add_argument("--cells", default="*", help="Only those that match, as in 'f80m*none'.")
    parser.add_argument("--rehearse", action="store_true", help="Tiny shapes, also on a CPU.")
    parser.add_argument("--page", type=Path, default=PAGE, help="What `tables` fills.")
    options = parser.parse_args(arguments)
    try:
        with settings_for_comparisons():
            return run(options)
    except UserError as error:
        print(f"benchmarks.gpu: error: {one_line(str(error))}", file=sys.stderr)
        return 2


def run(options: argparse.Namespace) -> int:
    """Runs the parts that were asked for; 1 if a cell has failed or gave something wrong."""
    sizes = REHEARSAL if options.rehearse else Sizes()
    if options.parts == ["tables"]:
        fill(options.page, options.out, list(PARTS.values()), Bench(torch.device("cpu"), sizes))
        return 0
    names = list(PARTS) if options.parts == ["all"] else options.parts
    for name in names:
        if name not in PARTS:
            raise UserError(f"no part '{name}'{did_you_mean(name, PARTS)}; parts are "
                            f"{', '.join(PARTS)}, or all, or tables")  # fmt: skip
    cuda = torch.cuda.is_available()
    if not cuda and not options.rehearse:
        raise UserError("torch sees no CUDA GPU; --rehearse runs everything tiny on the CPU")
    bench = Bench(torch.device("cuda" if cuda else "cpu"), sizes)
    machine = describe_machine(bench.device, options.rehearse)
    end, longest, good = time.monotonic() + options.minutes * 60, 0.0, True
    for name in names:
        results = Results(options.out, name, machine)
        for title, cell in PARTS[name].cells(bench).items():
            if results.has(title) or not fnmatch.fnmatch(title, options.cells):
                continue
            began = time.monotonic()
            if began + longest >= end:
                print(f"{name}: no time for '{title}'; the same command goes on with it")
                break
            rows = attempt(title, cell)
            took = time.monotonic() - began
            longest = max(longest, took)
            print(f"{title}: {took:.1f} s", flush=True)
            good &= all("failed" not in row and row.get("ok", True) for row in rows.values())
            results.add(title, rows)
            release(bench)
        if cells := results.content["cells"]:
            table = markdown(table_of(PARTS[name], bench, cells))
            print(f"\n{name}: {results.path}\n\n{table}", flush=True)
    return 0 if good else 1


def attempt(title: str, cell: Cell) -> dict[str, Row]:
    """Runs a cell; one that fails gives its reason, and the others go on."""
    try:
        return cell()
    except Exception as error:  # whatever went wrong, the next cell may work
        traceback.print_exc()
        return {title: {"failed": one_line(f"{type(error).__name__}: {error}")[:200]}}


def release(bench: Bench) -> None:
    """Frees models and graphs of the last cell."""
    torch._dynamo.reset()
    gc.collect()
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
