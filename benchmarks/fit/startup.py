"""CPU seconds from the command `dualpath fit` to its first optimizer step, by phase.

python -m benchmarks.fit.startup --data data/sample
python -m benchmarks.fit.startup --data data/sample --beside CHECKOUT

Each start is a separate process. With `--beside`, another checkout of this project starts by
turns with this one, in the same environment.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.results import show, spread, write

HERE = Path(__file__).resolve().parent

PHASES = {
    "imports": "Python, checks of the recipe, imports, Lightning's parser",
    "trainer": "trainer, tokenizer, data module",
    "model": "the model's weights, the optimizer",
    "validation": "the validation of step 0",
    "data": "the first micro-batch",
    "first step": "forward, backward and step",
}

START = """
import sys
from dualpath_cli.training import internals
internals.names_classes = lambda trainer: False  # as if there were no callback of ours
from dualpath_cli.cli import main
sys.exit(main())
"""

Seconds = dict[str, list[float]]
"""CPU seconds and seconds by the clock, of each phase."""


def start(checkout: Path, recipe: str, words: Sequence[str]) -> Seconds:
    """Starts `fit` once."""
    # Without bytecode every start compiles all it imports again: three times as long.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "marks.json")
        marks = {"out": str(out), "began": time.time()}
        callback = json.dumps([{"class_path": "startup_marks.Marks", "init_args": marks}])
        command = [sys.executable, "-c", START, "fit", "--config", recipe, *words]
        done = subprocess.run(
            [*command, "--run.dir", folder, "--trainer.callbacks", callback],
            cwd=checkout,  # where -c looks first
            env={**environment, "PYTHONPATH": str(HERE)},
            capture_output=True,
            text=True,
        )
        if not out.exists():
            raise SystemExit(done.stdout + done.stderr)
        ends: Seconds = json.loads(out.read_text())
    before, seconds = [0.0, 0.0], {}
    for phase in PHASES:
        seconds[phase] = [end - begin for end, begin in zip(ends[phase], before, strict=True)]
        before = ends[phase]
    return {**seconds, "all": before}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="quickstart")
    parser.add_argument("--data", default="data/sample", help="Data folder of the quickstart.")
    parser.add_argument("--beside", type=Path, help="Another checkout, timed by turns.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="File for the results.")
    options, words = parser.parse_known_args(arguments)
    data = Path(options.data).resolve()
    sets = {name: str(data / "val" / f"{name}.jsonl") for name in ("arithmetic", "facts", "prose")}
    words = ["--data.path", str(data), "--data.val", json.dumps(sets), *words]
    checkouts = {"this": HERE.parents[1]}
    if options.beside is not None:
        checkouts["beside"] = options.beside.resolve()
    starts: dict[str, list[Seconds]] = {name: [] for name in checkouts}
    for number in range(1 + options.rounds):
        for name, checkout in checkouts.items():
            seconds = start(checkout, options.recipe, words)
            if number:  # before the first round, what was never read is read and compiled
                starts[name].append(seconds)
    rows = []
    for phase, what in {**PHASES, "all": "up to the first step"}.items():
        spent = [[seconds[phase][0] for seconds in of] for of in starts.values()]
        ratio = [[a / b for a, b in zip(*spent, strict=True)]] if options.beside else []
        rows.append([phase, *map(spread, [*spent, *ratio]), what])
    beside = ["ratio of a round"] if options.beside else []
    show(["CPU seconds", *checkouts, *beside, "what"], rows)
    clock = [f"{n} {median(s['all'][1] for s in of):.1f} s" for n, of in starts.items()]
    print(f"by the clock, median: {', '.join(clock)}")
    write(options.json, {"starts": starts})


if __name__ == "__main__":
    main()
