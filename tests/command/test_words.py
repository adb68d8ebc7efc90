"""Words after a command: which become keys of the recipe, and with what values."""

from typing import Any

import pytest
from dualpath_cli.command.parser import options_of, parser_of
from dualpath_cli.command.words import read

from dualpath_cli.cli.commands import COMMANDS
from dualpath_cli.errors import UserError


def changed(recipe: dict[str, Any], *words: str) -> dict[str, Any]:
    return read(COMMANDS["fit"], ["--config", "x", *words]).changed(recipe)


@pytest.mark.parametrize(
    ("words", "section", "key", "value"),
    [
        (["--model.loops", "3"], "model", "loops", 3),
        (["--model.gain_init", "-7.5"], "model", "gain_init", -7.5),
        (["--model.d_ffn", "null"], "model", "d_ffn", None),
        (["--model.block", "[dual, wide]"], "model", "block", ["dual", "wide"]),
        (["--optim.lr", "5e-4"], "optim", "lr", 5e-4),
        (["--run.name", "007"], "run", "name", "007"),
        (["--run.name=a=b"], "run", "name", "a=b"),
        (["--run.wandb", "2024"], "run", "wandb", "2024"),
        (["--run.max_tokens", "38.5B"], "run", "max_tokens", "38.5B"),
        (["--trainer.devices", "2"], "trainer", "devices", 2),
        (["--trainer.devices", "auto"], "trainer", "devices", "auto"),
        (["--data.val.novels", "1984"], "data", "val", {"novels": "1984"}),
        (["--model.loops", "3", "--model.loops", "5"], "model", "loops", 5),
    ],
)
def test_a_word_gives_a_key_the_value_that_a_recipe_would(words, section, key, value):
    result = changed({}, *words)[section][key]
    assert result == value
    assert type(result) is type(value)


def test_an_entry_of_a_mapping_is_added_and_the_mapping_itself_replaced():
    recipe = {"data": {"val": {"a": "a.txt"}, "workers": 1}}
    added = changed(recipe, "--data.val.b", "b.txt")
    assert added == {"data": {"val": {"a": "a.txt", "b": "b.txt"}, "workers": 1}}
    replaced = changed(recipe, "--data.val", "{b: b.txt}")
    assert replaced == {"data": {"val": {"b": "b.txt"}, "workers": 1}}
    assert recipe == {"data": {"val": {"a": "a.txt"}, "workers": 1}}


def test_runs_may_be_given_one_after_the_other():
    line = read(COMMANDS["ablate"], ["--ckpt-path", "a", "b", "--ckpt_path=c", "--out", "x"])
    assert line.runs == ["a", "b", "c"]
    assert line.options["out"] == "x"


@pytest.mark.parametrize(
    "parser", map(parser_of, COMMANDS.values()), ids=lambda parser: parser.prog
)
def test_every_option_is_shown_with_hyphens_and_may_be_written_with_underscores(parser):
    def parsed(option: str) -> Any:
        try:
            return parser.parse_known_args([f"{option}=a_b"])
        except UserError as error:  # it takes no value, or a number
            return str(error)

    options = options_of(parser)
    for option in filter(lambda option: option.startswith("--"), options.values()):
        assert "_" not in option
        assert "['--" not in str(parsed(option)), option
        assert parsed(option) == parsed(f"--{option[2:].replace('-', '_')}")


def test_the_seed_is_an_option_of_either_spelling():
    assert changed({}, "--seed-everything", "3") == changed({}, "--seed_everything=3")
