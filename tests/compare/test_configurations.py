"""Which runs can be compared, what is read of them, and the configurations and groups
they make."""

import dataclasses
import json
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dualpath_cli.base.errors import UserError
from dualpath_cli.compare import runs
from dualpath_cli.compare.baselines import groups_of
from dualpath_cli.compare.configurations import (
    Configuration,
    Group,
    different_keys,
)
from dualpath_cli.compare.runs import (
    AGGREGATE,
    TrainedRun,
    check_same_data,
    find_folders,
    read_trained_run,
)
from dualpath_cli.compare.tables import group_tables
from dualpath_cli.flops.count import total_flops
from dualpath_cli.recipe.recipes import load_recipe
from dualpath_cli.report.table import format_csv
from dualpath_cli.run.tables import read_csv
from dualpath_cli.spec.config import ModelConfig
from tests.compare.run_folders import (
    BATCH,
    CELLS,
    STEPS,
    configuration,
    model_of,
    write_run,
    write_sweep,
)
from tests.flops.paper import CONFIGURATIONS

WIDE = model_of("wide")
SCORES = {"novels": 2.0, "peps": 2.5}


def written(folder: Path, **changes) -> TrainedRun:
    run = read_trained_run(write_run(folder, WIDE, SCORES, **changes))
    assert isinstance(run, TrainedRun)
    return run


def test_scores_are_those_of_the_last_step_and_no_pause_moves_the_speed(tmp_path):
    folder = write_run(tmp_path / "run", WIDE, SCORES, seed=3)
    text = (folder / "metrics.csv").read_text().replace("4000.0", "3.0", 1)
    (folder / "metrics.csv").write_text(text)
    run = read_trained_run(folder)
    assert run.scores == {AGGREGATE: 2.25, "novels": 2.0, "peps": 2.5}
    assert (run.seed, run.tokens_per_second) == (3, 4000)
    assert run.curve[-1] == (
        STEPS * BATCH,
        8 * STEPS**-0.3 + 2.25,
        STEPS * BATCH / 4000 / 3600,
    )


def test_a_run_that_is_not_at_its_end_says_how_far_it_is(tmp_path):
    assert (
        read_trained_run(write_run(tmp_path / "a", WIDE, SCORES, steps=20))
        == "step 20 of 40"
    )
    assert (
        read_trained_run(write_run(tmp_path / "b", WIDE, SCORES, steps=0))
        == "step 0 of 40"
    )
    # Trained to its end, and not yet scored on all sets.
    folder = write_run(tmp_path / "c", WIDE, SCORES)
    lines = (folder / "validation.csv").read_text().splitlines(keepends=True)
    kept = [line for line in lines if f"{STEPS * BATCH},p" not in line]
    (folder / "validation.csv").write_text("".join(kept))
    assert (
        read_trained_run(folder) == "step 40 of 40: validation.csv has no row of peps"
    )


def test_a_long_curve_becomes_means_of_as_many_rows(tmp_path):
    """Also of fewer, where training left an interval out."""
    folder = write_run(tmp_path / "run", WIDE, SCORES)
    rows = 10 * runs.MOST_POINTS + 3
    losses = {1: math.nan}
    text = "".join(
        f"{n},{n},{losses.get(n, n % 2)},1,{3600 * n}\n" for n in range(1, rows + 1)
    )
    (folder / "metrics.csv").write_text(
        f"step,tokens,loss,tokens_per_second,seconds\n{text}"
    )
    run = read_trained_run(folder)
    assert isinstance(run, TrainedRun)
    assert len(run.curve) == 183  # of 11 rows
    assert run.curve[:2] == ((11.0, 5 / 10, 11.0), (22.0, 5 / 11, 22.0))
    assert run.curve[-1][0] == rows


