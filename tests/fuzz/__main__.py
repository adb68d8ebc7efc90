"""`python -m tests.fuzz --cases 10000 --seed 0`: mistakes by the thousand, none a traceback.

A case is a mutated recipe, command line, run folder or data folder, drawn from the seed and its
number alone. It passes where the command ends with exit code 0, 1 or 2, one line of an error for
the last two, within two seconds, and has written nothing outside of its folder.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
from collections import Counter
from pathlib import Path

from rich.console import Console

from dualpath_cli.files import write_text
from dualpath_cli.output.progress import Progress, counted
from tests.command.home import write_home
from tests.fuzz.judge import Ending, run_case

MEMORY = 4 << 30
"""Bytes that the process may take beyond those that it began with."""


def main() -> int:
    """Runs the cases that are left; returns 1 if one of all fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="How many.")
    parser.add_argument("--seed", type=int, default=0, help="Of the random draws.")
    parser.add_argument("--only", type=int, help="The one case of this number, in full.")
    parser.add_argument("--done", type=Path, help="A file that knows how far an earlier call came.")
    options = parser.parse_args()
    os.fsync = lambda descriptor: None  # type: ignore[assignment]
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY,) * 2)
    with tempfile.TemporaryDirectory() as folder:
        home, box = Path(folder, "home").resolve(), Path(folder, "box").resolve()
        write_home(home)
        if options.only is not None:
            ending = run_case(options.seed, options.only, home, box)
            print(_text(ending))
            return int(bool(ending.problem))
        return _many(options.cases, options.seed, home, box, options.done)


def _many(cases: int, seed: int, home: Path, box: Path, done: Path | None) -> int:
    state = {"seed": seed, "next": 0, "failed": []}
    if done is not None and done.exists():
        state = json.loads(done.read_text())
        if state["seed"] != seed:
            sys.exit(f"{done} is of seed {state['seed']}")
    codes: Counter[str] = Counter()
    with Progress(Console(), "fuzz", counted("cases")) as progress:
        progress.begin(cases, done=state["next"])
        for number in range(state["next"], cases):
            ending = run_case(seed, number, home, box)
            codes[f"{ending.kind}: exit {ending.code}"] += 1
            if ending.problem:
                state["failed"].append(number)
                print(_text(ending), flush=True)
            state["next"] = number + 1
            progress.advance(1)
            if done is not None and (state["next"] % 100 == 0 or state["next"] == cases):
                write_text(done, json.dumps(state))
    for name, count in sorted(codes.items()):
        print(f"{name:24}{count:8,}")
    print(f"{state['next']:,} cases, {len(state['failed'])} failed; seed {seed}")
    return int(bool(state["failed"]))


def _text(ending: Ending) -> str:
    words = " ".join(map(ascii, ending.words))
    return (
        f"--only {ending.number}: {ending.kind}, exit {ending.code}, {ending.problem or 'passed'}\n"
        f"  {words:.300}\n  " + ending.message.rstrip().replace("\n", "\n  ")
    )


if __name__ == "__main__":
    sys.exit(main())
