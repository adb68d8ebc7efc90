"""The signals that end a command, and where its child processes look for modules."""

import contextlib
import os
import signal
import sys
import time

import pytest

from dualpath_cli.base.output import say
from dualpath_cli.base.processes import is_first_of_node, is_first_rank
from dualpath_cli.cli.main import main
from dualpath_cli.compare.sweep import command as command_of_sweep
from tests.compare.sweep.conftest import no_data, write_recipe
from tests.data_prep.conftest import write_jsonl


@pytest.mark.parametrize(
    ("variables", "of_all", "of_node"),
    [
        ({}, True, True),
        ({"RANK": "0", "LOCAL_RANK": "0"}, True, True),
        ({"RANK": "8", "LOCAL_RANK": "0"}, False, True),
        ({"SLURM_PROCID": "8", "SLURM_LOCALID": "0"}, False, True),
        ({"SLURM_PROCID": "9", "SLURM_LOCALID": "1"}, False, False),
        ({"NODE_RANK": "1"}, False, True),
        ({"NODE_RANK": "0", "LOCAL_RANK": "1"}, False, False),
    ],
)
def test_one_process_is_the_first_of_all_and_one_of_each_node(
    variables, of_all, of_node, monkeypatch
):
    ranks = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID", "SLURM_LOCALID")
    for name in ranks:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (is_first_rank(), is_first_of_node()) == (of_all, of_node)


@pytest.mark.parametrize("command", ["prepare", "sweep"])
def test_children_look_for_no_modules_in_the_working_directory(
    command, small, tmp_path, monkeypatch, capsys
):
    """Those of a pool, which multiprocessing starts, and those that are commands
    themselves."""
    received = tmp_path / "received"
    received.mkdir()
    for name in ("jsonargparse", "socket"):
        (received / f"{name}.py").write_text(
            "open(__file__ + '.ran', 'w'); raise ImportError"
        )
    monkeypatch.chdir(received)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    if command == "prepare":
        source = write_jsonl(tmp_path / "a.jsonl", ["hello"])
        small.save(tmp_path)
        words = f"--source {source} --tokenizer {tmp_path} --workers 2 --val-fraction 0"
    else:
        monkeypatch.setattr(command_of_sweep, "to_train", no_data)
        words = (
            f"--config {write_recipe(tmp_path)} --yes --budget 100K --alphas 50 "
            "--loops 2"
        )
        words += " --controls none --seeds 1 --tflops 0.01"
    code = main([command, *words.split(), "--out", str(tmp_path / "out")])
    assert not list(received.glob("*.ran"))
    said = capsys.readouterr().err
    assert code == (0 if command == "prepare" else 1), said
    assert command == "prepare" or "dualpath fit: error: data folder" in said, (
        "the only run begins"
    )


def test_with_a_closed_stderr_nothing_of_it_comes_to_stdout(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    say("a note")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("sent", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_a_signal_that_a_library_makes_another_exception_of_is_still_the_end(
    sent, code, monkeypatch, capsys
):
    def draw(options: object) -> None:  # as matplotlib, whose transforms are in C++
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), sent)
            time.sleep(10)
        raise TypeError("affine_transform(): incompatible function arguments")

    monkeypatch.setattr("dualpath_cli.flops.command.describe", draw)
    assert main(["flops", "--budget", "80M"]) == code
    how = "interrupted" if sent == signal.SIGINT else "stopped by SIGTERM"
    assert capsys.readouterr().out == f"dualpath flops: {how}\n"