def test_intervals_that_training_left_out_are_no_points_of_the_curve(tmp_path):
    folder = write_run(tmp_path / "run", model_of("wide"), {"novels": 2.0})
    metrics = folder / "metrics.csv"
    lines = metrics.read_text().splitlines()
    column = lines[0].split(",").index("loss")
    for left_out in (1, len(lines) - 1):  # one, then all
        for n in range(1, 1 + left_out):
            cells = lines[n].split(",")
            lines[n] = ",".join([*cells[:column], "nan", *cells[column + 1 :]])
        metrics.write_text("\n".join(lines) + "\n")
        assert len(read_trained_run(folder).curve) == len(lines) - 1 - left_out


def test_runs_are_found_alone_in_a_sweep_and_as_fit_lays_them_out(tmp_path):
    paths = [tmp_path / "sweep/runs/a50_k4/seed_0", tmp_path / "sweep/runs/wide/seed_0"]
    other = tmp_path / "all/tiny/default"
    for path in (*paths, other):
        write_run(path, WIDE, SCORES)
    (tmp_path / "sweep/recipes").mkdir()
    assert find_folders([str(tmp_path / "sweep")]) == paths
    assert find_folders([str(tmp_path / "all")]) == [other]
    assert find_folders([str(tmp_path / "all/tiny")]) == [other]
    assert find_folders([str(paths[1]), str(tmp_path / "sweep")]) == [
        paths[1],
        paths[0],
    ]


def test_runs_are_found_at_both_depths_and_none_inside_of_another(tmp_path):
    runs = [tmp_path / name for name in ("a", "b", "old/c")]
    for path in (*runs, tmp_path / "a/export"):
        write_run(path, WIDE, SCORES)

    write_run(tmp_path / "looped", WIDE, SCORES)
    (tmp_path / "looped/config.json").write_text('{"model_type": "dualpath"}')
    assert find_folders([str(tmp_path)]) == runs


def test_names_places_and_ways_of_running_make_no_other_configuration(tmp_path):
    one = written(tmp_path / "a")
    same = written(
        tmp_path / "b",
        cell="other",
        seed=9,
        run={
            "dir": "elsewhere",
            "log_every": 5,
            "save_every": 5,
            "compile": False,
            "micro_batch": 1,
        },
        data={"workers": 0},
        trainer={"callbacks": [], "logger": {"class_path": "CSVLogger"}},
    )
    assert one.key_values == same.key_values
    freeze = {"class_path": "my.Freeze"}
    others: dict[str, dict[str, Any]] = {
        "c": {"optim": {"lr": 0.01}},
        "d": {"model": {"gain_init": -2.0}},
        "e": {"trainer": {"precision": "bf16-mixed"}},
        "f": {"run": {"batch_tokens": 2 * BATCH, "max_tokens": 2 * STEPS * BATCH}},
        "g": {"trainer": {"callbacks": freeze}},
        "h": {"trainer": {"plugins": freeze}},
    }
    for name, changes in others.items():
        assert written(tmp_path / name, **changes).key_values != one.key_values
    in_a_list = written(tmp_path / "i", trainer={"callbacks": [freeze]})
    assert in_a_list.key_values == read_trained_run(tmp_path / "g").key_values
    facts = {"data_fingerprint": "f00d", "classes": {"my.Gate": "its source"}}
    (tmp_path / "b/versions.json").write_text(json.dumps(facts))
    own_class = read_trained_run(tmp_path / "b")
    assert isinstance(own_class, TrainedRun)
    assert own_class.key_values != one.key_values


def test_a_name_can_be_given_in_a_pair_whatever_tells_configurations_apart(tmp_path):
    write_run(tmp_path / "a", WIDE, SCORES, seed=0)
    write_run(
        tmp_path / "b", WIDE, SCORES, seed=0, trainer={"callbacks": [{"a": 1, "b": 2}]}
    )
    (group,) = groups_of(all_of(tmp_path))
    assert len(group.configurations) == 2
    assert not any(set(c.name) & set(",:") for c in group.configurations)


