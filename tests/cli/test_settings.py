"""All options that there are, and all keys of a recipe: what a wrong one is told.

`options.txt` is the list of every option of every command, and of every key of a
recipe: a new one is a decision. Rewrite it with `python -m tests.cli.test_settings`.
"""

import dataclasses
import math
import re
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from data_prep.settings import PreparationSettings
from dualpath_cli.base.ranges import Size
from dualpath_cli.cli.commands import COMMANDS
from dualpath_cli.cli.help import help_of
from dualpath_cli.cli.main import main
from dualpath_cli.cli.options import option_name, parser_of
from dualpath_cli.recipe.settings import SECTIONS
from tests.conftest import Said

OPTIONS = Path(__file__).with_name("options.txt")
FIELDS = {
    f"{section}.{field.name}": typing.get_type_hints(settings)[field.name]
    for section, settings in SECTIONS.items()
    for field in dataclasses.fields(settings)
}
"""The type of each key of a recipe."""


def all_options() -> str:
    own = [
        f"{name} {option}"
        for name, command in COMMANDS.items()
        for key, option in parser_of(command).options().items()
        if not command.has_recipe
        or key.partition(".")[0] not in (*SECTIONS, "seed_everything")
    ]
    return "\n".join(sorted([*own, *(f"recipe --{key}" for key in FIELDS)])) + "\n"


def test_a_new_option_is_a_decision():
    assert all_options() == OPTIONS.read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_and_refuses_an_option_that_there_is_not(
    name, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "2")
    assert main([name, "--help"]) == 0
    assert capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "80")
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"usage: dualpath {name}" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("\n") < 90
    assert main([name, "--qqqq"]) == 2
    said = capsys.readouterr().err
    lists = "--help lists what there is"
    if COMMANDS[name].has_recipe:
        lists = "--help lists the options, --help-recipe lists the keys of a recipe"
    assert said == f"dualpath {name}: error: unknown option '--qqqq'; {lists}\n"
    # which is offered where there are keys, and only there
    code = main([name, "--help-recipe"])
    assert (code == 0) is COMMANDS[name].has_recipe
    assert ("--optim.lr" in capsys.readouterr().out) is COMMANDS[name].has_recipe


Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> Refused:
    """`refused(words, key, value)`: what `fit` says of words and a recipe's key, in one
    line."""
    monkeypatch.chdir(tmp_path)

    def run(words: list[str], key: str | None = None, value: Any = None) -> str:
        if key is not None:
            section, _, name = key.partition(".")
            Path("case.yaml").write_text(yaml.safe_dump({section: {name: value}}))
            words = [*words, "--config", "case.yaml"]
        widths = ["--model.d_ffn=64", "--model.d_ffn_wide=64"]
        given = [word for word in widths if not word.startswith(f"--{key}=")]
        return said("fit", *given, *words)

    return run


def test_a_key_that_there_is_not_is_named_with_the_nearest(refused):
    for key in FIELDS:
        said = refused([], f"{key}x", 3)
        assert f"unknown key '{key}x'; did you mean '{key}'?" in said
        said = refused([f"--{key}x", "3"])
        assert f"unknown option '--{key}x'; did you mean '--" in said


def test_a_value_of_a_type_that_no_key_has_is_named_with_what_it_must_be(refused):
    for key in FIELDS:
        said = refused([], key, [[["odd"]]])
        assert f"error: {key}" in said
        assert " must be " in said
        assert "odd" in said, said


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_lists_needed_options_first_under_their_own_names(name):
    text = help_of(COMMANDS[name])
    needed = re.findall(r"--[\w-]+", text.partition("[options]")[0])
    listed = re.findall(r"^  (--[\w-]+)", text, re.MULTILINE)
    assert listed[: len(needed)] == needed
    assert "+ " not in " ".join(re.findall(r"^  (--.*?)(?:   |$)", text, re.MULTILINE))


@pytest.mark.parametrize("recipe", [False, True])
def test_a_help_has_no_colours(recipe, monkeypatch):
    """Python 3.14 would give it some; they are escapes, which `say` shows as text."""
    monkeypatch.setenv("PYTHON_COLORS", "1")
    assert "\x1b" not in help_of(COMMANDS["fit"], recipe)


def test_the_help_of_prepare_says_from_which_option_on_there_are_keys_of_a_recipe():
    text = help_of(COMMANDS["prepare"])
    first = re.search(r"options from (--[\w-]+) on are also keys of a recipe", text)
    assert first is not None

    listed = re.findall(r"^  (--[\w-]+)", text, re.MULTILINE)
    keys = [option_name(field) for field in dataclasses.fields(PreparationSettings)]
    assert listed[listed.index(first[1]) :] == keys


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_of_a_help_stands_on_lines_of_its_own(name):
    """Indented, it is neither wrapped nor joined to the sentence before it."""
    assert not re.findall(r"^dualpath .*", help_of(COMMANDS[name]), re.MULTILINE)


def test_every_number_of_a_recipe_has_a_sign_and_an_end(refused):
    ends = [
        (-(10**30), r"-1(0000|e\+30)"),
        (10**30, r"1(0000|e\+30)"),
        (-1e30, r"-1(0000|e\+30)"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
    ]
    for key, kind in FIELDS.items():
        if {int, float, Size} & {kind, *typing.get_args(kind)}:
            for value, shown in ends:
                said = refused([], key, value)
                assert key.partition(".")[2] in said
                assert re.search(f"not '?{shown}", said), said


if __name__ == "__main__":
    OPTIONS.write_text(all_options())
