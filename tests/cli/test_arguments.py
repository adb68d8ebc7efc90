"""Words after a command: which become keys of the recipe, with what values, and
overrides."""

from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonargparse import ArgumentParser

from dualpath_cli.base.errors import UserError
from dualpath_cli.cli.arguments import join_values, read_arguments
from dualpath_cli.cli.commands import COMMANDS
from dualpath_cli.cli.options import parser_of
from dualpath_cli.data.documents import split_name
from dualpath_cli.recipe.parser import Parser
from dualpath_cli.spec.intervention import RANDOM, SHUFFLED, Intervention
from dualpath_cli.spec.intervention import parse_overrides as parse


def changed(recipe: dict[str, Any], *words: str) -> dict[str, Any]:
    return (
        read_arguments(COMMANDS["fit"], ["--config", "x", *words]).over(recipe).recipe
    )


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
        (["--run.max_tokens", "38.5B"], "run", "max_tokens", 38_500_000_000),
        (["--trainer.devices", "2"], "trainer", "devices", 2),
        (["--trainer.devices", "auto"], "trainer", "devices", "auto"),
        (["--data.val.novels", "1984"], "data", "val", {"novels": "1984"}),
        (["--data.val.my-set.v2", "a"], "data", "val", {"my-set.v2": "a"}),
        (["--optim.lr-scale.gate=2"], "optim", "lr_scale", {"gate": 2.0}),
        (["--model.loops", "3", "--model.loops", "5"], "model", "loops", 5),
    ],
)
def test_a_word_gives_a_key_the_value_that_a_recipe_would(words, section, key, value):
    result = changed({}, *words)[section][key]
    assert result == value
    assert isinstance(result, type(value))


@pytest.mark.parametrize(
    ("recipe", "decay"),
    [
        ({}, ["matrices", "norms", "gains", "biases", "embeddings"]),
        ({"optim": {"decay": ["gains"]}}, ["gains", "embeddings"]),
    ],
)
def test_what_is_added_to_a_list_is_added_to_its_default(recipe, decay):
    assert changed(recipe, "--optim.decay+", "embeddings")["optim"]["decay"] == decay


@pytest.mark.parametrize(
    "key", ["run.dir", "run.branch_from", "data.path", "data.val.a"]
)
def test_a_tilde_is_the_home_folder_and_a_variable_refused_in_recipes_as_in_options(
    key, monkeypatch
):
    monkeypatch.setenv("HOME", "/home/me")
    section, *names = key.split(".")

    def value(path: str) -> dict[str, Any]:
        return reduce(lambda inner, name: {name: inner}, reversed(names), path)

    def out_of(option: str) -> Any:
        words = ["--ckpt-path=x"] * (not option.startswith("--ckpt-path")) + [option]
        return read_arguments(COMMANDS["ablate"], words).over({}).options

    assert changed({section: value("~/x")})[section] == value("/home/me/x")
    assert changed({}, f"--{key}=~/x")[section] == value("/home/me/x")
    assert out_of("--out=~/x").out == "/home/me/x"
    assert out_of("--ckpt-path=~/x").ckpt_path == "/home/me/x"
    assert split_name("mine=~/x") == ("mine", "/home/me/x")
    for refused in (
        lambda: changed({section: value("$HOME/x")}),
        lambda: changed({}, f"--{key}=$HOME/x"),
        lambda: out_of("--out=$HOME/x"),
        lambda: out_of("--ckpt-path=$HOME/x"),
    ):
        with pytest.raises(UserError, match=r"must be .*a path, without variables"):
            refused()


def test_an_option_that_is_given_another_value_is_noted_and_lists_and_mappings_are_not(
    capsys,
):
    changed({}, "--model.loops=3", "--model.loops=3", "--run.name=a", "--run.name", "b")
    assert capsys.readouterr().err == "note: --run.name is given twice: b replaces a\n"
    read_arguments(COMMANDS["flops"], ["--budget=80M", "--k=4", "--loops=3"]).over({})
    assert capsys.readouterr().err == "note: --loops 3 replaces --k 4\n"
    changed({}, "--config=y", "--optim={lr: 1}", "--optim={eps: 1}", "--data.val.a=b")
    changed({}, "--optim.decay+=embeddings", "--optim.decay+=conditioning")
    read_arguments(
        COMMANDS["prepare"], ["--source", "a", "--source", "b", "--out=x"]
    ).over({})
    assert capsys.readouterr().err == ""


