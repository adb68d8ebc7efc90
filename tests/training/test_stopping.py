"""Signals: the run ends at a step's end with a checkpoint, and goes on as if nothing
had been."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer

from dualpath_cli.cli.main import main
from dualpath_cli.run.run_folder import newest_checkpoint, step_of
from dualpath_cli.run.tables import read_table
from dualpath_cli.training import checkpoints, curve, stopping
from dualpath_cli.training.module import DualPathModule
from tests.cli.processes import exit_codes, run_on_ranks, run_on_two_ranks, start
from tests.data_prep.web import wait_for
from tests.training.test_distributed import rank_1_of
from tests.training.tiny_run import SEQ_LEN, Fit, rows, tables, weights

rare = pytest.mark.slow
STEPS = 8
RUN = {
    "max_tokens": STEPS * 4 * SEQ_LEN,
    "save_every": 4,
    "validate_every": 2,
    "log_every": 1,
    "gates_every": 1,
}


def at_step(
    where: str, step: int, act: Callable[[], object], rank: str | None = None
) -> None:
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


def signalled(
    signum: int, where: str, step: int, rank: str | None = None
) -> Callable[[], None]:
    """What a process is prepared by to get a signal at some moment."""
    return partial(at_step, where, step, partial(send, signum), rank)


def send_to_all(signum: int) -> None:
    """Sends a signal to this process and its loader, as SLURM does: from another
    process."""
    (loader,) = multiprocessing.active_children()
    subprocess.run(
        ["kill", f"-{signum:d}", str(loader.pid), str(os.getpid())], check=True
    )


def all_signalled(signum: int, where: str, step: int) -> Callable[[], None]:
    """What a process is prepared by to get a signal at some moment, and its loader
    too."""
    return partial(at_step, where, step, partial(send_to_all, signum))


def hung_up(before: signal.Handlers) -> None:
    """Has the process begin with this handler of SIGHUP, and get one."""
    signal.signal(signal.SIGHUP, before)
    at_step(STEP, 4, partial(send, signal.SIGHUP))


def twice_in_a_step(step: int, second: float) -> None:
    """Has the process get a signal, and another one before the step is over, which is
    another signal if it comes after so many seconds."""
    stopping.SECOND = second
    at_step(STEP, step, lambda: [send(TERM), send(TERM)])


def signalled_in_a_save() -> None:
    """Has the process get a signal while a checkpoint is written."""
    publish = checkpoints.publish
    checkpoints.publish = lambda *files: [send(TERM), publish(*files)]


def die_before_publishing() -> None:
    """Has the process killed when a checkpoint is written but not yet published."""
    checkpoints.publish = lambda *ignored: send(signal.SIGKILL)


# One process

TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL
STEP, VALIDATION = "training_step", "validation_step"
TIME = ["--trainer.max_time", "00:00:00:00"]
LOADER = ["--data.workers", "1"]
ENDS: dict[str, tuple[Callable[[], None] | None, list[str], int, int | None, str]] = {
    # What is prepared, more words, exit code, step of the newest checkpoint, and what
    # is said.
    "SIGTERM": (signalled(TERM, STEP, 4), [], 143, 5, "stopped by SIGTERM"),
    "Ctrl-C": (signalled(INT, STEP, 4), [], 130, 5, "interrupted"),
    "SIGUSR1": (signalled(signal.SIGUSR1, STEP, 4), [], 143, 5, "stopped by SIGUSR1"),
    "SIGHUP": (partial(hung_up, signal.SIG_DFL), [], 143, 5, "stopped by SIGHUP"),
    "SIGHUP under nohup": (partial(hung_up, signal.SIG_IGN), [], 0, STEPS, ""),
    # Here the default start method is that of Python 3.14, a server of forks.
    "SIGTERM to all": (
        all_signalled(TERM, STEP, 4),
        LOADER,
        143,
        5,
        "stopped by SIGTERM",
    ),
    "SIGUSR1 to all": (
        all_signalled(signal.SIGUSR1, STEP, 4),
        LOADER,
        143,
        5,
        "stopped by SIGUSR1",
    ),
    "no time": (None, TIME, 0, 1, "trainer.max_time is over"),
    "a first signal after no time": (
        signalled_in_a_save,
        TIME,
        0,
        1,
        "trainer.max_time is over",
    ),
    # A minute, so that a busy machine does not make it another signal.
    "SIGTERM sent twice": (
        partial(twice_in_a_step, 4, 60.0),
        [],
        143,
        5,
        "stopped by SIGTERM",
    ),
    "another signal ends it at once": (
        partial(twice_in_a_step, 5, 0.0),
        [],
        128 + TERM,
        4,
        "",
    ),
    # Validations after steps without and with a checkpoint of their own, and after the
    # last one.
    "in a validation": (
        signalled(TERM, VALIDATION, 2),
        [],
        143,
        2,
        "stopped by SIGTERM",
    ),
    "in one of a saved step": (
        signalled(TERM, VALIDATION, 4),
        [],
        143,
        4,
        "stopped by SIGTERM",
    ),
    "in the last one": (
        signalled(TERM, VALIDATION, STEPS),
        [],
        143,
        STEPS,
        "stopped by SIGTERM",
    ),
    "killed in a validation": (signalled(KILL, VALIDATION, 2), [], -KILL, None, ""),
    "killed in one of a saved step": (signalled(KILL, VALIDATION, 4), [], -KILL, 4, ""),
    # Its step is no multiple of save_every.
    "killed in the last one": (
        signalled(KILL, VALIDATION, STEPS),
        ["--run.save_every", "3"],
        -KILL,
        STEPS,
        "",
    ),
    "killed with half a checkpoint": (die_before_publishing, [], -KILL, None, ""),
    "killed before a checkpoint": (signalled(KILL, STEP, 1), [], -KILL, None, ""),
    "killed after a validation": (
        signalled(KILL, "on_validation_epoch_end", 2),
        [],
        -KILL,
        None,
        "",
    ),
}
EVERYDAY = {
    "SIGTERM",
    "SIGTERM sent twice",
    "SIGHUP under nohup",
    "SIGTERM to all",
    "Ctrl-C",
    "no time",
    "a first signal after no time",
    "another signal ends it at once",
    "in a validation",
    "killed in the last one",
    "killed after a validation",
    "killed with half a checkpoint",
}


@pytest.fixture
def whole(trained: Fit) -> Path:
    """An uninterrupted run."""
    return trained(run=RUN, data={"max_epochs": 99})


@pytest.fixture
def words(whole: Path, tmp_path: Path) -> list[str]:
    """The command that trains it again, under another name."""
    return ["fit", "--config", str(tmp_path / "recipe.yaml"), "--run.name", "stopped"]


@pytest.mark.parametrize(
    "end", [pytest.param(end, marks=() if end in EVERYDAY else rare) for end in ENDS]
)
def test_however_a_run_ends_the_same_command_makes_it_what_it_would_have_been(
    end, whole, words, tmp_path
):
    prepare, more, code, step, said = ENDS[end]
    log, run = tmp_path / "log", whole.with_name("stopped")
    assert exit_codes([start([*words, *more], log, prepare)]) == [code], log.read_text()
    left = [path.name for path in run.glob("checkpoints/*.partial")]
    assert left == ["step-00000004.partial"] * ("half" in end)
    newest = newest_checkpoint(run)
    assert (newest and step_of(newest)) == step
    if said:
        line = f"dualpath fit: {said}; the same command continues from step {step}\n"
        assert log.read_text().endswith(line)
        assert rows(run / "metrics.csv")[-1]["step"] == str(step)
    if "in " in end:
        assert str(step or 2) not in [
            row["step"] for row in rows(run / "validation.csv")
        ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curve, "draw", lambda run: run / "curve.png")
        assert main(words) == 0
    assert not list(run.glob("checkpoints/*.partial"))
    assert tables(run) == tables(whole)
    torch.testing.assert_close(weights(run), weights(whole), rtol=0, atol=0)


def test_a_signal_in_a_validation_that_makes_up_for_the_last_one_loses_nothing(
    whole, tmp_path
):
    words = ["fit", "--config", str(tmp_path / "recipe.yaml")]
    log, table, wanted = tmp_path / "log", whole / "validation.csv", tables(whole)
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join(x for x in lines if not x.startswith(f"{STEPS},")))
    kept = sorted(whole.glob("checkpoints/*"))
    assert exit_codes([start(words, log, signalled(TERM, VALIDATION, 0))]) == [143]
    said = f"stopped by SIGTERM; the same command continues from step {STEPS}"
    assert log.read_text().endswith(f"dualpath fit: {said}\n")
    assert sorted(whole.glob("checkpoints/*")) == kept
    curve_of = whole / "curve.png"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curve, "draw", lambda run: curve_of.touch() or curve_of)
        assert main(words) == 0
    assert tables(whole) == wanted
    assert curve_of.is_file()


def test_ctrl_c_keeps_the_later_checkpoints_of_a_run_that_was_taken_back(
    trained, tmp_path, capsys
):
    run, log = trained(), tmp_path / "log"
    words = ["fit", "--config", str(tmp_path / "recipe.yaml")]
    before = sorted(run.glob("checkpoints/*"))
    back = ["--ckpt-path", str(run / "checkpoints/step-00000002")]
    process = start([*words, *back], log, signalled(INT, STEP, 2))
    assert exit_codes([process]) == [130]
    said = "interrupted; the command without --ckpt-path continues from step 6\n"
    assert log.read_text().endswith(said)
    assert sorted(run.glob("checkpoints/*")) == before
    assert main(words) == 0
    assert f"{run}/metrics.csv lacks rows of steps 4, 5, 6\n" in capsys.readouterr().out


def test_the_last_validation_that_alone_is_missing_is_made_whatever_time_it_takes(
    trained, tmp_path
):
    table = trained() / "validation.csv"
    whole = table.read_text()
    table.write_text(whole.partition("\n6,")[0] + "\n")
    words = ["fit", "--config", str(tmp_path / "recipe.yaml"), *TIME]
    assert main(words) == 0
    assert table.read_text() == whole


@pytest.mark.parametrize(
    ("where", "step", "save_every"), [(STEP, 3, 2), (VALIDATION, 4, 2), (STEP, 3, 5)]
)
def test_a_killed_run_ends_where_early_stopping_would_have_ended_it(
    where, step, save_every, trained, tmp_path
):
    """A checkpoint is older than its step's validation, but for one that ends a run."""
    patience = {"monitor": "val/held_out/loss", "patience": 1, "min_delta": 9.0}
    callback = {"class_path": "lightning.pytorch.callbacks.EarlyStopping"}
    callback["init_args"] = patience
    whole = trained(
        run={**RUN, "save_every": save_every}, trainer={"callbacks": callback}
    )
    assert step_of(newest_checkpoint(whole)) == 4

    words = ["fit", "--config", str(tmp_path / "recipe.yaml"), "--run.name", "stopped"]
    process = start(words, tmp_path / "log", signalled(KILL, where, step))
    assert exit_codes([process]) == [-KILL]
    for _ in range(2):  # an ended run does not go on
        assert main(words) == 0
        run = whole.with_name("stopped")
        assert tables(run) == tables(whole)
        torch.testing.assert_close(weights(run), weights(whole), rtol=0, atol=0)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=rare)])
