"""The `dualpath` command as a user sees it: help, `--print_config`, and what it
imports."""

import contextlib
import dataclasses
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dualpath_cli.cli.commands import COMMANDS
from dualpath_cli.cli.main import main
from dualpath_cli.cli.quickstart import LAST, STEPS
from dualpath_cli.recipe import recipes
from dualpath_cli.recipe.settings import SECTIONS
from tests.training.tiny_run import write_home

SLOW = (
    "torch",
    "lightning",
    "litdata",
    "torchmetrics",
    "rich",
    "tiktoken",
    "matplotlib",
)
"""Packages that take a second or more, or are needed only once a run has begun."""
NOT_IN_FLOPS = (*(name for name in SLOW if name != "rich"), "numpy")
"""Its table is drawn by rich; the 0.3 s of its process leave no room for others."""

SCRIPT = """
import contextlib, io, json, sys, traceback

slow, lines = json.loads(sys.argv[1]), json.loads(sys.argv[2])


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in slow:
            raise RuntimeError(f"imports {name}")


sys.meta_path.insert(0, Refuse())
from dualpath_cli.cli.main import main

for words in lines:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        with contextlib.redirect_stderr(io.StringIO()) as err:
            try:
                code = main(words)
            except SystemExit as stop:
                code = stop.code or 0
            except BaseException:
                traceback.print_exc(limit=-3)
                code = "a traceback"
    answer = {"code": code, "out": out.getvalue(), "err": err.getvalue()}
    print(json.dumps(answer))
"""


def run_without_slow_imports(
    lines: list[str], folder: Path, slow: tuple[str, ...] = SLOW
) -> list[dict[str, Any]]:
    """Runs command lines in one process that refuses slow imports; the answer to
    each."""
    arguments = [json.dumps(slow), json.dumps([shlex.split(line) for line in lines])]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


FLOPS = "flops --budget 80M"


@pytest.mark.parametrize(
    ("slow", "lines"),
    [
        (
            SLOW,
            [
                "--help",
                "--version",
                "fit --help",
                "validate --help",
                "generate --help",
                "evaluate --help",
                "fit --config quickstart --print_config",
            ],
        ),
        (
            NOT_IN_FLOPS,
            [FLOPS, f"{FLOPS} --plan", f"{FLOPS} --format json", "flops --help"],
        ),
    ],
    ids=["all", "flops"],
)
def test_answers_that_need_no_model_import_nothing_slow(slow, lines, tmp_path):
    """And a whole recipe passes all checks before anything slow is imported."""
    # The progress of its check of the data would be drawn by rich.
    write_home(tmp_path)
    fit = "fit --config tiny.yaml --run.name new --data.verify never"
    *answers, last = run_without_slow_imports([*lines, fit], tmp_path, slow)
    for line, answer in zip(lines, answers, strict=True):
        assert (answer["code"], answer["err"]) == (0, ""), line
        assert answer["out"], line
    assert last["code"] == "a traceback"
    assert slow != SLOW or "RuntimeError: imports torch" in last["err"]


# Help and the recipe that is printed

Command = Callable[..., str]


@pytest.fixture
def dualpath(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Runs a command in an empty folder; it must end well, and returns what it
    prints."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> str:
        code: Any = 0
        with contextlib.suppress(SystemExit):
            code = main(list(words))
        captured = capsys.readouterr()
        assert (code, captured.err) == (0, "")
        return captured.out

    return run


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]], ids=str)
def test_help_lists_every_command_with_what_it_does(words, dualpath):
    shown = " ".join(dualpath(*words).split())
    for name, command in COMMANDS.items():
        assert f" {name} {command.purpose} " in shown


