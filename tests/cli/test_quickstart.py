"""What a newcomer meets first: the quickstart's recipe and commands."""

import json
import shlex

from dualpath_cli.cli import quickstart
from dualpath_cli.cli.main import main
from dualpath_cli.recipe import recipes


def test_the_recipe_names_the_command_that_solves_its_widths(capsys):
    lines = recipes.find("quickstart").read_text().splitlines()
    (command,) = [line for line in lines if "# dualpath flops" in line]
    assert main([*shlex.split(command)[2:], "--format", "json"]) == 0
    model = recipes.load("quickstart")["model"]
    solved = json.loads(capsys.readouterr().out)["model"]
    assert all(solved[key] == model[key] for key in ("d_ffn", "d_ffn_wide", "ffn_multiple_of"))


def test_a_command_that_fails_ends_the_quickstart_which_then_continues(
    tmp_path, monkeypatch, capsys
):
    ran: list[str] = []
    codes = {"ablate": 130}

    def pretend(words: list[str]) -> int:
        ran.append(words[0])
        return codes.get(words[0], 0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(quickstart, "main", pretend)
    assert main(["quickstart"]) == 130
    assert ran == ["prepare", "fit", "ablate"]
    said = capsys.readouterr().out
    assert "dualpath fit --config quickstart\n" in said
    assert said.endswith("dualpath quickstart: ended at ablate; the same command continues\n")
    codes.clear()
    assert main(["quickstart"]) == 0
    assert ran[3:] == ["prepare", "fit", "ablate", "routing"]
    assert "look: " in capsys.readouterr().out