def test_a_row_is_of_all_steps_since_the_last_one_also_where_a_signal_came_between(
    ranks, trained, tmp_path
):
    whole = trained(run={**RUN, "log_every": 4}, model={"n_experts": 2, "top_k": 1})
    run = whole.with_name("between")
    words = ["fit", "--config", str(tmp_path / "recipe.yaml"), "--run.name", "between"]
    words += (
        ["--run.micro_batch", "1", "--trainer.strategy", "ddp"] if ranks > 1 else []
    )
    run_on_ranks(
        ranks, words, tmp_path, signalled(TERM, STEP, 4), expected=(143, 0)[:ranks]
    )
    assert [row["step"] for row in rows(run / "metrics.csv")] == ["4"]
    run_on_ranks(ranks, words, tmp_path)
    for row, wanted in zip(
        rows(run / "metrics.csv"), rows(whole / "metrics.csv"), strict=True
    ):
        for column in wanted.keys() - {
            "seconds",
            "tokens_per_second",
            "tflops_per_second",
            "mfu",
        }:
            assert float(row[column]) == pytest.approx(
                float(wanted[column]), rel=1e-5
            ), column
    first, second = read_table(run / "metrics.csv")
    seconds = second.number("seconds") - first.number("seconds")
    speed = 4 * 4 * SEQ_LEN / seconds
    assert second.number("tokens_per_second") == pytest.approx(speed, rel=0.05)