def test_a_printed_recipe_holds_the_recipe_the_words_and_all_defaults(dualpath):
    words = [
        "--run.max_tokens",
        "1000",
        "--trainer.devices=2",
        "--data.val.mine",
        "mine.txt",
    ]
    printed = yaml.safe_load(
        dualpath("fit", "--config", "quickstart", *words, "--print_config")
    )
    for section, settings in SECTIONS.items():
        assert set(printed[section]) == {
            field.name for field in dataclasses.fields(settings)
        }
    quickstart = recipes.load_recipe("quickstart")
    quickstart["run"]["max_tokens"] = 1000
    quickstart["data"]["val"]["mine"] = "mine.txt"
    assert recipes.merge(printed, quickstart | {"trainer": {}}) == printed
    assert printed["trainer"]["devices"] == 2
    assert printed["run"]["recipe"] == "quickstart"


def test_recipes_lists_each_packaged_recipe_with_its_first_sentence(dualpath):
    shown = dualpath("recipes").splitlines()
    for kind in ("", "data"):
        for name in recipes.recipe_names(kind):
            first = (
                recipes.find_recipe(name, kind=kind)
                .read_text()
                .partition("\n")[0]
                .lstrip("# ")
            )
            found = [
                line.split(maxsplit=1)[1] for line in shown if f"  {name} " in line
            ]
            assert first[:20] in [about[:20] for about in found]
    assert max(map(len, shown)) <= 140


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dualpath fi", ["fit "]),
        ("dualpath fit --optim.lr_s", ["--optim.lr_start", "--optim.lr_scale"]),
        ("dualpath fit --config quickstart --model.block ", ["dual", "loop", "wide"]),
        ("dualpath prepare inspect --s", ["--samples", "--seed"]),
        ("dualpath fit --config cluster_", ["cluster_1", "cluster_64", "cluster_8"]),
        ("dualpath fit --config ./ow", ["./own.yaml "]),
        ("dualpath prepare --config pa", ["paper "]),
    ],
)
def test_a_shell_completes_commands_options_and_choices(line, expected, tmp_path):
    out = tmp_path / "out"
    asked = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9"}
    of_it = {"": "1", "_IFS": "\v", "_STDOUT_FILENAME": str(out)}
    asked |= {f"_ARGCOMPLETE{name}": value for name, value in of_it.items()}
    (tmp_path / "own.yaml").touch()
    command = [sys.executable, "-m", "dualpath_cli"]
    subprocess.run(
        command, env=os.environ | asked, cwd=tmp_path, check=True, capture_output=True
    )
    assert out.read_text().split("\v") == expected


# The quickstart


def test_the_recipe_names_the_command_that_solves_its_widths(capsys):
    lines = recipes.find_recipe("quickstart").read_text().splitlines()
    (command,) = [line for line in lines if "# dualpath flops" in line]
    assert main([*shlex.split(command)[2:], "--format", "json"]) == 0
    model = recipes.load_recipe("quickstart")["model"]
    solved = json.loads(capsys.readouterr().out)["model"]
    assert all(
        solved[key] == model[key] for key in ("d_ffn", "d_ffn_wide", "ffn_multiple_of")
    )


def test_a_command_that_fails_ends_the_quickstart_which_then_continues(
    tmp_path, monkeypatch, capsys
):
    ran: list[str] = []
    codes = {"ablate": 130}

    def pretend(words: list[str]) -> int:
        ran.append(words[0])
        return codes.get(words[0], 0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dualpath_cli.cli.quickstart.main", pretend)
    assert main(["quickstart"]) == 130
    assert ran == ["prepare", "fit", "ablate"]
    said = capsys.readouterr().out
    assert "dualpath fit --config quickstart\n" in said
    assert said.endswith(
        "dualpath quickstart: ended at ablate; the same command continues\n"
    )
    codes.clear()
    assert main(["quickstart"]) == 0
    assert ran[3:] == ["prepare", "fit", "ablate", "routing"]
    assert "look: " in capsys.readouterr().out
    # Results that are newer than the model are not made again; they import PyTorch for
    # seconds.
    ablation, routing = list(STEPS.values())[2:]
    for number, path in enumerate((routing, LAST, ablation)):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).touch()
        os.utime(path, (number, number))
    assert main(["quickstart"]) == 0
    assert ran[7:] == ["prepare", "fit", "routing"]
    assert f"done before: {Path(ablation).parent}\n" in capsys.readouterr().out