def test_runs_that_differ_only_in_keys_without_effect_are_one_configuration(tmp_path):
    """PureWide has no gate, and no learning rate of one."""
    gates = {"optim": {"lr_scale": {"gate": 2.0}}}
    write_run(tmp_path / "a", WIDE, SCORES, seed=0)
    write_run(tmp_path / "b", WIDE | {"gate": "convex"}, SCORES, seed=1, **gates)
    (group,) = groups_of(all_of(tmp_path))
    (wide,) = group.configurations
    assert (wide.name, wide.seeds) == ("wide", (0, 1))

    dual = model_of("dual", 2)
    write_run(tmp_path / "c", dual, SCORES, cell="c")
    write_run(tmp_path / "d", dual | {"gate": "convex"}, SCORES, cell="d")
    (group,) = groups_of(all_of(tmp_path))
    assert list(by_name(group)) == ["wide", "c", "d"]


@pytest.mark.parametrize(
    ("key", "model"),
    [
        ("injection", WIDE | {"core": [1, 2], "core_loops": 1}),
        ("combination", model_of("dual", 1)),
    ],
)
def test_a_key_of_loops_that_only_steps_run_tells_configurations_apart(
    key, model, tmp_path
):
    """Steps draw one or four loops, and the model has one."""
    values = {"injection": ("none", "add"), "combination": ("final", "mean")}[key]
    for drawn, count in (([1, 4], 2), ([1], 1)):
        folder = tmp_path / str(len(drawn))
        changes = {"run": {"train_loops": drawn}}
        for seed, value in enumerate(values):
            own = model | {key: value}
            cell = value if count == 2 else "same"
            write_run(folder / value, own, SCORES, cell=cell, seed=seed, **changes)
        (group,) = groups_of(all_of(folder))
        assert len(group.configurations) == count


def test_configurations_that_differ_only_in_the_loops_of_steps_have_two_names(
    tmp_path,
):
    """The draws, and all that they change, have no effect on the one without."""
    model = model_of("dual", 1) | {"combination": "mean"}
    for seed, drawn in enumerate([None, [1, 4]]):
        run = {"train_loops": drawn}
        folder = tmp_path / f"sweep_{seed}" / "runs"
        write_run(folder, model, SCORES, cell="same", seed=seed, run=run)
    (group,) = groups_of(all_of(tmp_path))
    one, other = group.configurations
    assert one.name != other.name


@pytest.mark.parametrize(
    ("short", "name"), [(32, "32-true"), (64, "64-true"), ("bf16", "bf16-mixed")]
)
def test_two_spellings_of_a_precision_are_one_configuration(short, name, tmp_path):
    one, other = (
        written(tmp_path / str(spelling), trainer={"precision": spelling})
        for spelling in (short, name)
    )
    assert one.key_values == other.key_values


def test_two_models_differ_only_in_keys_that_have_an_effect_on_both(tmp_path):
    wide = written(tmp_path / "wide")
    gated = model_of("dual", 2) | {"gate": "convex"}
    dual = read_trained_run(write_run(tmp_path / "dual", gated, SCORES))
    assert isinstance(dual, TrainedRun)
    different = different_keys(wide, dual)
    assert "model.block" in different
    assert "model.gate" not in different


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {"val": {"novels": "other/corpus.jsonl"}}}, "validation sets"),
        (
            {"data": {"val": {"novels": {"path": "novels.jsonl", "field": "content"}}}},
            r"validation sets .*novels=novels\.jsonl, .* there, "
            r".*novels\.jsonl, field content",
        ),
        ({"data": {"val_tokens": 1000}}, "data.val_tokens None there, 1000 here"),
        ({"data": {"val_seed": 5}}, "data.val_seed 0 there, 5 here"),
        ({"fingerprint": "beef"}, "training data f00d there, beef here"),
        ({"fingerprint": None}, "training data f00d there, not known here"),
        ({"tokenizer": "{ }"}, "tokenizer 44136fa355b3 there, 257c1be96ae6 here"),
    ],
)
def test_runs_that_read_other_data_are_refused_and_both_named(tmp_path, changes, said):
    one, other = written(tmp_path / "one"), written(tmp_path / "other", **changes)
    moved = {name: f"/elsewhere/{name}.jsonl" for name in SCORES}
    same = written(tmp_path / "moved", data={"val": moved})
    with pytest.raises(UserError, match=said) as refusal:
        check_same_data([one, same, other])
    assert str(tmp_path / "one") in str(refusal.value)
    assert str(tmp_path / "other") in str(refusal.value)


