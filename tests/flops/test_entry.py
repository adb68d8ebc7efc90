"""The ways into `dualpath flops`: argparse and jsonargparse alike, its help, its start-up."""

import argparse
import shlex
import subprocess
import sys
from typing import Any

import jsonargparse
import pytest

from dualpath_cli.cli import main
from dualpath_cli.flops import command as flops_command

DUAL = "--budget 80M --alpha 50 --k 4"


def both_parsers() -> dict[str, Any]:
    parsers = {"argparse": argparse.ArgumentParser(), "jsonargparse": jsonargparse.ArgumentParser()}
    for parser in parsers.values():
        flops_command.add_arguments(parser)
    return parsers


@pytest.mark.parametrize(
    "line",
    [
        DUAL,
        "--budget 80M --loops 2 --block loop --format yaml",
        "--audit",
        "--budget 80M --table",
        "--budget 1.28G --dim 1024 --kv-heads 4 --format csv --tokens 1e9 --gpus 8 --tflops 300",
        "--config quickstart --seq-len 8",
        "--budget 80M --match total --format json",
    ],
)
def test_jsonargparse_and_argparse_give_the_same_output(line: str) -> None:
    outputs = {
        name: flops_command.run(parser.parse_args(shlex.split(line)))
        for name, parser in both_parsers().items()
    }
    assert outputs["argparse"] == outputs["jsonargparse"] != ""


def test_help_is_sentences_and_states_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flops", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for option in both_parsers()["argparse"]._actions:
        if "--help" not in option.option_strings:
            assert option.help[0].isalnum()
            assert option.help.endswith(".")
    for default in ("dual.", "50.", "4.", "16.", "768.", "50304.", "38503710720.", "64.", "68"):
        assert f"Default: {default}" in text


def test_answers_import_nothing_slow() -> None:
    """0.3 s for the process leave no room for torch, lightning, rich, jsonargparse or numpy."""
    script = (
        "import sys; from dualpath_cli.cli import main; "
        "codes = [main(['flops', *a.split()]) for a in sys.argv[1:]]; "
        "slow = {'torch', 'lightning', 'rich', 'jsonargparse', 'numpy', 'yaml'}; "
        "slow &= set(sys.modules); "
        "sys.exit(f'{codes} {slow}' if slow or any(codes) else 0)"
    )
    lines = [DUAL, "--audit", "--budget 80M --table", f"{DUAL} --format yaml", "--help"]
    done = subprocess.run([sys.executable, "-c", script, *lines], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
