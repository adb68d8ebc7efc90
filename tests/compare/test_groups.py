"""Runs sorted into configurations and groups, parts of a budget, and what these say of models."""

import dataclasses
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from dualpath_cli.compare.groups import Configuration, Group, groups_of
from dualpath_cli.compare.runs import TrainedRun, read_run
from dualpath_cli.compare.tables import group_tables
from dualpath_cli.config import ModelConfig
from dualpath_cli.errors import UserError
from dualpath_cli.flops.count import flops_by_layer
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.run.run_folder import read_recipe
from dualpath_cli.sweep.cells import Wanted, solve
from dualpath_cli.system import format_csv, read_csv
from tests.compare.run_folders import BATCH, BUDGET, CELLS, STEPS, model_of, write_run, write_sweep

BACKBONE = ModelConfig(**model_of("dual"))
SCORES = {"novels": 2.0, "peps": 2.5}


def all_of(folder: Path) -> list[TrainedRun]:
    runs = [read_run(path.parent) for path in sorted(folder.rglob("recipe.yaml"))]
    assert all(isinstance(run, TrainedRun) for run in runs)
    return runs


def by_name(group: Group) -> dict[str, Configuration]:
    return {c.name: c for c in group.configurations}


def headings_of(group: Group) -> list[str]:
    return [column.heading for column in group_tables(group)[0].columns]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Group:
    folder = write_sweep(tmp_path_factory.mktemp("made") / "sweep", CELLS)
    (group,) = groups_of(all_of(folder))
    return group


def test_a_configuration_is_all_runs_that_differ_in_their_seed_alone(sweep):
    assert [c.name for c in sweep.configurations] == list(CELLS)
    assert {c.seeds for c in sweep.configurations} == {(0, 1, 2)}
    wide = by_name(sweep)["wide"]
    values = [run.scores["novels"] for run in wide.runs]
    assert wide.mean("novels") == pytest.approx(sum(values) / 3)
    spread = sum((value - sum(values) / 3) ** 2 for value in values) / 2
    assert wide.standard_error("novels") == pytest.approx((spread / 3) ** 0.5)


def test_families_alpha_k_and_lines_of_one_alpha_come_from_the_model(sweep):
    lines: dict[str, set[str]] = {}
    for name, c in by_name(sweep).items():
        cell = CELLS[name]
        assert c.family == cell["block"]
        assert c.loops == (None if name == "wide" else cell["loops"])
        if c.family == "dual":
            lines.setdefault(c.line, set()).add(name)
            # Widths in steps of 4 leave the share within two points.
            assert c.alpha == pytest.approx(cell["alpha"], abs=2)
            assert c.flops_linear == pytest.approx(600_000, rel=0.02)
        else:
            assert c.alpha is None
        assert c.flops_total > c.flops_linear
    assert sorted(map(sorted, lines.values())) == [
        [f"a{alpha}_k{k}" for k in (2, 3, 4)] for alpha in (25, 50, 75)
    ]


def test_a_deeper_wide_model_is_expanded_and_counts_all_its_layers(tmp_path):
    shallow, deep = model_of("wide"), model_of("wide", budget=300_000) | {"n_layers": 8}
    write_run(tmp_path / "a", shallow, SCORES)
    # A third of a budget, thrice, lacks one FLOP of it.
    write_run(tmp_path / "b", deep, SCORES, cell="expanded_k2", run={"budget": 599_999})
    (group,) = groups_of(all_of(tmp_path))
    assert group.name.startswith("budget 600K, ")
    wide, expanded = group.configurations
    assert (wide.family, expanded.family, expanded.layers) == ("wide", "expanded", 8)
    assert expanded.flops_linear == pytest.approx(wide.flops_linear, rel=0.02)
    assert group.baselines == (wide,)


def test_budgets_and_amounts_of_training_are_groups(tmp_path):
    models = {budget: model_of("wide", budget=budget) for budget in (300_000, 600_000)}
    for budget, model in models.items():
        write_run(tmp_path / f"{budget}", model, SCORES, run={"budget": budget})
    short = {"run": {"max_tokens": 20 * BATCH}}
    write_run(tmp_path / "short", models[600_000], SCORES, steps=20, **short)
    groups = groups_of(all_of(tmp_path))
    tokens = f"{STEPS * BATCH:,} tokens"
    names = [f"budget 300K, {tokens}", f"budget 600K, {20 * BATCH:,} tokens",
             f"budget 600K, {tokens}"]  # fmt: skip
    assert [group.name for group in groups] == names