def test_a_run_that_went_on_with_other_data_is_not_compared_with_one_that_began_on_them(
    tmp_path,
):
    one = written(tmp_path / "one")
    folder = write_run(tmp_path / "other", WIDE, SCORES, fingerprint="beef")
    facts = {"data_fingerprint": "f00d", "data_since": 20}
    (folder / "versions-00000020.json").write_text(json.dumps(facts))
    other = read_trained_run(folder)
    assert isinstance(other, TrainedRun)
    with pytest.raises(UserError, match="first step on these data 0 there, 20 here"):
        check_same_data([one, other])


def test_a_continued_run_is_scored_on_the_sets_of_its_newest_part(tmp_path):
    folder = write_run(tmp_path / "run", WIDE, SCORES)
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    recipe["data"] |= {"val": {"peps": "texts/peps.jsonl"}, "val_tokens": 500}
    recipe["run"]["log_every"] = 5  # of its rows from step 30 on
    (folder / "recipe-00000030.yaml").write_text(yaml.safe_dump(recipe))
    run = read_trained_run(folder)
    assert isinstance(run, TrainedRun)
    assert run.scores == {AGGREGATE: 2.5, "peps": 2.5}
    assert run.data["validation sets"] == "peps=peps.jsonl"
    assert run.data["data.val_tokens"] == "500"
    assert run.settings.run.log_every == 10
    assert run.lost == (f"{folder / 'metrics.csv'} lacks rows of step 35",)


@pytest.mark.parametrize(("longer", "refused"), [(3e-4, True), (3e-5, False)])
def test_texts_of_other_bytes_a_token_are_other_texts_and_digits_are_not(
    tmp_path, longer, refused
):
    one, other = (
        written(tmp_path / "a"),
        written(tmp_path / "b", nats_per_bit=2 * (1 + longer)),
    )
    said = r"bytes a token of novels 2\.8854 there, 2\.8863 here"
    with pytest.raises(UserError, match=said) if refused else nullcontext():
        check_same_data([one, other])


def test_numbers_that_are_none_are_named(tmp_path):
    folder = write_run(tmp_path / "run", WIDE, SCORES)
    table = folder / "validation.csv"
    table.write_text(table.read_text().replace(",5.0,2.5", ",5.0,nan"))
    with pytest.raises(
        UserError, match=r"validation.csv step 40: peps has nan bits per byte"
    ):
        read_trained_run(folder)


def all_of(folder: Path) -> list[TrainedRun]:
    runs = [
        read_trained_run(path.parent) for path in sorted(folder.rglob("recipe.yaml"))
    ]
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
    assert wide.standard_error("novels") == pytest.approx(
        np.std(values, ddof=1) / 3**0.5
    )


def test_families_alpha_and_k_come_from_the_model(sweep):
    for name, c in by_name(sweep).items():
        cell = CELLS[name]
        assert c.family == cell["block"]
        assert c.loops == (None if name == "wide" else cell["loops"])
        if c.family == "dual":
            # Widths in steps of 4 leave the share within two points.
            assert c.alpha == pytest.approx(cell["alpha"], abs=2)
            assert c.flops_linear == pytest.approx(600_000, rel=0.02)
        else:
            assert c.alpha is None
        assert c.flops_total > c.flops_linear


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
    assert expanded.flops_trained == expanded.flops_total > expanded.flops_linear
    assert group.baselines == (wide,)


def test_without_a_budget_no_model_is_another_one_expanded(tmp_path):
    for n_layers in (4, 8):
        model = model_of("wide") | {"n_layers": n_layers}
        cell = f"layers_{n_layers}"
        write_run(tmp_path / cell, model, SCORES, cell=cell, run={"budget": None})
    (group,) = groups_of(all_of(tmp_path))
    shallow, deep = group.configurations
    assert (shallow.family, deep.family) == ("wide", "wide")
    # each over its own layers
    assert shallow.flops_linear == deep.flops_linear


