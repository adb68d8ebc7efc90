"""What the words of `dualpath sweep` mean."""

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
