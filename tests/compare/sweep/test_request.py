"""What the words of `dualpath sweep` mean, and what it refuses before it writes anything."""

import json
from pathlib import Path

import pytest
import yaml

from dualpath_cli.cli.main import main
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.spec.own_checks import hashes
from tests.compare.sweep.conftest import asked, starts, write_recipe


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


def files(out: Path) -> dict[Path, bytes]:
    """All that a sweep has written."""
    return {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def test_a_sweep_that_is_refused_leaves_the_one_before_as_it_was(words, tmp_path, capsys):
    words = [*words, "--yes", "--seeds", "1", "--controls", "wide"]
    assert main(words) == 0
    before = files(tmp_path / "sweep")
    assert main([*words, "--budget", "110K"]) == 2
    assert "give this sweep another --out" in capsys.readouterr().err
    assert files(tmp_path / "sweep") == before


def test_no_seeds_are_added_to_runs_of_another_source(words, tmp_path, capsys):
    own = "tests.spec.custom_classes.MlpGate"
    words = [*words, "--yes", "--set", f"model.gate=two_gates,{own}"]
    words += ["--controls", "none"]
    assert main([*words, "--seeds", "1"]) == 0
    out = tmp_path / "sweep"
    run = out / "runs" / f"a50_k2-gate_{own}" / "seed_0"
    now = hashes(settings_from(yaml.safe_load((run / "recipe.yaml").read_text())).model)
    assert now.keys() == {own}
    (run / "versions.json").write_text(json.dumps({"classes": {own: "0" * 64}}))
    before = files(out)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"{run} was begun with another source of {own}, kept in" in said
    assert "restore this source or give this sweep another --out" in said
    assert files(out) == before
    (run / "versions.json").write_text(json.dumps({"classes": now}))
    assert main(words) == 0
    assert len(starts(out)) == 2 * 2


@pytest.mark.parametrize(
    ("varied", "said"),
    [
        ("run.batch_tokens=64,100", "a50_k2-batch_tokens_100: run.batch_tokens=100"),
        ("run.batch_tokens=64,48", "--run.micro_batch 1 fits"),
        ("optim.warmup_steps=2,10", "a50_k2-warmup_steps_10: optim.warmup_steps=10"),
    ],
)
def test_each_configuration_is_checked_before_anything_is_trained(
    varied, said, tmp_path, texts, capsys
):
    """The sweep writes nothing."""
    data = {"path": str(texts / "train"), "val": {"held_out": str(texts / "val.jsonl")}}
    recipe = write_recipe(tmp_path, data=data | {"max_epochs": None})
    out = tmp_path / "sweep"
    words = ["--config", str(recipe), "--out", str(out), "--budget", "100K", "--alphas", "50",
             "--loops", "2", "--controls", "none", "--seeds", "1", "--set", varied]  # fmt: skip
    assert main(["sweep", *words, "--slurm"]) == 2
    assert not out.exists()
    assert said in capsys.readouterr().err