@pytest.mark.parametrize("alpha", [12.5, 25, 37.5, 50, 75, 90])
@pytest.mark.parametrize("off", [-1, -0.6, 0, 0.4, 1])
def test_solved_widths_that_miss_alpha_by_up_to_a_point_have_one_share(alpha, off):
    missed = configuration("dual", {}, configured_alpha=alpha + off)
    assert missed.share == alpha


def test_the_papers_dual_models_are_called_by_the_alpha_of_their_recipes(tmp_path):
    """Also those whose effective widths have three points more, as F80M a25 K4."""
    duals = [row for row in CONFIGURATIONS if row.block == "dual"]
    for row in duals:
        model = load_recipe(row.recipe)["model"]
        budget = {"run": {"budget": row.budget}}
        write_run(tmp_path / row.recipe, model, SCORES, cell=row.recipe, **budget)

    groups = groups_of(all_of(tmp_path))
    found = {name: c.share for group in groups for name, c in by_name(group).items()}
    assert found == {row.recipe: row.alpha for row in duals}
    assert len(found) == 18
    widest = by_name(groups[0])["f80m_a25_k4"]
    assert widest.alpha == pytest.approx(28.17, abs=0.01)  # as tables have it


def test_a_repeated_core_is_a_family_with_columns_that_tell_models_apart(tmp_path):
    core = model_of("wide") | {"core": [1, 2], "core_loops": 3, "injection": "linear"}
    dual = model_of("dual", 2) | {"step_kv": "first", "untied_steps": True}
    trains_last = {"run": {"backprop_loops": 1}}
    write_run(tmp_path / "a", WIDE, SCORES)
    write_run(tmp_path / "b", core, SCORES, cell="core_r3_params")
    write_run(tmp_path / "c", core, SCORES, cell="last", **trains_last)
    write_run(tmp_path / "d", dual, SCORES, cell="a50_k2")
    reads_out = {"run": {"loop_losses": 0.5}}
    write_run(tmp_path / "e", core, SCORES, cell="reads_out", **reads_out)
    (group,) = groups_of(all_of(tmp_path))
    found = by_name(group)

    own = found["core_r3_params"]
    assert (own.family, own.core, own.core_loops) == ("core", "1-2 linear", 3)
    # the layers of a half twice more, and a matrix of (64, 128) twice
    wide = found["wide"]
    repeated = 2 * wide.flops_linear + 2 * 4 * 64**2 / 4
    assert own.flops_linear == pytest.approx(repeated, rel=1e-9)
    assert own.parameters == wide.parameters + 2 * 64**2 + 2 * 2
    assert own.kv_bytes == 2 * wide.kv_bytes

    # Two repetitions of two layers, and an injection, cost a third.
    untrained = (4 * wide.flops_total + 4 * 64**2) / 4
    last = found["last"]
    assert own.flops_trained == own.flops_total == last.flops_total
    assert last.flops_trained == pytest.approx(
        own.flops_total - 2 / 3 * untrained, rel=1e-9
    )
    # The head is left out; the coda, a layer of four, reads out two states more.
    assert found["reads_out"].flops_trained == pytest.approx(
        own.flops_total + 2 * wide.flops_total / 4, rel=1e-9
    )
    assert group.wide == wide
    assert found["a50_k2"].steps == "untied, first k/v"
    assert {"core", "R", "steps"} <= set(headings_of(group))