def test_an_entry_of_a_mapping_is_added_and_the_mapping_itself_replaced():
    recipe = {"data": {"val": {"a": "a.txt"}, "workers": 1}}
    added = changed(recipe, "--data.val.b", "b.txt")
    assert added == {"data": {"val": {"a": "a.txt", "b": "b.txt"}, "workers": 1}}
    replaced = changed(recipe, "--data.val", "{b: b.txt}")
    assert replaced == {"data": {"val": {"b": "b.txt"}, "workers": 1}}
    assert recipe == {"data": {"val": {"a": "a.txt"}, "workers": 1}}
    recipe = {"trainer": {"logger": {"class_path": "x.Y"}}}
    assert changed(recipe, "--trainer.logger=null") == {"trainer": {"logger": None}}


def test_a_validation_set_may_have_dots_in_its_name_beside_others():
    recipe = {"data": {"val": {"c4.en": "a", "c4.de": "b"}}}
    words = ("--data.val.c4.en=c", "--data.val.c4.fr", "d")
    sets = changed(recipe, *words)["data"]["val"]
    assert sets == {"c4.en": "c", "c4.de": "b", "c4.fr": "d"}


def test_a_section_given_as_one_mapping_merges_with_the_recipes():
    recipe = {"optim": {"lr": 1e-3, "warmup_steps": 20}, "run": {"max_tokens": 100}}
    words = ("--optim", "{lr: 3e-3, betas: [0.9, 0.99]}", "--run={name: x}")
    assert changed(recipe, *words) == {
        "optim": {"lr": 3e-3, "warmup_steps": 20, "betas": (0.9, 0.99)},
        "run": {"max_tokens": 100, "name": "x"},
    }