@pytest.mark.parametrize(
    ("signum", "code", "said"),
    [
        (INT, 130, "interrupted"),
        pytest.param(TERM, 143, "stopped by SIGTERM", marks=rare),
    ],
)
def test_a_signal_ends_the_command_validate_with_its_code(
    signum, code, said, whole, tmp_path
):
    log = tmp_path / "log"
    words = ["validate", "--ckpt_path", str(whole)]
    assert exit_codes([start(words, log, signalled(signum, VALIDATION, 0))]) == [code]
    assert log.read_text().endswith(f"dualpath validate: {said}\n")


# Two ranks


@pytest.fixture
def two(words: list[str]) -> list[str]:
    """The command that trains it on two ranks."""
    return [*words, "--run.micro_batch", "1", "--trainer.strategy"]


@pytest.mark.parametrize(
    ("strategy", "where", "rank"),
    [
        ("fsdp", STEP, "1"),
        *(
            pytest.param(*case, marks=rare)
            for case in (
                ("ddp", STEP, None),
                ("ddp", VALIDATION, "0"),
                ("ddp", STEP, "0"),
                ("ddp", STEP, "1"),
                ("fsdp", STEP, "0"),
                ("fsdp", STEP, None),
                ("fsdp", VALIDATION, "1"),
                ("ddp", VALIDATION, None),
            )
        ),
    ],
)
def test_two_ranks_stop_at_the_same_step_whichever_gets_the_signal(
    strategy, where, rank, whole, two, tmp_path
):
    prepare = signalled(TERM, where, 4 if where == STEP else 2, rank)
    # The second rank has a parent that would take its failure for the run's.
    said = run_on_two_ranks([*two, strategy], tmp_path, prepare, expected=(143, 0))
    newest = newest_checkpoint(whole.with_name("stopped"))
    assert newest is not None
    # They agree one step, or one batch of a validation, after the signal.
    stopped = 6 if where == STEP else 2
    assert step_of(newest) == stopped
    line = (
        "dualpath fit: stopped by SIGTERM; the same command continues from step "
        f"{stopped}"
    )
    assert line in "".join(said)
    assert len(rows(whole.with_name("stopped") / "metrics.csv")) == stopped