def test_runs_of_any_length_are_one_group_with_tokens_and_hours(tmp_path):
    write_run(tmp_path / "short", model_of("dual", 2), SCORES, cell="a50_k2")
    long = {"run": {"max_tokens": 60 * BATCH}}
    for name, changes in {"wide": {}, "wide-long": {"steps": 60} | long}.items():
        write_run(tmp_path / name, model_of("wide"), SCORES, cell=name, **changes)
    runs = all_of(tmp_path)
    tokens = f"{STEPS * BATCH:,} tokens", f"{60 * BATCH:,} tokens"
    assert [group.name for group in groups_of(runs)] == [
        f"budget 600K, {n}" for n in tokens
    ]
    (group,) = groups_of(runs, ["wide-long"], any_length=True)
    assert group.baselines == (by_name(group)["wide-long"],)
    lengths = {c.name: c.tokens // BATCH for c in group.configurations}
    assert lengths == {"wide": STEPS, "wide-long": 60, "a50_k2": STEPS}
    for c in group.configurations:
        assert c.hours == pytest.approx(c.tokens / c.runs[0].tokens_per_second / 3600)
    assert "training" in headings_of(group)
    assert "training" not in headings_of(groups_of(runs)[0])


def test_a_schedule_of_loops_has_its_own_flops_in_training_and_its_own_speed(tmp_path):
    """Half of its steps have one loop, at twice the speed: three quarters of the
    time."""
    model = model_of("dual", 4)
    half = {"run": {"loop_schedule": [[0, 1], [0.5, 4]]}}
    write_run(tmp_path / "plain", model, SCORES, cell="a50_k4", speed=4000)
    folder = write_run(
        tmp_path / "half", model, SCORES, cell="a50_k4-half", speed=4000, **half
    )
    rows = read_csv(folder / "metrics.csv")
    faster = [row | {"tokens_per_second": "8000"} for row in rows[:2]] + rows[2:]
    (folder / "metrics.csv").write_text(format_csv(faster))
    (group,) = groups_of(all_of(tmp_path))
    plain, half = by_name(group)["a50_k4"], by_name(group)["a50_k4-half"]
    one_loop = total_flops(ModelConfig(**model | {"loops": 1}))
    assert plain.flops_trained == plain.flops_total == half.flops_total
    assert half.flops_trained == pytest.approx((one_loop / 4 + plain.flops_total) / 2)
    assert half.seconds_per_token == pytest.approx(0.75 * plain.seconds_per_token)
    table = group_tables(group)[0]
    assert "trained\nFLOPs" in headings_of(group)
    assert "compute is not equal here" in table.caption
    alone = dataclasses.replace(group, configurations=(plain,))
    assert "trained\nFLOPs" not in headings_of(alone)


def test_loops_that_the_router_makes_are_those_last_logged_of_looped_layers(tmp_path):
    write_run(
        tmp_path / "a", model_of("wide"), SCORES, cell="wide", expected_loops=("", "")
    )
    for seed, loops in enumerate([(1.0, 2.0), (2.0, 3.0), ()]):
        write_run(
            tmp_path / f"b{seed}",
            model_of("loop", 4),
            SCORES,
            cell="loop_k4",
            seed=seed,
            expected_loops=("", *loops) if loops else (),
        )
    runs = all_of(tmp_path)
    (group,) = groups_of(runs)
    loops = {c.name: c.expected_loops for c in group.configurations}
    assert loops == {"wide": None, "loop_k4": 2.0}
    place = headings_of(group).index("loops")
    assert [row[place].text for row in group_tables(group)[0].cells()] == ["", "2.00"]
    (alone,) = groups_of([run for run in runs if run.settings.run.recipe == "wide"])
    assert "loops" not in headings_of(alone)


def test_configurations_of_one_recipe_go_by_their_run_or_the_keys_in_which_they_differ(
    tmp_path,
):
    write_run(
        tmp_path / "a", model_of("wide"), SCORES, cell="tiny", run={"name": "wide"}
    )
    write_run(
        tmp_path / "b", model_of("loop", 2), SCORES, cell="tiny", run={"name": "loop"}
    )
    for sweep, lr in (("low", 1e-3), ("high", 4e-3)):
        for seed in (0, 1):
            path = tmp_path / "sweeps" / sweep / f"runs/wide/seed_{seed}"
            write_run(
                path, model_of("wide"), SCORES, cell="wide", seed=seed, optim={"lr": lr}
            )
    write_run(tmp_path / "sweeps/high/c", model_of("loop", 3), SCORES, cell="loop_k3")
    (group,) = groups_of(all_of(tmp_path), ["loop_k3"])
    names = ["loop_k3", "tiny/loop", "tiny/wide", "wide lr=0.001", "wide lr=0.004"]
    assert sorted(by_name(group)) == names


def test_no_configuration_of_a_sweep_is_named_after_a_seed(tmp_path):
    """Two sweeps with seeds of their own."""
    for sweep, lr, seeds in (("low", 1e-3, (0, 1)), ("high", 4e-3, (2, 3))):
        for seed in seeds:
            path = tmp_path / sweep / f"runs/wide/seed_{seed}"
            write_run(path, WIDE, SCORES, cell="wide", seed=seed, optim={"lr": lr})
    (group,) = groups_of(all_of(tmp_path))
    assert sorted(by_name(group)) == ["wide lr=0.001", "wide lr=0.004"]


def test_a_baseline_is_a_value_in_which_blocks_differ_or_else_a_name(tmp_path):
    """PureWide has a gate in its recipe, which means nothing."""
    write_run(tmp_path / "wide", model_of("wide"), SCORES)
    for n, (gate, loops) in enumerate([("two_gates", 2), ("convex", 2), ("convex", 4)]):
        model = model_of("dual", loops) | {"gate": gate}
        write_run(tmp_path / f"{n}", model, SCORES, cell=f"a50_k{loops}-gate_{gate}")
    runs = all_of(tmp_path)
    expected = {
        "two_gates": ["a50_k2-gate_two_gates"],
        "convex": ["a50_k2-gate_convex", "a50_k4-gate_convex"],
        "loops=4": ["a50_k4-gate_convex"],
        "wide": ["wide"],
    }
    for word, names in expected.items():
        (group,) = groups_of(runs, [word])
        assert [c.name for c in group.baselines] == names
    with pytest.raises(UserError, match="no configuration 'fixed' for --baseline"):
        groups_of(runs, ["fixed"])


def test_of_several_wide_models_the_one_that_is_called_so(tmp_path):
    for name, lr in {"wide-lr_1": 0.001, "wide_b": 0.002, "f600k_wide": 0.003}.items():
        write_run(
            tmp_path / name, model_of("wide"), SCORES, cell=name, optim={"lr": lr}
        )
    runs = all_of(tmp_path)
    (group,) = groups_of(runs)
    assert group.wide is by_name(group)["f600k_wide"]
    (group,) = groups_of(
        [run for run in runs if run.settings.run.recipe != "f600k_wide"]
    )
    assert (group.baselines, group.wide) == ((), None)

    # Runs of one recipe are called after their own names.
    for name, lr in {"wide": 0.001, "wide_hot": 0.002}.items():
        own = {"run": {"name": name}, "optim": {"lr": lr}}
        write_run(tmp_path / "fit" / name, model_of("wide"), SCORES, cell="tiny", **own)
    (group,) = groups_of(all_of(tmp_path / "fit"))
    assert group.baselines == (by_name(group)["tiny/wide"],)


def test_a_table_that_lacks_the_baseline_has_no_tests(tmp_path):
    for budget in (300_000, 600_000):
        cell = f"f{budget // 1000}k_wide"
        model = model_of("wide", budget=budget)
        write_run(tmp_path / cell, model, SCORES, cell=cell, run={"budget": budget})
    dual = model_of("dual", budget=600_000)
    write_run(tmp_path / "dual", dual, SCORES, cell="dual", run={"budget": 600_000})
    small, large = groups_of(all_of(tmp_path), ["f600k_wide"])
    assert large.baselines == (large.wide,)
    assert small.baselines == ()
    assert (
        "no tests: no configuration of --baseline is" in group_tables(small)[0].caption
    )
    with pytest.raises(UserError, match="--pairs: 0 of 2 tables"):
        groups_of(all_of(tmp_path), pairs=[("dual", "f300k_wide")])
    small, large = groups_of(all_of(tmp_path), pairs=[("dual", "f600k_wide")])
    assert (
        "no tests: --pairs names configurations of another"
        in group_tables(small)[0].caption
    )
    assert "no tests" not in group_tables(large)[0].caption
