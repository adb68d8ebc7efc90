"""What tests of sweeps share: a small recipe, the words of a sweep, a stand-in for
`fit`."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from dualpath_cli.cli.arguments import read_arguments
from dualpath_cli.cli.commands import COMMANDS
from dualpath_cli.compare.sweep import command, request, runner
from dualpath_cli.compare.sweep.request import Design
from dualpath_cli.compare.sweep.runs import PlannedRun
from dualpath_cli.recipe.settings import Settings
from tests.compare.sweep import fake_fit

STEP = 64

FAKE_FIT = [sys.executable, str(Path(__file__).with_name("fake_fit.py"))]
SWEEP = f"""
import sys
from types import SimpleNamespace
from dualpath_cli.compare.sweep import command
from dualpath_cli.cli.main import main
from dualpath_cli.compare.sweep import runner
runner.command_of = lambda run: [*{FAKE_FIT}, str(run.path)]
command.to_train = lambda settings: SimpleNamespace(manifest=settings.model)
sys.exit(main(sys.argv[1:]))
"""
"""Runs a sweep of the stand-in as a process: `python -c SWEEP sweep ...`."""


def write_recipe(folder: Path, **sections: Any) -> Path:
    """A recipe for a sweep of small models, ten steps each."""
    recipe: dict[str, Any] = {
        "model": {
            "vocab_size": 272,
            "n_layers": 2,
            "d_model": 32,
            "n_heads": 2,
            "n_kv_heads": 2,
            "max_seq_len": 16,
            "ffn_multiple_of": 8,
        },
        "optim": {"lr": 4e-3, "lr_start": 4e-5, "lr_end": 4e-4, "warmup_steps": 2},
        "run": {
            "max_tokens": 10 * STEP,
            "batch_tokens": STEP,
            "micro_batch": 2,
            "compile": False,
            "tensorboard": False,
            "save_every": 5,
            "log_every": 1,
            "validate_every": 0,
            "gates_every": 0,
        },
        "data": {"path": "data", "workers": 0, "val": {"held_out": "val.jsonl"}},
        "trainer": {"accelerator": "cpu", "devices": 1},
    }
    for name, section in sections.items():
        recipe[name] = recipe[name] | section
    path = folder / "base.yaml"
    path.write_text(yaml.safe_dump(json.loads(json.dumps(recipe))))
    return path


def starts(out: Path) -> dict[str, list[str]]:
    """What each run says of its starts: step, threads, GPUs, time."""
    return {
        f"{path.parts[-3]}-{path.parts[-2]}": path.read_text().splitlines()
        for path in out.glob("**/starts")
    }


SMALL = "--budget 100K --alphas 50 --loops 2"
"""The options of a sweep over small models."""


def asked(folder: Path, *words: str, **sections: Any) -> Design:
    """A sweep of PureWide, PureLoop and a dual model; later words win."""
    recipe = write_recipe(folder, **sections)
    plain = f"--config {recipe} {SMALL} --out {folder}/sweep --seeds 2".split()
    found = read_arguments(COMMANDS["sweep"], [*plain, *words])
    line = found.over(found.recipes)
    return request.read_request(line.options, line.recipe)


WORDS = f"{SMALL} --seeds 2 --tflops 0.01".split()


def start(run: PlannedRun, slot: int, jobs: int) -> Any:
    """Has the stand-in write a run in this process: one that has ended at once."""
    run.log.parent.mkdir(parents=True, exist_ok=True)
    with run.log.open("a") as log:
        code = fake_fit.fit(run.path, runner.environment(run, slot, jobs), log)
    return SimpleNamespace(poll=lambda: code, returncode=code)


def no_data(settings: Settings) -> Any:
    """In place of `to_train`: the launch of a run whose tokenizer fills the
    vocabulary."""
    return SimpleNamespace(
        manifest=SimpleNamespace(vocab_size=settings.model.vocab_size)
    )


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words of a sweep whose runs are the stand-in's, written in this process."""
    monkeypatch.setattr(runner, "start", start)
    monkeypatch.setattr(runner, "POLL", 0.0)
    monkeypatch.setattr(command, "to_train", no_data)
    recipe, out = write_recipe(tmp_path), tmp_path / "sweep"
    return ["sweep", "--config", str(recipe), "--out", str(out), *WORDS]
