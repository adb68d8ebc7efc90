"""Kills and signals at random moments: a run must end as the one that nothing happened
to.

python -m tests.training.torture --kills 1000 --signals 300 --seed 0

Kills strike one process, signals one or both of two ranks. A run is started again until
it is finished, then its tables and weights are compared, bit for bit (two ranks: with
an uninterrupted run of two ranks). The file --done keeps what was done: the same
command continues from there.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch
import yaml
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from rich.console import Console

from dualpath_cli.report.console import Progress, counted
from tests.cli.processes import start
from tests.training.tiny_run import (
    SEQ_LEN,
    prepare,
    tables,
    tiny_recipe,
    weights,
    write_text,
)

STEPS = 40
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)


class Runs:
    """One recipe, trained without and with interruptions, by one process or by two."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        train = write_text(folder / "train.jsonl", 1, documents=400, words=20)
        val = write_text(folder / "val.jsonl", 2, documents=12, words=20)
        prepare(folder / "texts" / "train", train)
        shutil.copy(val, folder / "texts" / "val.jsonl")
        recipe = tiny_recipe(folder / "texts", folder / "runs")
        recipe["run"] |= {
            "max_tokens": STEPS * 4 * SEQ_LEN,
            "save_every": 4,
            "validate_every": 3,
            "gates_every": 1,
            "keep": 2,
        }
        recipe["data"]["max_epochs"] = 999
        self.recipe = folder / "recipe.yaml"
        self.recipe.write_text(yaml.safe_dump(recipe))
        self.folder, self.draw = folder, draw

    def words(self, name: str, ranks: int) -> list[str]:
        words = ["fit", "--config", str(self.recipe), "--run.name", name]
        if ranks == 2:
            words += ["--trainer.devices", "2", "--run.micro_batch", "1"]
            words += ["--run.rank_timeout", "0.5"]  # of one that died before they met
            words += ["--trainer.strategy", "fsdp" if name.endswith("fsdp") else "ddp"]
        return words

    def attempt(self, name: str, ranks: int, strike: int | None) -> list[int | None]:
        """Starts the run's processes, strikes them at some moment; returns their exit
        codes."""
        port = str(find_free_network_port())
        environments = (
            [{}]
            if ranks == 1
            else [
                {"LOCAL_RANK": str(rank), "MASTER_PORT": port} for rank in range(ranks)
            ]
        )
        processes = [
            start(self.words(name, ranks), self.folder / f"{rank}.log", **environment)
            for rank, environment in enumerate(environments)
        ]
        if strike is not None:
            time.sleep(self.draw.uniform(0.2, 4.0 * ranks))
            struck = (
                processes if self.draw.random() < 0.5 else [self.draw.choice(processes)]
            )
            for process in struck:
                if process.is_alive():
                    os.kill(process.pid or 0, strike)
        for process in processes:
            process.join(timeout=90)
            if process.is_alive():
                process.kill()
                raise AssertionError(
                    f"{name}: hung after {strike}: {self._logs(ranks)}"
                )
        return [process.exitcode for process in processes]

    def finish(self, name: str, ranks: int, strikes: list[int]) -> int:
        """Runs until the end, struck each time as long as there are strikes; returns
        how many."""
        made = 0
        while True:
            strike = strikes[made] if made < len(strikes) else None
            codes = self.attempt(name, ranks, strike)
            if all(code == 0 for code in codes):
                return made + (strike is not None)
            fine = {0, 1, 130, 143, *(-signum for signum in (*SIGNALS, signal.SIGKILL))}
            if strike is None or not set(codes) <= fine:
                raise AssertionError(
                    f"{name}: {codes} after {strike}: {self._logs(ranks)}"
                )
            made += 1

    def check(self, name: str, whole: str) -> None:
        """Compares two finished runs."""
        one, other = (self.folder / "runs" / "tiny" / run for run in (name, whole))
        assert tables(one) == tables(other), f"{name}: other rows than {whole}"
        if not name.endswith("fsdp"):
            torch.testing.assert_close(weights(one), weights(other), rtol=0, atol=0)
        shutil.rmtree(one)

    def _logs(self, ranks: int) -> str:
        logs = [
            (self.folder / f"{rank}.log").read_text()[-1500:] for rank in range(ranks)
        ]
        return "\n".join(logs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000, help="Of one process.")
    parser.add_argument(
        "--signals", type=int, default=300, help="To one or both of two ranks."
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--done", type=Path, help="File that keeps what was done, to go on."
    )
    options = parser.parse_args()
    done = {"kills": 0, "signals": 0, "runs": 0}
    if options.done and options.done.exists():
        done = json.loads(options.done.read_text())
    draw = random.Random(f"{options.seed} {done}")
    wanted = {"kills": options.kills, "signals": options.signals}
    with (
        tempfile.TemporaryDirectory() as folder,
        Progress(Console(), "torture", counted("strikes")) as progress,
    ):
        progress.begin(sum(wanted.values()), done=done["kills"] + done["signals"])
        runs = Runs(Path(folder), draw)
        for name, ranks in (("one", 1), ("two-ddp", 2), ("two-fsdp", 2)):
            runs.finish(f"whole-{name}", ranks, [])
        for kind in wanted:
            while done[kind] < wanted[kind]:
                name = (
                    "one" if kind == "kills" else draw.choice(["two-ddp", "two-fsdp"])
                )
                count = min(draw.randint(1, 6), wanted[kind] - done[kind])
                strikes = (
                    [signal.SIGKILL] * count
                    if kind == "kills"
                    else draw.choices(SIGNALS, k=count)
                )
                made = runs.finish(
                    f"struck-{name}", 1 if kind == "kills" else 2, strikes
                )
                runs.check(f"struck-{name}", f"whole-{name}")
                done[kind] += made
                done["runs"] += 1
                progress.advance(made)
                if options.done:
                    options.done.parent.mkdir(parents=True, exist_ok=True)
                    options.done.write_text(json.dumps(done))
    print(
        f"{done['kills']} kills and {done['signals']} signals in {done['runs']} runs: "
        "all equal"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
