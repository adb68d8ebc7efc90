"""What a newcomer meets first: the quickstart's recipe and commands."""

import json
import os
import shlex

import pytest

import quickstart
from dualpath_cli.cli import main
from dualpath_cli.recipe import recipes


def test_the_recipe_names_the_command_that_solves_its_widths(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = recipes.find("quickstart").read_text().splitlines()
    (command,) = [line for line in lines if "# dualpath flops" in line]
    assert main([*shlex.split(command)[2:], "--format", "json"]) == 0
    model = recipes.load("quickstart")["model"]
    for reading in json.loads(capsys.readouterr().out):
        assert (reading["d_ffn"], reading["d_ffn_wide"]) == (model["d_ffn"], model["d_ffn_wide"])


def test_a_command_that_fails_ends_the_quickstart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def fails_at_ablate(words: list[str]) -> int:
        ran.append(words[0])
        return 2 * (words[0] == "ablate")

    monkeypatch.setattr(quickstart, "main", fails_at_ablate)
    assert quickstart.run() == 2
    assert ran == ["fit", "ablate"]
    assert "/dualpath fit --config quickstart\n" in capsys.readouterr().out


@pytest.mark.parametrize(("given", "used"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_waiting_threads_sleep_unless_the_environment_says_otherwise(
    given: str | None, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    main(["flops", "--budget", "80M", "--format", "json"])
    assert os.environ["OMP_WAIT_POLICY"] == used
