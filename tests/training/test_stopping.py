"""Signals: the run ends at a step's end with a checkpoint, and goes on as if nothing had been."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.pytorch import Trainer

from dualpath_cli.cli import main
from dualpath_cli.run.run_folder import newest_checkpoint, step_of
from dualpath_cli.training import stopping
from dualpath_cli.training.logs import curve
from dualpath_cli.training.module import DualPathModule
from tests.processes import start
from tests.tiny_run import SEQ_LEN, Fit, rows, tables, weights
from tests.training.test_ranks import rank_1_of

rare = pytest.mark.slow
STEPS = 8
RUN = {"max_tokens": STEPS * 4 * SEQ_LEN, "save_every": 4, "validate_every": 2, "log_every": 1,
       "gates_every": 1}  # fmt: skip


def at_step(where: str, step: int, act: Callable[[], object], rank: str | None = None) -> None:
    """Has something happen when the module's method is first called after some steps.

    `rank` is that of two which it happens on; by default all.
    """
    method, done = getattr(DualPathModule, where), []

    def watched(self: DualPathModule, *arguments: Any, **named: Any) -> Any:
        here = rank in (None, os.environ.get("LOCAL_RANK"))
        now = self.trainer.global_step == step and not self.trainer.sanity_checking
        if here and now and not done:
            done.append(step)
            act()
        return method(self, *arguments, **named)

    setattr(DualPathModule, where, watched)


def send(signum: int) -> None:
    os.kill(os.getpid(), signum)


def signalled(signum: int, where: str, step: int, rank: str | None = None) -> Callable[[], None]:
    """What a process is prepared by to get a signal at some moment."""
    return partial(at_step, where, step, partial(send, signum), rank)


def twice_in_a_step(signum: int) -> None:
    """Has the process get a signal, and another one before the step is over."""
    stopping.SECOND = 0.0
    at_step("training_step", 5, lambda: [send(signum), send(signum)])


@pytest.fixture
def whole(trained: Fit) -> Path:
    """An uninterrupted run."""
    return trained(run=RUN, data={"max_epochs": 99})


@pytest.fixture
def words(whole: Path, tmp_path: Path) -> list[str]:
    """The command that trains it again, under another name."""
    return ["fit", "--config", str(tmp_path / "recipe.yaml"), "--run.name", "stopped"]


def run_once(
    words: list[str], log: Path, prepare: Callable[[], object] | None = None
) -> int | None:
    process = start(words, log, prepare)
    process.join(60)
    process.kill()
    return process.exitcode


def assert_goes_on(words: list[str], whole: Path) -> None:
    """The same command again makes the run what it would have been."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curve, "draw", lambda run: run / "curve.png")
        assert main(words) == 0
    run = whole.with_name("stopped")
    assert tables(run) == tables(whole)
    torch.testing.assert_close(weights(run), weights(whole), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("signum", "code"),
    [
        (signal.SIGTERM, 143),
        (signal.SIGINT, 130),
        pytest.param(signal.SIGUSR1, 143, marks=rare),
        pytest.param(signal.SIGHUP, 143, marks=rare),
    ],
)
def test_a_signal_ends_the_run_after_the_step_that_it_came_in(
    signum: int, code: int, whole: Path, words: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    assert run_once(words, log, signalled(signum, "training_step", 4)) == code, log.read_text()
    run = whole.with_name("stopped")
    assert step_of(newest_checkpoint(run)) == 5
    assert rows(run / "metrics.csv")[-1]["step"] == "5"
    how = "interrupted" if signum == signal.SIGINT else f"stopped by {signal.Signals(signum).name}"
    said = f"dualpath fit: {how}; the same command continues from step 5\n"
    assert log.read_text().endswith(said)
    assert_goes_on(words, whole)


@pytest.mark.parametrize(
    ("signum", "step"),
    [
        (signal.SIGTERM, 2),
        (signal.SIGKILL, STEPS),
        *(
            pytest.param(signum, step, marks=rare)
            for signum, step in (
                (signal.SIGTERM, 4), (signal.SIGTERM, STEPS),
                (signal.SIGKILL, 2), (signal.SIGKILL, 4),
            )
        ),
    ],
)  # fmt: skip
def test_a_validation_that_was_cut_short_is_made_anew(
    signum: int, step: int, whole: Path, words: list[str], tmp_path: Path
) -> None:
    """After steps without and with a checkpoint of their own, and after the last one of all."""
    log = tmp_path / "log"
    code = run_once(words, log, signalled(signum, "validation_step", step))
    run = whole.with_name("stopped")
    if signum == signal.SIGTERM:
        assert code == 143, log.read_text()
        assert step_of(newest_checkpoint(run)) == step
    assert str(step) not in [row["step"] for row in rows(run / "validation.csv")]
    assert_goes_on(words, whole)


def test_a_second_signal_ends_the_process_at_once_and_harms_nothing(
    whole: Path, words: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    code = run_once(words, log, partial(twice_in_a_step, signal.SIGTERM))
    assert code == 128 + signal.SIGTERM, log.read_text()
    assert step_of(newest_checkpoint(whole.with_name("stopped"))) == 4
    assert_goes_on(words, whole)


@pytest.mark.parametrize(
    "where", [pytest.param("training_step", marks=rare), "on_validation_epoch_end"]
)
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(
    where: str, whole: Path, words: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    step = 1 if where == "training_step" else 2
    assert run_once(words, log, signalled(signal.SIGKILL, where, step)) == -signal.SIGKILL
    assert_goes_on(words, whole)


@pytest.mark.parametrize(
    ("strategy", "where", "rank"),
    [
        ("fsdp", "training_step", "1"),
        *(
            pytest.param(strategy, where, rank, marks=rare)
            for strategy, where, rank in (
                ("ddp", "training_step", None), ("ddp", "validation_step", "0"),
                ("ddp", "training_step", "0"), ("ddp", "training_step", "1"),
                ("fsdp", "training_step", "0"), ("fsdp", "training_step", None),
                ("fsdp", "validation_step", "1"), ("ddp", "validation_step", None),
            )
        ),
    ],
)  # fmt: skip
def test_two_ranks_stop_at_the_same_step_whichever_gets_the_signal(
    strategy: str, where: str, rank: str | None, trained: Fit, tmp_path: Path
) -> None:
    trained(run=RUN, data={"max_epochs": 99})  # writes the recipe
    name = f"{strategy}-{where}-{rank}"
    words = ["fit", "--config", str(tmp_path / "recipe.yaml"), "--run.name", name]
    words += ["--trainer.strategy", strategy, "--trainer.devices", "2", "--run.micro_batch", "1"]
    port = str(find_free_network_port())
    step = 4 if where == "training_step" else 2
    prepare = signalled(signal.SIGTERM, where, step, rank)
    logs = [tmp_path / f"rank-{number}.log" for number in range(2)]
    ranks = [
        start(words, log, prepare, LOCAL_RANK=str(number), MASTER_PORT=port)
        for number, log in enumerate(logs)
    ]
    for process in ranks:
        process.join(60)
        process.kill()
    said = logs[0].read_text() + logs[1].read_text()
    # The second rank has a parent that would take its failure for the run's.
    assert [process.exitcode for process in ranks] == [143, 0], said
    run = tmp_path / "runs" / "tiny" / name
    newest = newest_checkpoint(run)
    assert newest is not None
    stopped = step_of(newest)
    assert (
        f"dualpath fit: stopped by SIGTERM; the same command continues from step {stopped}" in said
    )
    # They agree one step, or one batch of a validation, after the signal.
    assert stopped == (6 if where == "training_step" else 2)
    assert len(rows(run / "metrics.csv")) == stopped


def die_in_training() -> None:
    at_step("training_step", 4, partial(send, signal.SIGKILL), rank="1")


def die_as_a_checkpoint_is_due() -> None:
    save = Trainer.save_checkpoint

    def dying(self: Trainer, path: Path) -> None:
        if os.environ["LOCAL_RANK"] == "1" and self.global_step == 8:
            send(signal.SIGKILL)
        save(self, path)

    Trainer.save_checkpoint = dying


@pytest.mark.parametrize(
    ("die", "strategy"),
    [
        (die_as_a_checkpoint_is_due, "fsdp"),
        pytest.param(die_as_a_checkpoint_is_due, "ddp", marks=rare),
        pytest.param(die_in_training, "fsdp", marks=rare),
        pytest.param(die_in_training, "ddp", marks=rare),
    ],
)
def test_a_rank_that_dies_ends_the_others_with_a_word(
    die: Callable[[], None], strategy: str, trained: Fit, tmp_path: Path
) -> None:
    trained(run=RUN, data={"max_epochs": 99})  # writes the recipe
    words = ["fit", "--config", str(tmp_path / "recipe.yaml"), "--run.name", f"dead-{strategy}"]
    words += ["--trainer.strategy", strategy, "--trainer.devices", "2", "--run.micro_batch", "1"]
    words += ["--run.rank_timeout", "0.3"]
    port = str(find_free_network_port())
    logs = [tmp_path / f"rank-{number}.log" for number in range(2)]
    ranks = [
        start(words, log, die, LOCAL_RANK=str(number), MASTER_PORT=port)
        for number, log in enumerate(logs)
    ]
    for process in ranks:
        process.join(60)
        process.kill()
    said = logs[0].read_text()
    assert [process.exitcode for process in ranks] == [1, -signal.SIGKILL], said
    assert "dualpath fit: failed: rank 0 lost contact with the others: " in said
    assert said.endswith("; the same command continues from step 4\n")
    assert "Traceback" not in said


@rare
def test_a_child_that_dies_is_named_by_the_first_rank(trained: Fit, tmp_path: Path) -> None:
    trained(run=RUN, data={"max_epochs": 99})  # writes the recipe
    words = ["fit", "--config", str(tmp_path / "recipe.yaml"), "--run.name", "orphan"]
    words += ["--trainer.strategy", "ddp", "--trainer.devices", "2", "--run.micro_batch", "1"]
    words += ["--run.max_tokens", str(10**7), "--data.max_epochs", "1e9"]
    words += ["--run.save_every", "1", "--run.keep", "1"]  # it dies as one is due, mostly
    run = tmp_path / "runs" / "tiny" / "orphan"
    first = subprocess.Popen(
        [sys.executable, "-m", "dualpath_cli", *words], stderr=subprocess.PIPE, text=True
    )
    while not (run / "checkpoints" / "last").exists():
        assert first.poll() is None
        time.sleep(0.1)
    os.kill(rank_1_of(first.pid), signal.SIGKILL)
    _, said = first.communicate(timeout=60)
    assert first.returncode == 1, said
    last = "dualpath fit: failed: rank 1 ended by signal SIGKILL (out of memory?); "
    assert said.splitlines()[-1].startswith(last)
    assert said.count("failed") == 1


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=rare)]
)
def test_a_signal_ends_a_validation_of_its_own_with_its_code(
    signum: int, code: int, whole: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    prepare = signalled(signum, "validation_step", 0)
    assert run_once(["validate", "--ckpt_path", str(whole)], log, prepare) == code
    said = "interrupted" if signum == signal.SIGINT else "stopped by SIGTERM"
    assert log.read_text().endswith(f"dualpath validate: {said}\n")


def test_a_run_whose_time_is_over_says_so_and_goes_on(
    whole: Path, words: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    assert run_once([*words, "--trainer.max_time", "00:00:00:00"], log) == 0
    said = "dualpath fit: trainer.max_time is over; the same command continues from step 1\n"
    assert log.read_text().endswith(said)
    assert_goes_on(words, whole)


def test_a_time_that_is_none_is_refused(words: list[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run_once([*words, "--trainer.max_time", "soon"], log) == 2
    assert "trainer.max_time must be days:hours:minutes:seconds" in log.read_text()
