"""The configurations of a sweep: equal FLOPs, named where they cannot be."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath_cli.base.errors import UserError
from dualpath_cli.compare.sweep.cells import Grid, SweepCell, solve_cells
from dualpath_cli.flops.count import mean_layer_flops, parameters_non_embedding
from dualpath_cli.spec.config import ModelConfig

SMALL = ModelConfig(
    vocab_size=4096,
    n_layers=4,
    d_model=64,
    n_heads=2,
    n_kv_heads=2,
    max_seq_len=256,
    d_ffn=64,
    d_ffn_wide=64,
    ffn_multiple_of=64,
)


def wanted(**changes: Any) -> Grid:
    plain: dict[str, Any] = {
        "budgets": [600_000],
        "alphas": [25, 50, 75],
        "loops": [2, 4],
        "controls": ("wide", "loop", "expanded"),
    }
    return Grid(**plain | changes)


def model_of(cell: SweepCell, backbone: ModelConfig = SMALL) -> ModelConfig:
    return replace(backbone, **{**cell.shape, **cell.model})


def flops(cell: SweepCell, part: str) -> float:
    """FLOPs of all layers for a token, by the counts that `fit` prints."""
    model = model_of(cell)
    return mean_layer_flops(model)[part] * model.n_layers


@settings(max_examples=60)
@given(
    budget=st.integers(300_000, 10_000_000),
    alphas=st.lists(st.integers(1, 99), min_size=1, max_size=3, unique=True),
    loops=st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True),
    total=st.booleans(),
)
def test_every_cell_is_within_a_percent_of_the_budget_or_named(
    budget, alphas, loops, total
):
    match = "total" if total else "linear"
    asked = wanted(budgets=[budget], alphas=alphas, loops=loops, match=match)
    cells, notes = solve_cells(asked, SMALL)
    # of attention scores, one pass of a token
    passes = 2 * SMALL.max_seq_len * SMALL.d_model
    for cell in cells:
        model = model_of(cell)
        per_layer = mean_layer_flops(model)
        spent, due = per_layer["linear_total"] * cell.layers_times, budget
        if total:
            spent += per_layer["attention_scores"]
            due += (max(loops) + 1) * passes
        if cell.layers_times == 1:
            assert cell.spent == pytest.approx(spent / due)
        named = any(note.startswith(f"{cell.name} spends") for note in notes)
        assert (abs(cell.spent - 1) <= 0.01) != named
    duals = {f"a{a}_k{k}" for a in alphas for k in loops}
    names = {cell.name for cell in cells}
    left_out = {note.split()[0] for note in notes if "is not possible" in note}
    assert duals - names == left_out & duals
    assert len({cell.model["ffn_multiple_of"] for cell in cells}) == 1


def test_controls_spend_what_the_dual_ones_spend():
    cells = {cell.name: cell for cell in solve_cells(wanted(), SMALL)[0]}
    duals = [f"a{alpha}_k{k}" for alpha in (25, 50, 75) for k in (2, 4)]
    loops, expanded = ["loop_k2", "loop_k4"], ["expanded_k2", "expanded_k4"]
    assert list(cells) == ["wide", *loops, *duals, *expanded]

    for cell in cells.values():
        assert flops(cell, "linear_total") == pytest.approx(4 * 600_000, rel=0.01)
    wide, expanded = model_of(cells["wide"]), model_of(cells["expanded_k4"])
    assert (expanded.n_layers, expanded.block) == (16, "wide")
    sizes = [parameters_non_embedding(model) for model in (wide, expanded)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.01)


def test_a_control_more_may_make_the_widths_of_all_cells_finer():
    """So it can end a sweep in the folder of one without it."""
    for controls, multiple in ((["wide"], 8), (["wide", "expanded"], 2)):
        asked = wanted(alphas=[], loops=[4], controls=controls)
        (wide, *_), _ = solve_cells(asked, SMALL)
        assert wide.model["ffn_multiple_of"] == multiple


@given(
    layers=st.integers(1, 7),
    injection=st.sampled_from(["none", "add", "linear"]),
    total=st.booleans(),
)
def test_a_core_is_the_middle_half_at_equal_flops_and_at_equal_parameters(
    layers, injection, total
):
    backbone = replace(SMALL, n_layers=layers)
    match = "total" if total else "linear"
    asked = wanted(alphas=[], controls=["wide", "core"], match=match)
    found, notes = solve_cells(asked, backbone, [{"injection": injection}])
    assert not notes
    wide, *cores = ((cell, model_of(cell, backbone)) for cell in found)
    names = [cell.name for cell, _ in cores]
    assert names == ["core_r2", "core_r4", "core_r2_params", "core_r4_params"]

    for cell, model in cores:
        before, core, behind = model.stretches
        assert 0 <= len(core) - len(before) - len(behind) <= 1
        assert 0 <= len(behind) - len(before) <= 1
        assert model.core_loops == int(cell.name[6])
        part = mean_layer_flops(model)
        spent = part["linear_total"] + total * part["attention_scores"]
        due = 600_000 + total * 5 * 2 * 256 * 64
        assert cell.spent == pytest.approx(spent / due)
        if "params" in cell.name:
            # but for the gains of later repetitions, and the injection
            own = len(core) * (model.core_loops - 1)
            own += 2 * 64**2 * (injection == "linear")
            size = parameters_non_embedding(model) - own
            assert size == parameters_non_embedding(wide[1])
        else:
            assert cell.spent == pytest.approx(1, abs=0.01)


@given(
    loops=st.integers(2, 4),
    total=st.booleans(),
    shapes=st.lists(
        st.fixed_dictionaries(
            {
                "core": st.sampled_from([None, [0, 0], [1, 2], [0, 3]]),
                "core_loops": st.integers(1, 4),
                "injection": st.sampled_from(["none", "linear"]),
                "step_kv": st.sampled_from(["own", "first"]),
                "deep_ffn": st.booleans(),
            }
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_widths_are_solved_for_each_value_that_changes_flops(loops, total, shapes):
    match = "total" if total else "linear"
    asked = wanted(
        budgets=[2_000_000], alphas=[50], loops=[loops], controls=["wide"], match=match
    )
    cells, notes = solve_cells(asked, SMALL, shapes)
    assert len({cell.title for cell in cells}) == len(cells)
    for cell in cells:
        part = mean_layer_flops(model_of(cell))
        spent = part["linear_total"] + total * part["attention_scores"]
        due = 2_000_000 + total * (loops + 1) * 2 * 256 * 64
        assert cell.spent == pytest.approx(spent / due)
        named = any(note.startswith(f"{cell.title} spends") for note in notes)
        assert (abs(cell.spent - 1) <= 0.01) != named


def test_a_sweep_of_what_cannot_be_is_refused_with_a_way_out():
    with pytest.raises(
        UserError, match=r"no configuration is possible: .*a50_k4.* would do"
    ):
        solve_cells(
            wanted(budgets=[10_000], alphas=[50], loops=[4], controls=[]), SMALL
        )


@given(
    budget=st.integers(500_000, 4_000_000),
    layers=st.integers(2, 6),
    gqa=st.booleans(),
    total=st.booleans(),
)
def test_places_of_one_deep_path_cost_the_same(budget, layers, gqa, total):
    backbone = replace(SMALL, n_layers=layers, n_kv_heads=1 if gqa else 2)
    asked = wanted(
        budgets=[budget],
        controls=["wide", "loop"],
        positions=True,
        match="total" if total else "linear",
    )
    cells, _ = solve_cells(asked, backbone)
    families: dict[str, set[tuple[float, int]]] = {}
    for cell in cells:
        model = model_of(cell, backbone)
        part = mean_layer_flops(model)
        spent = part["linear_total"] + total * (part["attention_scores"])
        due = budget + total * 5 * 2 * 256 * 64
        if part["linear_total"] > 600_000:  # narrower ones cannot always come so near
            assert spent == pytest.approx(due, rel=0.011), cell.name
        name, _, place = cell.name.partition("_layer")
        deep = [n for n, kind in enumerate(model.block_kinds) if kind != "wide"]
        assert deep == ([] if cell.name == "wide" else [int(place)])
        families.setdefault(name, set()).add(
            (sum(part.values()), parameters_non_embedding(model))
        )

    assert all(len(its) == 1 for its in families.values())


def test_odd_budgets_are_taken_as_they_are_and_no_control_has_one_loop():
    cells = solve_cells(wanted(budgets=[1_000_001], loops=[1, 2, 3]), SMALL)[0]
    assert {cell.budget for cell in cells} == {1_000_001}, "also where layers divide it"
    assert not {"loop_k1", "expanded_k1"} & {cell.name for cell in cells}