def test_runs_of_any_length_are_one_group_with_tokens_and_hours(tmp_path):
    write_run(tmp_path / "short", model_of("dual", 2), SCORES, cell="a50_k2")
    long = {"run": {"max_tokens": 60 * BATCH}}
    for name, changes in {"wide": {}, "wide-long": {"steps": 60} | long}.items():
        write_run(tmp_path / name, model_of("wide"), SCORES, cell=name, **changes)
    runs = all_of(tmp_path)
    assert len(groups_of(runs)) == 2
    (group,) = groups_of(runs, ["wide-long"], any_length=True)
    assert group.baselines == (by_name(group)["wide-long"],)
    lengths = {c.name: c.tokens // BATCH for c in group.configurations}
    assert lengths == {"wide": STEPS, "wide-long": 60, "a50_k2": STEPS}
    for c in group.configurations:
        assert c.hours == pytest.approx(c.tokens / c.runs[0].tokens_per_second / 3600)
    assert "hours" in headings_of(group)
    assert "hours" not in headings_of(groups_of(runs)[0])


def test_a_schedule_of_loops_has_its_own_flops_in_training_and_its_own_speed(tmp_path):
    """Half of its steps have one loop, at twice the speed: three quarters of the time."""
    model = model_of("dual", 4)
    half = {"run": {"loop_schedule": [[0, 1], [0.5, 4]]}}
    write_run(tmp_path / "plain", model, SCORES, cell="a50_k4", speed=4000)
    folder = write_run(tmp_path / "half", model, SCORES, cell="a50_k4-half", speed=4000, **half)
    rows = read_csv(folder / "metrics.csv")
    faster = [row | {"tokens_per_second": "8000"} for row in rows[:2]] + rows[2:]
    (folder / "metrics.csv").write_text(format_csv(faster))
    (group,) = groups_of(all_of(tmp_path))
    plain, half = by_name(group)["a50_k4"], by_name(group)["a50_k4-half"]
    one_loop = sum(layer.total for layer in flops_by_layer(ModelConfig(**model | {"loops": 1})))
    assert plain.flops_trained == plain.flops_total == half.flops_total
    assert half.flops_trained == pytest.approx((one_loop / 4 + plain.flops_total) / 2)
    assert half.seconds_per_token == pytest.approx(0.75 * plain.seconds_per_token)
    table = group_tables(group)[0]
    assert "trained\nFLOPs" in headings_of(group)
    assert "compute is not equal here" in table.caption
    alone = dataclasses.replace(group, configurations=(plain,))
    assert "trained\nFLOPs" not in headings_of(alone)


def test_loops_that_the_router_makes_are_those_last_logged_of_looped_layers(tmp_path):
    write_run(tmp_path / "a", model_of("wide"), SCORES, cell="wide", expected_loops=("", ""))
    for seed, loops in enumerate([(1.0, 2.0), (2.0, 3.0), ()]):
        write_run(tmp_path / f"b{seed}", model_of("loop", 4), SCORES, cell="loop_k4", seed=seed,
                  expected_loops=("", *loops) if loops else ())  # fmt: skip
    runs = all_of(tmp_path)
    (group,) = groups_of(runs)
    loops = {c.name: c.expected_loops for c in group.configurations}
    assert loops == {"wide": None, "loop_k4": 2.0}
    place = headings_of(group).index("loops")
    assert [row[place].text for row in group_tables(group)[0].cells()] == ["", "2.00"]
    (alone,) = groups_of([run for run in runs if run.settings.run.recipe == "wide"])
    assert "loops" not in headings_of(alone)


def test_configurations_of_one_recipe_go_by_their_run_and_those_of_two_sweeps_by_the_sweep(
    tmp_path,
):
    write_run(tmp_path / "a", model_of("wide"), SCORES, cell="tiny", run={"name": "wide"})
    write_run(tmp_path / "b", model_of("loop", 2), SCORES, cell="tiny", run={"name": "loop"})
    for sweep, lr in (("low", 1e-3), ("high", 4e-3)):
        for seed in (0, 1):
            path = tmp_path / "sweeps" / sweep / f"runs/wide/seed_{seed}"
            write_run(path, model_of("wide"), SCORES, cell="wide", seed=seed, optim={"lr": lr})
    write_run(tmp_path / "sweeps/high/c", model_of("loop", 3), SCORES, cell="loop_k3")
    (group,) = groups_of(all_of(tmp_path), ["loop_k3"])
    names = ["high/wide", "loop_k3", "low/wide", "tiny/loop", "tiny/wide"]
    assert sorted(by_name(group)) == names


def test_the_same_run_twice_is_refused(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, model_of("wide"), SCORES, seed=7)
    with pytest.raises(UserError, match=r"a and .*b are the same configuration with seed 7"):
        groups_of(all_of(tmp_path))


def test_of_several_wide_models_the_one_that_is_called_so(tmp_path):
    for name, lr in {"wide-lr_1": 0.001, "wide_b": 0.002, "f600k_wide": 0.003}.items():
        write_run(tmp_path / name, model_of("wide"), SCORES, cell=name, optim={"lr": lr})
    runs = all_of(tmp_path)
    (group,) = groups_of(runs)
    assert group.wide is by_name(group)["f600k_wide"]
    (group,) = groups_of([run for run in runs if run.settings.run.recipe != "f600k_wide"])
    assert (group.baselines, group.wide) == ((), None)
    assert "no tests: 2 PureWide, wide-lr_1, wide_b; --baseline NAMES" in group.note


def write_seeds(
    folder: Path, model: dict[str, Any], cell: str, optim: dict[str, float] | None = None
) -> None:
    """Two runs of a configuration."""
    for seed in (0, 1):
        write_run(folder / cell / f"{seed}", model, {"novels": 2.0 + seed}, cell=cell, seed=seed,
                  optim=optim or {})  # fmt: skip


def write_matched(folder: Path, budget: str = "") -> list[TrainedRun]:
    """Runs of a sweep that was matched in linear and in total FLOPs."""
    wanted = Wanted([BUDGET], [50], [2, 4], ["wide", "loop"], ["linear", "total"])
    for cell in solve(wanted, BACKBONE)[0]:
        write_seeds(folder / "runs", {**asdict(BACKBONE), **cell.model}, budget + cell.name)
    return all_of(folder)


def test_each_kind_of_matching_has_its_own_pure_wide_and_line_of_an_alpha(tmp_path):
    linear, total = groups_of(write_matched(tmp_path))
    assert linear.name.endswith("equal linear FLOPs")
    for group, end in ((linear, ""), (total, "_total")):
        names = [f"{name}{end}" for name in ("wide", "loop_k2", "loop_k4", "a50_k2")]
        assert [c.name for c in group.configurations] == [*names, "a50_k4"]
        assert [c.name for c in group.baselines] == names[:1]
        assert len({c.line for c in group.configurations if c.family == "dual"}) == 1


def test_training_with_fewer_loops_is_not_of_equal_total_flops(tmp_path):
    write_matched(tmp_path)
    (folder,) = (tmp_path / "runs").glob("a50_k4/0")
    for part, equal in ((0.01, True), (0.5, False)):
        model = settings_from(read_recipe(folder)).as_recipe()["model"]
        cell, run = f"a50_k4-{part}", {"loop_schedule": [[0, 1], [part, 4]]}
        write_run(tmp_path / "runs" / cell / "0", model, {"novels": 3.0}, cell=cell, run=run)
        linear, total = groups_of(all_of(tmp_path))
        assert cell in {c.name for c in linear.configurations}
        assert (cell in {c.name for c in total.configurations}) == equal


def test_what_was_matched_in_total_flops_stands_for_its_like_there(tmp_path):
    """Where few loops are all there are, also PureWide of equal linear FLOPs is within 2 %."""
    for cell in ("wide", "wide_total", "loop_k2", "loop_k2_total", "a50_k2"):
        kind = {"w": "wide", "l": "loop", "a": "dual"}[cell[0]]
        model = model_of(kind, 1 if kind == "wide" else 2)
        if cell.endswith("_total"):
            width = "d_ffn_wide" if kind == "wide" else "d_ffn"
            model[width] += 4
        write_seeds(tmp_path, model, cell)
    linear, total = groups_of(all_of(tmp_path))
    assert [c.name for c in linear.configurations] == ["wide", "loop_k2", "a50_k2"]
    names = [c.name for c in total.configurations]
    assert not {"wide", "loop_k2"} & set(names)
    assert {"wide_total", "loop_k2_total"} <= set(names)
    assert [c.name for c in total.baselines] == ["wide_total"]


def test_two_sweeps_in_folders_with_hyphens_keep_their_total_tables(tmp_path):
    for sweep, init in (("sweep-1", -7.0), ("sweep-2", -2.0)):
        for cell in ("wide", "wide_total", "a50_k4"):
            kind = "dual" if cell == "a50_k4" else "wide"
            model = model_of(kind, 4 if kind == "dual" else 1) | {"gain_init": init}
            model["d_ffn_wide"] += 400 * (cell == "wide_total")
            write_seeds(tmp_path / sweep / "runs", model, cell)
    runs = [run for n in (1, 2) for run in all_of(tmp_path / f"sweep-{n}")]
    names = [[c.name for c in group.baselines] for group in groups_of(runs)]
    assert names == [["sweep-1/wide"], ["sweep-2/wide"], ["sweep-1/wide_total"],
                     ["sweep-2/wide_total"]]  # fmt: skip


def test_a_setting_that_is_varied_everywhere_makes_a_part_of_each_value(tmp_path):
    for init in (-7.0, -2.0):
        for kind in ("wide", "dual"):
            name = f"{kind}-gain_init_{init:g}"
            model = model_of(kind, 2 if kind == "dual" else 1) | {"gain_init": init}
            write_seeds(tmp_path, model, name, {"lr": 1e-3 if kind == "wide" else 2e-3})
    groups = groups_of(all_of(tmp_path))
    members = {g.name.rpartition(", ")[2]: [c.name for c in g.configurations] for g in groups}
    assert members == {
        "gain_init -7.0": ["wide-gain_init_-7", "dual-gain_init_-7"],
        "gain_init -2.0": ["wide-gain_init_-2", "dual-gain_init_-2"],
    }
    (group,) = groups_of(all_of(tmp_path), ["wide-gain_init_-7"])
    assert len(group.configurations) == 4, "a baseline that is chosen is that of all"


def test_models_with_experts_stand_beside_the_dense_pure_wide_of_their_settings(tmp_path):
    for gain in (-7, -2):
        for experts in (0, 8):
            name = f"wide{f'_e{experts}' if experts else ''}-gain_init_{gain}"
            model = model_of("wide") | {"gain_init": gain, "n_experts": experts}
            write_seeds(tmp_path, model, name)
    groups = groups_of(all_of(tmp_path))
    for group, gain in zip(groups, (-2, -7), strict=True):
        names = [f"{cell}-gain_init_{gain}" for cell in ("wide", "wide_e8")]
        assert [c.name for c in group.configurations] == names
        assert [c.name for c in group.baselines] == names[:1]


def test_a_setting_of_dual_blocks_alone_leaves_them_beside_the_one_pure_wide(tmp_path):
    write_seeds(tmp_path, model_of("wide"), "wide")
    for gate in ("two_gates", "convex"):
        write_seeds(tmp_path, model_of("dual", 2) | {"gate": gate}, f"dual-gate_{gate}")
    (group,) = groups_of(all_of(tmp_path))
    assert len(group.configurations) == 3


def test_a_baseline_may_be_named_without_its_budget(tmp_path):
    runs = write_matched(tmp_path, budget="f600k_")
    linear, total = groups_of(runs, ["loop_k2", "f600k_wide", "wide"])
    assert [c.name for c in linear.baselines] == ["f600k_loop_k2", "f600k_wide"]
    assert linear.wide is linear.baselines[1]
    assert total.baselines == ()
    assert total.note.startswith("no tests against 'loop_k2', 'f600k_wide', 'wide': there is none")