def test_a_section_is_read_from_a_file_as_if_its_mapping_were_given(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("optim.yaml").write_text("lr: 3e-3  # tuned\nbetas: [0.9, 0.99]\n")
    recipe = {"optim": {"lr": 1e-3, "warmup_steps": 20}}
    found = changed(recipe, "--optim", "optim.yaml", "--optim.lr_end=1e-5")
    assert found == {
        "optim": {"lr": 3e-3, "warmup_steps": 20, "betas": (0.9, 0.99), "lr_end": 1e-5}
    }
    Path("val.yaml").write_text("val: {a: a.txt}")
    words = read_arguments(
        COMMANDS["validate"], ["--ckpt-path", "x", "--data=val.yaml"]
    )
    assert words.keys_named("data.val", {}) == {"a"}


@pytest.mark.parametrize(
    "values", [["-h"], ["-h", "b"], ["-c"], ["a", "b"], ["-", "", "b"]]
)
def test_a_value_may_begin_with_a_dash_but_not_with_two(values):
    words = ["--prompt", *values, "--stop", *values[:1]]
    options = (
        read_arguments(COMMANDS["generate"], ["--ckpt-path", "x", *words])
        .over({})
        .options
    )
    assert (options.prompt, options.stop) == (tuple(values), tuple(values[:1]))
    with pytest.raises(SystemExit):
        read_arguments(COMMANDS["generate"], ["--prompt", "a", "-h"])


def test_runs_may_stand_between_options():
    words = ["a", "--baseline", "b", "c", "--own-classes", "d", "--out=x", "e"]
    options = read_arguments(COMMANDS["compare"], words).over({}).options
    assert options.runs == ("a", "c", "d", "e")
    assert (options.baseline, options.own_classes, options.out) == (("b",), True, "x")


def test_a_name_after_one_dash_is_an_option_and_other_text_the_value_of_a_letter():
    words = ["-config", "a", "-ckpt-path=b", "-cd", "-ccc.yaml", "-c", "e"]
    joined = ["--config=a", "--ckpt-path=b", "-c=d", "-c=cc.yaml", "-c=e"]
    assert join_values(words, parser_of(COMMANDS["fit"])) == joined


def test_an_option_is_written_once_for_each_of_its_values():
    words = ["--prompt", "-h", "b", "--greedy", "--stop=-"]
    joined = ["--prompt=-h", "--prompt=b", "--greedy", "--stop=-"]
    assert join_values(words, parser_of(COMMANDS["generate"])) == joined


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_option_is_shown_with_hyphens_and_may_be_written_with_underscores(
    command,
):
    parser = parser_of(command)
    own = {
        o for name, o in parser.options().items() if len(name) > 1 and "." not in name
    }
    for option in own - {"--seed_everything"}:
        assert "_" not in option
        assert join_values([f"--{option[2:].replace('-', '_')}=a_b"], parser) == [
            f"{option}=a_b"
        ]


@pytest.mark.parametrize(
    "words",
    [
        ["--data.val.a.b=x"],
        ["--data.val", "{a.b: x}"],
        ["--data", "{val: {a.b: x}, workers: 1}"],
        [],
    ],
)
def test_keys_are_given_by_recipes_and_words_of_any_form(words):
    found = read_arguments(COMMANDS["validate"], ["--ckpt-path", "x", *words])
    recipe = {} if words else {"data": {"val": {"a.b": "x"}}}
    assert found.keys_named("data.val", recipe) == {"a.b"}
    assert found.keys_named("model", recipe) == set()


# Overrides: a word for each, the same in options, files and results


PERMILLE = st.integers(0, 1000).map(lambda n: n / 1000)
FIELDS = {
    "loops": st.integers(1, 99),
    "gates": st.one_of(st.tuples(PERMILLE, PERMILLE), st.just(SHUFFLED)),
    "halting": PERMILLE,
    "skip": PERMILLE,
    "kv_slots": st.integers(1, 9),
    "experts": st.integers(1, 9) | st.just(RANDOM),
}


@st.composite
def interventions(draw: st.DrawFn) -> Intervention:
    """Any intervention, in any layers, or gates of a class of tokens."""
    names = draw(st.sets(st.sampled_from(sorted(FIELDS))))
    chosen = {name: draw(FIELDS[name]) for name in names}
    excluding = {"loops", "halting", "skip", "kv_slots"}
    if names.isdisjoint(excluding) and names != {"gates"} and draw(st.booleans()):
        chosen["held"] = draw(st.integers(1, 9))
    if SHUFFLED in chosen.values() or RANDOM in chosen.values():
        chosen.pop("kv_slots", None)
        chosen["seed"] = draw(st.integers(0, 99))
    elif names == {"gates"}:
        chosen["tokens"] = draw(st.sampled_from([None, "verbs", "random-as-verbs:3"]))
    if chosen:
        layers = draw(st.none() | st.sets(st.integers(0, 30), min_size=1))
        chosen["layers"] = layers and tuple(sorted(layers))
    return Intervention(**chosen)


@given(interventions(), st.randoms())
def test_the_name_of_an_intervention_gives_it_back_in_any_order(change, order):
    words = change.name.split()
    order.shuffle(words)
    for written in ([change.name], words):
        assert (parse(written) or Intervention()) == change


@pytest.mark.parametrize(
    ("section", "name", "kind"),
    [("run", "rank_timeout", "number"), ("run", "save_every", "whole number")],
)
@pytest.mark.parametrize("text", ["0x10", "1:30", "0b11"])
def test_a_text_that_is_a_number_only_in_yaml_1_1_is_refused(section, name, kind, text):
    line = f"{section}.{name} must be a {kind}, not '{text}'"
    with pytest.raises(UserError, match=line):
        changed({}, f"--{section}.{name}", text)
    with pytest.raises(UserError, match=line):
        changed({section: {name: text}})


def test_another_parser_reads_values_in_its_own_way():
    theirs, ours = ArgumentParser(), Parser()
    for parser in (theirs, ours):
        parser.add_argument("--x", type=Any)
    values = {"0x10": (16, "0x10"), "1:30": (90, "1:30"), "5e-4": (5e-4, 5e-4)}
    for text, expected in values.items():
        words = [f"--x={text}"]
        assert (theirs.parse_args(words).x, ours.read({}, words).x) == expected