def die_in_training() -> None:
    at_step(STEP, 4, partial(send, KILL), rank="1")


def die_as_a_checkpoint_is_due() -> None:
    save = Trainer.save_checkpoint

    def dying(self: Trainer, path: Path) -> None:
        if os.environ["LOCAL_RANK"] == "1" and self.global_step == 8:
            send(KILL)
        save(self, path)

    Trainer.save_checkpoint = dying


@pytest.mark.parametrize("strategy", ["fsdp", pytest.param("ddp", marks=rare)])
@pytest.mark.parametrize(
    "die", [die_as_a_checkpoint_is_due, pytest.param(die_in_training, marks=rare)]
)
def test_a_rank_that_dies_ends_the_others_with_a_word(die, strategy, two, tmp_path):
    words = [*two, strategy, "--run.rank_timeout", "0.3"]
    said, _ = run_on_two_ranks(words, tmp_path, die, expected=(1, -KILL))
    assert "dualpath fit: failed: rank 0 lost contact with the others: " in said
    assert said.endswith("; the same command continues from step 4\n")
    assert "Traceback" not in said


def train_for_long(two: list[str], checkpoint: Path) -> subprocess.Popen[str]:
    """The first of two ranks, once there is a checkpoint."""
    words = [*two, "ddp", "--trainer.devices", "2"]
    words += ["--run.max_tokens", str(10**7), "--data.max_epochs", "1e9"]
    words += ["--run.save_every", "1", "--run.keep", "1"]
    first = subprocess.Popen(
        [sys.executable, "-m", "dualpath_cli", *words],
        stderr=subprocess.PIPE,
        text=True,
    )
    while not checkpoint.exists():
        assert first.poll() is None
        time.sleep(0.1)
    return first


@rare
def test_a_child_that_runs_no_handler_ends_with_the_first_rank(whole, two):
    """It is stopped, as one that waits on a GPU; SIGTERM would not reach it."""
    first = train_for_long(two, whole.with_name("stopped") / "checkpoints" / "last")
    child = rank_1_of(first.pid)
    os.kill(child, signal.SIGSTOP)
    first.kill()
    first.wait()
    try:
        wait_for(lambda: not Path(f"/proc/{child}").exists())
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, KILL)


@rare
def test_a_child_that_dies_is_named_by_the_first_rank(whole, two):
    # it dies as a checkpoint is due, mostly
    first = train_for_long(two, whole.with_name("stopped") / "checkpoints" / "last")
    os.kill(rank_1_of(first.pid), KILL)
    _, said = first.communicate(timeout=300)
    assert first.returncode == 1, said
    last = "dualpath fit: failed: rank 1 ended by signal SIGKILL (out of memory?); "
    assert said.splitlines()[-1].startswith(last)
    assert said.count("failed") == 1
