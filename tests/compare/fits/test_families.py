"""Which configurations are a family, and which families have no law."""

from pathlib import Path

import numpy as np
import pytest

from dualpath_cli.compare.configurations import group_runs
from dualpath_cli.compare.finished import read_finished_runs
from dualpath_cli.compare.fits.families import (
    ScalingFamily,
    families_of,
    refusal,
    unidentified,
)
from tests.compare.fits.law_runs import write_law_runs
from tests.compare.run_folders import model_of, write_run


def families(folder: Path, counted="non_embedding") -> dict[str, ScalingFamily]:
    runs, _ = read_finished_runs([str(folder)])
    return {family.name: family for family in families_of(group_runs(runs), counted)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Four kinds of models, only to be read."""
    made = tmp_path_factory.mktemp("made") / "every"
    return write_law_runs(made, ("wide", "core_r4", "loop_k2", "a50_k2"), seeds=1)


@pytest.fixture(scope="module")
def every(folder) -> dict[str, ScalingFamily]:
    return families(folder)


def test_members_differ_in_size_tokens_and_loops_and_pure_wide_is_also_one_loop(every):
    assert {name: len(its.configurations) for name, its in every.items()} == {
        "wide": 9,
        "core": 18,
        "loop": 18,
        "dual α 50": 9,
    }
    for name, recipe in (("core", "core_r4"), ("loop", "loop_k2")):
        kinds = {c.name.split("_", 1)[1][:4] for c in every[name].configurations}
        assert kinds == {"wide", recipe[:4]}


def test_models_without_a_budget_grow_in_depth_within_their_family(tmp_path):
    for n_layers in (4, 6, 8):
        model = model_of("wide") | {"n_layers": n_layers}
        name = f"layers_{n_layers}"
        no_budget = {"run": {"budget": None}}
        write_run(tmp_path / name, model, {"novels": 2.0}, cell=name, **no_budget)
    (family,) = families(tmp_path).values()
    assert family.name == "wide"
    assert [c.layers for c in family.configurations] == [4, 6, 8]


def test_the_runs_of_a_law_at_best_rates_are_those_of_all_rates(tmp_path):
    for n, lr in enumerate((1e-3, 2e-3, 4e-3)):
        for seed in range(2 + (n < 2)):  # the third seed lacks a rate, and counts not
            folder = tmp_path / f"{n}_{seed}"
            scores = {"novels": 2 + 0.1 * (n - 1) ** 2}
            write_run(folder, model_of("wide"), scores, seed=seed, optim={"lr": lr})
    runs, _ = read_finished_runs([str(tmp_path)])
    (family,) = families_of(group_runs(runs, best=True), "all")
    (wide,) = family.configurations
    assert (len(wide.seeds), family.runs) == (2, 6)


def test_untied_steps_are_not_loops_so_pure_wide_does_not_join_them(tmp_path):
    untied = {"model": {"untied_steps": True}}
    folder = write_law_runs(
        tmp_path, ["wide", "loop_k2"], budgets=[150_000], seeds=1, **untied
    )
    sizes = {name: len(its.configurations) for name, its in families(folder).items()}
    assert sizes == {"wide": 3, "loop": 3}


def test_pure_wide_with_experts_does_not_join_loops_which_have_none(tmp_path):
    write_law_runs(tmp_path, ["wide", "loop_k2"], budgets=[150_000], steps=[20])
    sparse = {"model": {"n_experts": 2}}
    write_law_runs(tmp_path, ["wide"], budgets=[150_000], steps=[40], **sparse)
    joined = families(tmp_path)["loop"].configurations
    assert {c.name for c in joined} == {"f150k_wide-20", "f150k_loop_k2-20"}


def test_only_loops_that_differ_within_a_family_make_phi_one_of_its_values(every):
    assert [name for name, its in every.items() if "phi" in its.fitted] == [
        "core",
        "loop",
    ]


def test_cells_have_parameters_in_millions_tokens_in_billions_and_flops_of_runs(
    folder, every
):
    with_embedding = families(folder, "all")["core"]
    without = every["core"]
    for n, c in enumerate(without.configurations):
        model = c.all_runs[0].settings.model
        both = 2 * model.vocab_size * model.d_model
        assert with_embedding.cells.sizes[n].sum() == pytest.approx(c.parameters / 1e6)
        less = with_embedding.cells.sizes[n] - without.cells.sizes[n]
        assert less == pytest.approx([both / 1e6, 0])
        assert without.cells.tokens[n] == c.tokens / 1e9
    # attention scores, and gradients of all passes: more than 6 N D
    applied = without.cells.sizes @ without.cells.times + both / 2e6
    flops = 6e15 * applied * without.cells.tokens
    assert (without.flops > flops).all()
    assert without.flops == pytest.approx(flops, rel=0.4)
    assert (np.diff(without.flops) >= 0).all()


def test_another_setting_makes_another_family_which_names_the_setting(tmp_path):
    write_law_runs(tmp_path / "one", ["wide"], seeds=1)
    clipped = {"optim": {"clip": 0.5}}
    write_law_runs(tmp_path / "other", ["wide"], seeds=1, **clipped)
    runs, _ = read_finished_runs([str(tmp_path / "one"), str(tmp_path / "other")])
    found = families_of(group_runs(runs), "all")
    assert {family.name for family in found} == {"wide clip=0.5", "wide clip=1.0"}
    assert [len(family.configurations) for family in found] == [9, 9]


def test_families_with_and_without_a_repeated_core_have_two_names(tmp_path):
    write_law_runs(tmp_path, ["loop_k2"], budgets=[150_000], steps=[20])
    core = {"model": {"core": [1, 2], "core_loops": 4}}
    write_law_runs(tmp_path, ["loop_k2"], budgets=[150_000], steps=[40], **core)
    assert list(families(tmp_path)) == ["loop", "loop core"]


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        (lambda n, d: n <= 1, "it has 3 configurations, and a fit of 5 values needs 6"),
        (lambda n, d: n < 4, "it has 2 numbers of parameters, too few to fit E, A"),
        (lambda n, d: d < 60, "it has 2 numbers of training tokens, too few to fit"),
        (lambda n, d: True, ""),
    ],
)
def test_runs_that_vary_too_little_are_refused(every, chosen, reason):
    wide = every["wide"]
    kept = [
        chosen(round(size), round(tokens))
        for size, tokens in zip(
            wide.cells.sizes[:, 0] / wide.cells.sizes.min(),
            20 * wide.cells.tokens / wide.cells.tokens.min(),
            strict=True,
        )
    ]
    assert refusal(wide.take(np.array(kept))).startswith(reason)
    assert bool(refusal(wide.take(np.array(kept)))) == bool(reason)


def test_tokens_that_follow_from_parameters_are_refused(every):
    wide = every["wide"]
    ratio = wide.cells.tokens / wide.cells.sizes[:, 0]
    tied = wide.take(np.abs(np.log(ratio / np.median(ratio))) < 0.1)
    assert len(tied.configurations) == 3
    repeated = ScalingFamily(
        "tied",
        tied.configurations * 3,
        wide.cells.take(np.tile([0, 4, 8], 3)),
        np.tile(wide.flops[[0, 4, 8]], 3),
    )
    assert unidentified(repeated).startswith("its tokens follow from its parameters")
