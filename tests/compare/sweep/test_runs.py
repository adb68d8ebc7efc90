"""What the words of `dualpath sweep` mean and refuse, and the recipes and the cost of
its runs."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dualpath_cli.base.errors import UserError
from dualpath_cli.cli.main import main
from dualpath_cli.compare.sweep import costs, runner
from dualpath_cli.compare.sweep.cells import solve_cells
from dualpath_cli.compare.sweep.command import check_different, shared_settings
from dualpath_cli.compare.sweep.plan import plan_runs, shapes_of
from dualpath_cli.compare.sweep.request import Design
from dualpath_cli.compare.sweep.runs import PlannedRun, write_recipes
from dualpath_cli.recipe import recipes
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.report.console import plain_console
from dualpath_cli.spec.own_checks import hashes
from tests.compare.sweep.conftest import SMALL, asked, starts, write_recipe
from tests.conftest import contents


def test_lists_are_separated_by_commas_and_each_value_counts_once(tmp_path):
    grid = asked(
        tmp_path, "--budget", "100K,0.2M", "--alphas", "12.5, 50,50%", "--loops", "4,2"
    ).grid
    assert grid.budgets == [100_000, 200_000]
    assert grid.alphas == [12.5, 50]
    assert grid.loops == [4, 2]
    assert grid.controls == ["wide", "loop"]
    assert asked(tmp_path, "--controls", "none").grid.controls == []
    assert asked(tmp_path, "--alphas", "none").grid.alphas == []
    assert list(asked(tmp_path, "--seeds", "3").seeds) == [0, 1, 2]
    assert list(asked(tmp_path, "--seeds", "2-4").seeds) == [2, 3, 4]


def test_settings_are_recipe_values(tmp_path):
    words = [
        "--set",
        "optim.decay=[matrices],[matrices, gains]",
        "--set",
        "model.gain_init=-7,-2",
    ]
    words += ["--set", "model.gate=convex", "--set", "model.gate=fixed,convex"]
    words += ["--set", "run.compile=false"]  # of no numbers: in all runs alike
    request = asked(tmp_path, *words)
    assert request.recipe["run"]["compile"] is False
    assert request.varied == {
        "optim.decay": [["matrices"], ["matrices", "gains"]],
        "model.gain_init": [-7, -2],
        "model.gate": ["convex", "fixed"],
    }


@pytest.mark.parametrize(
    "words", [("--set", "optim.lr=1%,2%"), ("--loops", "2,4%"), ("--alphas", "100%")]
)
def test_only_alphas_are_percents_and_a_rate_of_one_percent_is_not_one(words, tmp_path):
    with pytest.raises(UserError, match=r"--(set optim\.lr|loops|alphas) must be"):
        asked(tmp_path, *words)


def test_a_sweep_that_is_refused_leaves_the_one_before_as_it_was(
    words, tmp_path, capsys
):
    words = [*words, "--yes", "--seeds", "1", "--controls", "wide"]
    assert main(words) == 0
    before = contents(tmp_path / "sweep")
    assert main([*words, "--budget", "110K"]) == 2
    assert "give this sweep another --out" in capsys.readouterr().err
    assert contents(tmp_path / "sweep") == before


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
    before = contents(out)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"{run} was begun with another source of {own}, kept in" in said
    assert "restore this source or give this sweep another --out" in said
    assert contents(out) == before
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
    fixed = f"--config {recipe} --out {out} {SMALL} --controls none --seeds 1"
    words = [*fixed.split(), "--set", varied]
    assert main(["sweep", *words, "--slurm"]) == 2
    assert not out.exists()
    assert said in capsys.readouterr().err


def runs_for(design: Design) -> list[PlannedRun]:
    shared = shared_settings(design)
    cells, _ = solve_cells(design.grid, shared.model, shapes_of(design))
    return plan_runs(cells, design, shared)


def names_for(request: Design) -> list[str]:
    return list(dict.fromkeys(run.configuration for run in runs_for(request)))


NAMES = {
    "model.gate=two_gates,convex; model.combination=router,mean": [
        "wide",
        *(f"loop_k2-combination_{name}" for name in ("router", "mean")),
        *(
            f"a50_k2-gate_{gate}-combination_{name}"
            for gate in ("two_gates", "convex")
            for name in ("router", "mean")
        ),
    ],
    "run.loop_schedule=null,[[0,1],[0.5,2]]; --controls=wide": [
        "wide",
        "a50_k2-loop_schedule_null",
        "a50_k2-loop_schedule_0_1+0.5_2",
    ],
    "model.n_experts=0,4; model.top_k=1,2; optim.lr_scale.router=1,3": [
        "wide-n_experts_0",
        *(
            f"wide-n_experts_4-top_k_{k}-lr_scale_router_{scale}"
            for k in (1, 2)
            for scale in (1, 3)
        ),
        "loop_k2-lr_scale_router_1",
        "loop_k2-lr_scale_router_3",
        *(
            f"a50_k2-n_experts_{n}-lr_scale_router_{scale}"
            for n in ("0", "4-top_k_1", "4-top_k_2")
            for scale in (1, 3)
        ),
    ],
    "model.core=null,[0,1]; model.core_loops=1,2; model.injection=none,add": [
        f"{cell}-core_{core}"
        for cell in ("wide", "loop_k2", "a50_k2")
        for core in (
            "null",
            "0+1-core_loops_1",
            "0+1-core_loops_2-injection_none",
            "0+1-core_loops_2-injection_add",
        )
    ],
    "model.step_kv=own,first; model.untied_steps=false,true; model.core=[1,1]; "
    "--controls=core": [
        "core_r2",
        "core_r2_params",
        *(
            f"a50_k2-step_kv_{kv}-untied_steps_{untied}-core_1+1"
            for kv in ("own", "first")
            for untied in ("false", "true")
        ),
    ],
    "optim.lr_scale={gate: 0.5},{}; --controls=wide": [
        "wide",
        "a50_k2-lr_scale_gate_0.5",
        "a50_k2-lr_scale_",
    ],
    "optim.lr_scale={hidden: 2},{}; optim.base_width=16,32; --controls=wide": [
        f"{cell}-lr_scale_{scale}-base_width_{width}"
        for cell in ("wide", "a50_k2")
        for scale in ("hidden_2", "")
        for width in (16, 32)
    ],
}
"""The configurations of some words: what is `--set`, then other options."""


@pytest.mark.parametrize(("words", "names"), NAMES.items(), ids=NAMES)
def test_settings_multiply_where_they_make_a_difference(words, names, tmp_path):
    options = [
        part
        for word in words.split("; ")
        for part in (word.split("=") if word.startswith("--") else ("--set", word))
    ]
    assert names_for(asked(tmp_path, *options)) == names


def test_a_varied_entry_of_a_mapping_leaves_the_others(tmp_path):
    words = ["--set", "optim.lr_scale.gate=0.5,2", "--controls", "none"]
    runs = runs_for(asked(tmp_path, *words, optim={"lr_scale": {"head": 3}}))
    scales = [run.settings.optim.lr_scale for run in runs[:2]]
    assert scales == [{"head": 3, "gate": 0.5}, {"head": 3, "gate": 2}]


def test_an_expanded_model_has_no_steps_that_a_list_by_layer_could_untie(tmp_path):
    words = ["--controls", "expanded", "--seeds", "1"]
    untied = {"untied_steps": [True, False]}
    dual, expanded = runs_for(asked(tmp_path, *words, model=untied))
    assert dual.settings.model.untied_steps == [True, False]
    assert expanded.settings.model.n_layers == 4
    assert expanded.settings.model.untied_steps is False


def test_expanded_models_of_a_recipe_with_experts_by_layer_are_refused(tmp_path):
    words = ["--controls", "expanded", "--seeds", "1"]
    with pytest.raises(UserError, match="leave expanded out of --controls"):
        runs_for(asked(tmp_path, *words, model={"n_experts": [2, 0]}))


def test_values_that_would_have_one_name_are_refused(tmp_path):
    gates = ["--set", "model.gate=my gates.A,my_gates.A"]
    for words, name in (
        (gates, "a50_k2-gate_my_gates.A"),
        (["--alphas", "50.0000001,50"], "a50_k2"),
    ):
        message = f"2 configurations would have the name '{name}'"
        with pytest.raises(UserError, match=re.escape(message)):
            runs_for(asked(tmp_path, *words, "--controls", "none"))
    words = ["--set", "model.tie_embeddings=false", "--controls", "none"]
    assert names_for(asked(tmp_path, *words)) == ["a50_k2-tie_embeddings_false"]


def test_a_name_too_long_for_a_recipe_is_refused_with_a_way_out(tmp_path):
    words = ["--controls", "none", "--set", f"model.gate=convex,{'g' * 90}.G"]
    said = f"'a50_k2-gate_{'g' * 48}...' has 104 bytes, above 100; give --set fewer"
    with pytest.raises(UserError, match=re.escape(said)):
        runs_for(asked(tmp_path, *words))


def test_spellings_of_one_value_are_refused(tmp_path):
    as_many_steps = "run.max_tokens=640,650"
    settings = (
        "run.max_tokens=640,0.64K",
        as_many_steps,
        "optim.weight_decay=1,1.0",
        "trainer.precision=bf16,bf16-mixed",
    )
    same = ["--alphas", "50.01,50.02"]  # of equal widths
    for words in (*(["--set", varied] for varied in settings), same):
        words = [*words, "--controls", "none"]
        with pytest.raises(UserError, match="would be the same run twice; leave one"):
            check_different(runs_for(asked(tmp_path, *words)))
    words = [
        "--set",
        "run.max_tokens=640,704",
        "--set",
        "trainer.precision=32-true,bf16-mixed",
    ]
    runs = runs_for(asked(tmp_path, *words))
    check_different(runs)
    assert len(runs) == 2 * 3 * 4


def test_each_recipe_stands_alone(tmp_path):
    runs = runs_for(asked(tmp_path, "--set", "model.gain_init=-7,-2"))
    write_recipes(runs)
    assert (
        len({run.path for run in runs})
        == len({run.folder for run in runs})
        == len(runs)
        == 12
    )
    for run in runs:
        assert settings_from(recipes.load_recipe(str(run.path))) == run.settings
        assert run.settings.seed_everything == run.seed
        assert (
            run.folder
            == tmp_path / "sweep/runs" / run.configuration / f"seed_{run.seed}"
        )
        first = run.path.read_text().splitlines()[0]
        assert first.startswith(f"# {run.configuration}, seed {run.seed}: ")
    assert [run.seed for run in runs] == [0] * 6 + [1] * 6, (
        "the first seed of all comes first"
    )


def test_optimizers_and_rates_are_varied_and_the_other_rates_keep_their_ratio(tmp_path):
    words = ("--set", "optim.name=adamw,muon", "--set", "optim.lr=4e-3,8e-3")
    runs = runs_for(asked(tmp_path, *words, optim={"muon_lr": 2e-2}))
    optims = [run.settings.optim for run in runs]
    found = {(o.name, o.lr, o.lr_start, o.lr_end, o.muon_lr) for o in optims}
    rates = {(4e-3, 4e-5, 4e-4, 2e-2), (8e-3, 8e-5, 8e-4, 4e-2)}
    assert found == {(name, *its) for name in ("adamw", "muon") for its in rates}


def test_rates_that_are_not_varied_are_the_recipes_to_the_last_digit(tmp_path):
    runs = runs_for(asked(tmp_path, optim={"lr_end": 1.2345678e-5}))
    assert {run.settings.optim.lr_end for run in runs} == {1.2345678e-5}


def costs_of(
    tmp_path: Path, *words: str, **sections: Any
) -> dict[str, costs.ConfigurationCost]:
    runs = runs_for(asked(tmp_path, *words, **sections))
    return {row.configuration: row for row in costs.costs_of(runs, {"dual": 1e9})}


def test_the_plan_counts_as_fit_counts(tmp_path):
    rows = costs_of(tmp_path, "--controls", "wide,expanded")
    wide, dual, expanded = rows["wide"], rows["a50_k2"], rows["expanded_k2"]
    assert wide.relative == 1
    assert dual.relative is not None
    assert 0 < dual.relative < 1
    for row in rows.values():
        assert row.linear_flops == pytest.approx(100_000, rel=0.01)
        assert row.tokens == 640
        assert row.seeds == 2
    assert expanded.total_flops > wide.total_flops, "twice the layers attend twice"
    assert dual.hours == pytest.approx(dual.training_flops / 1e9 / 3600)
    assert wide.hours is None, "nothing is known of this family's speed"


def test_a_plan_takes_no_less_than_its_longest_run_for_any_number_of_jobs(tmp_path):
    words = ("--controls", "none", "--seeds", "1", "--set", "run.max_tokens=640,6400")
    runs = runs_for(asked(tmp_path, *words))
    rows = costs.costs_of(runs, {"dual": 1e6})
    short, long = [row.hours for row in rows]
    assert short is not None
    assert long is not None
    for jobs, hours in ((1, short + long), (2, long), (8, long)):
        said = f"in all {costs.hours_text(hours)}"
        assert said in costs.plan_table(rows, jobs).caption


def test_a_plan_tells_numbers_of_tokens_below_a_million_apart(tmp_path):
    words = ("--controls", "none", "--set", "run.max_tokens=122880,140800")
    table = costs.plan_table([*costs_of(tmp_path, *words).values()], 1)
    place = [column.heading for column in table.columns].index("tokens")
    assert [row[place].text for row in table.cells()] == ["122.9K", "140.8K"]


def test_experts_take_the_flops_of_the_dense_paths_that_they_replace(tmp_path):
    words = ["--budget", "400K", "--set", "model.n_experts=0,4"]
    rows = costs_of(tmp_path, *words, "--positions")
    names = [
        "wide",
        *(f"{cell}_layer{n}" for cell in ("loop_k2", "a50_k2") for n in (0, 1)),
    ]
    assert list(rows) == [f"{name}-n_experts_{n}" for name in names for n in (0, 4)]
    for dense, sparse in zip(*[iter(rows.values())] * 2, strict=True):
        assert sparse.linear_flops == pytest.approx(dense.linear_flops, rel=0.03)
        assert sparse.parameters > dense.parameters
        for row in (dense, sparse):
            assert row.spent == pytest.approx(row.linear_flops / 400_000, rel=1e-6)
            assert row.relative == row.parameters / rows["wide-n_experts_0"].parameters
    runs = runs_for(asked(tmp_path, "--budget", "400K", model={"n_experts": 4}))
    assert [run.settings.model.n_experts for run in runs[:3]] == [4, 0, 4], (
        "the recipe's"
    )
    with pytest.raises(
        UserError, match="top_k=2 experts of n_experts=1 cannot be chosen"
    ):
        runs_for(asked(tmp_path, "--set", "model.n_experts=1"))


def test_a_schedule_of_loops_costs_its_steps(tmp_path):
    """Four of ten steps have one loop."""
    words = ["--controls", "none", "--seeds", "1"]
    one, two = (
        costs_of(tmp_path, *words, run={"train_loops": [k]})["a50_k2"].training_flops
        for k in (1, 2)
    )
    cost = costs_of(tmp_path, *words, run={"loop_schedule": [[0, 1], [0.4, 2]]})[
        "a50_k2"
    ]
    assert cost.training_flops == pytest.approx(0.4 * one + 0.6 * two)


def test_a_gate_of_ones_own_is_solved_for(tmp_path):
    own = "tests.spec.custom_classes.MlpGate"
    row = costs_of(tmp_path, "--controls", "none", model={"gate": own})["a50_k2"]
    assert row.linear_flops == pytest.approx(100_000, rel=0.01)


def test_the_time_left_follows_from_the_flops_of_the_runs_that_ended(
    tmp_path, monkeypatch
):
    runs, now, out = runs_for(asked(tmp_path)), [0.0], io.StringIO()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    left = runner.SweepProgress(runs, plain_console(file=out))
    with left.bar:
        for n, run in enumerate(runs[:2]):
            now[0] += 600
            assert left.end(run, 600.0 * n, True) == f"{n + 1} of 6, after 10.0 min"
        now[0] += 60
        left.end(runs[2], 1200.0, False)  # failed before its first step
    for n, minutes in ((2, 10), (3, 11)):
        minutes *= sum(run.flops for run in runs[n:]) / runs[1].flops
        assert f"sweep: {n} of 6 runs, {minutes:.1f} min left\n" in out.getvalue()


@pytest.mark.parametrize(
    "log", [b"tokens\n9\n", b"step\nsix\n", b"tokens,step\n9\n", b"\xff\n"]
)
def test_a_run_with_a_damaged_log_has_none_of_its_steps_done(log, tmp_path):
    run = runs_for(asked(tmp_path))[0]
    run.folder.mkdir(parents=True)
    (run.folder / "metrics.csv").write_bytes(b"step\n5\n")
    assert run.share_done == 0.5
    (run.folder / "metrics.csv").write_bytes(log)
    assert run.share_done == 0


def test_jobs_that_share_a_gpu_are_not_side_by_side_and_want_one_each(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    (on_cpu, *_), (on_gpu, *_) = (
        runs_for(asked(tmp_path, trainer={"accelerator": name}))
        for name in ("cpu", "auto")
    )
    assert [runner.parallel_jobs(on_cpu, jobs) for jobs in (1, 8)] == [1, 8]
    assert [runner.parallel_jobs(on_gpu, jobs) for jobs in (1, 2, 8)] == [1, 2, 2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1a, MIG-2b,4,-1,5")
    assert runner.parallel_jobs(on_gpu, 8) == 3, "-1 ends the list"
    for none in ("", "-1", "-1,0", "NoDevFiles"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        assert runner.parallel_jobs(on_gpu, 8) == 8, "auto is then the CPU"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    two = runs_for(asked(tmp_path, trainer={"accelerator": "auto", "devices": 2}))[0]
    with pytest.raises(UserError, match=r"trainer\.devices is 2; take --jobs 1"):
        runner.check_sharing(two, 2)
    runner.check_sharing(two, 1)
    for one in ("auto", -1, 1, [0]):  # of the only one that a run then sees
        trainer = {"accelerator": "auto", "devices": one}
        runner.check_sharing(runs_for(asked(tmp_path, trainer=trainer))[0], 2)
