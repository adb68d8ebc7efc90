"""What the words of `dualpath sweep` mean, and what mistakes in them are told."""

import pytest

from dualpath_cli.errors import UserError
from dualpath_cli.sweep.command import _shared
from tests.sweep.conftest import asked


def test_lists_are_separated_by_commas_and_each_value_counts_once(tmp_path):
    wanted = asked(
        tmp_path, "--budget", "100K,0.2M", "--alphas", "12.5, 50,50%", "--loops", "4,2"
    ).wanted
    assert wanted.budgets == [100_000, 200_000]
    assert wanted.alphas == [12.5, 50]
    assert wanted.loops == [4, 2]
    assert wanted.controls == ["wide", "loop"]
    assert asked(tmp_path, "--controls", "none").wanted.controls == []
    assert asked(tmp_path, "--alphas", "none").wanted.alphas == []
    assert list(asked(tmp_path, "--seeds", "3").seeds) == [0, 1, 2]
    assert list(asked(tmp_path, "--seeds", "2-4").seeds) == [2, 3, 4]
    assert asked(tmp_path, "--match", "linear,total").wanted.matches == ["linear", "total"]


def test_settings_are_recipe_values(tmp_path):
    words = ["--set", "optim.decay=[matrices],[matrices, gains]", "--set", "model.gain_init=-7,-2"]
    words += ["--set", "model.gate=convex", "--set", "model.gate=fixed,convex"]
    words += ["--set", "run.compile=false"]  # of no numbers: in all runs alike
    request = asked(tmp_path, *words)
    assert request.recipe["run"]["compile"] is False
    assert request.varied == {
        "optim.decay": [["matrices"], ["matrices", "gains"]],
        "model.gain_init": [-7, -2],
        "model.gate": ["convex", "fixed"],
    }


def test_rates_are_sorted_default_or_off(tmp_path):
    assert asked(tmp_path).tune is None
    assert asked(tmp_path, "--tune", "off").tune == []
    assert asked(tmp_path, "--tune", "4e-3,1e-3").tune == [1e-3, 4e-3]
    known = asked(tmp_path, "--tune", "wide=4e-3, dual=1e-3")
    assert (known.tune, known.known_rates) == ([], {"wide": 4e-3, "dual": 1e-3})


NUMBERS = ("--budget", "--alphas", "--loops", "--seeds", "--jobs", "--tflops", "--tune-tokens")


@pytest.mark.parametrize("value", ["0", "-1", "nan", "many"])
@pytest.mark.parametrize("option", [*NUMBERS, "--tune", "--set optim.lr"])
def test_a_number_that_cannot_be_is_named_with_its_option(option, value, tmp_path):
    name, _, key = option.partition(" ")
    with pytest.raises(UserError) as mistake:
        asked(tmp_path, name, f"{key}={value}" if key else value)
    assert str(mistake.value).startswith(option)
    assert f"'{value}'" in str(mistake.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--budget", ""], "--budget is missing"),
        (["--alphas", "25,,50"], "--alphas needs values separated by commas, not '25,,50'"),
        (["--alphas", "100"], "--alphas are percents below 100, not '100'"),
        (["--controls", "wied"], "--controls: 'wied' is none; did you mean 'wide'?"),
        (["--match", "both"], "--match 'both' is none; choose from linear, total"),
        (["--seeds", "1000"], "--seeds must be a whole number from 1 to 100, not '1000'"),
        (["--experts", "0,-4"], "--experts are whole numbers such as 8, or 0 for none, not '-4'"),
        (["--set", "model.top_k=1,2"], "--set model.top_k: the sweep decides it"),
        (["--seeds", "4-2"], "or the first and the last such as 3-5, below 100, not '4-2'"),
        (["--controls", "wide,none"], "--controls none leaves all out: give none alone, not"),
        (["--set", "optim.decay=matrices,norms"], "in brackets, such as optim.decay=[matrices,no"),
        (["--tune", "1e-3,none"], "such as wide=4e-3,dual=2e-3, not 'none'"),
        (["--tune", "1e-3,1.0000001e-3"], "--tune gives 0.001 and 0.0010000001, which agree in"),
        (["--tune", "wide=1,deul=2"], "--tune: 'deul' is no family; did you mean 'dual'?"),
        (["--tune", "wide=1e-3,wide=2e-3"], "--tune gives 'wide' two rates; leave one"),
        (["--set", "optim.lr=1e-3", "--tune", "1e-3,2e-3"], "--tune chooses optim.lr, which --set"),
        (["--set", "model.gate="], "--set needs KEY=A,B,..."),
        (["--set", "seed_everything=1"], "--set seed_everything: the sweep decides it"),
        (["--set", "model.gates=fixed"], "no key 'model.gates' in a recipe; did you mean"),
        (["--set", "trainer.devices=1,2"], "--set trainer.devices: it decides no numbers of a run"),
        (["--set", "data.path=a,b"], "--set data.path: runs that read other data cannot be comp"),
        (["--set", "optim.lr=1e-3,null"], "--set optim.lr must be a number above 0, not 'null'"),
    ],
)
def test_mistakes_are_one_line_that_names_the_value(words, said, tmp_path):
    with pytest.raises(UserError) as mistake:
        asked(tmp_path, *words)
    assert said in str(mistake.value)
    assert "\n" not in str(mistake.value)


def test_out_must_not_be_below_a_file(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UserError, match=f"--out '{file}/sweep': '{file}' is a file; give a folder"):
        asked(tmp_path, "--out", f"{file}/sweep")


def test_a_recipe_of_a_branch_or_without_validation_sets_is_refused(tmp_path):
    wanted = asked(tmp_path, run={"branch_from": "runs/long"})
    with pytest.raises(UserError, match=r"the recipe has run\.branch_from, but a sweep"):
        _shared(wanted)
    with pytest.raises(UserError, match="the recipe has no validation sets"):
        asked(tmp_path, data={"val": {}})
