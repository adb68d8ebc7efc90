"""The configurations of a sweep: equal FLOPs, named where they cannot be."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dualpath_cli.base.errors import UserError
from dualpath_cli.compare.sweep.cells import CONTROLS, Cell, Wanted, solve
from dualpath_cli.flops.count import mean_layer_flops, parameters_non_embedding
from dualpath_cli.flops.paper import configurations
from dualpath_cli.spec.config import ModelConfig

SMALL = ModelConfig(
    vocab_size=4096, n_layers=4, d_model=64, n_heads=2, n_kv_heads=2, max_seq_len=256, d_ffn=64,
    d_ffn_wide=64, ffn_multiple_of=64,
)  # fmt: skip


def wanted(**changes: Any) -> Wanted:
    plain: dict[str, Any] = {
        "budgets": [600_000], "alphas": [25, 50, 75], "loops": [2, 4],
        "controls": list(CONTROLS), "matches": ["linear"],
    }  # fmt: skip
    return Wanted(**plain | changes)


def model_of(cell: Cell, backbone: ModelConfig = SMALL) -> ModelConfig:
    return replace(backbone, **cell.model)


def flops(cell: Cell, part: str) -> float:
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
@example(budget=2_010_252, alphas=[2, 3], loops=[1], total=True)  # both come out as one model
def test_every_cell_is_within_a_percent_of_the_budget_or_named(budget, alphas, loops, total):
    cells, notes = solve(
        wanted(budgets=[budget], alphas=alphas, loops=loops,
               matches=["total" if total else "linear"]),
        SMALL,
    )  # fmt: skip
    passes = 2 * SMALL.max_seq_len * SMALL.d_model  # of attention scores, one pass of a token
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
    asked = {f"a{a}_k{k}" for a in alphas for k in loops}
    names = {cell.name for cell in cells}
    left_out = {n.split()[0] for n in notes if "cannot be" in n or "is the same model as" in n}
    assert asked - names == left_out & asked
    assert len({cell.model["ffn_multiple_of"] for cell in cells}) == 1


def test_controls_spend_what_the_dual_ones_spend():
    cells = {cell.name: cell for cell in solve(wanted(), SMALL)[0]}
    assert list(cells) == [
        "wide", "loop_k2", "loop_k4", "a25_k2", "a25_k4", "a50_k2", "a50_k4", "a75_k2", "a75_k4",
        "min_deep_k2", "min_deep_k4", "expanded_k2", "expanded_k4",
    ]  # fmt: skip
    for cell in cells.values():
        assert flops(cell, "linear_total") == pytest.approx(4 * 600_000, rel=0.01)
    wide, expanded = model_of(cells["wide"]), model_of(cells["expanded_k4"])
    assert (expanded.n_layers, expanded.block) == (16, "wide")
    sizes = [parameters_non_embedding(model) for model in (wide, expanded)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.01)
    narrow = cells["min_deep_k4"]
    assert narrow.model["d_ffn"] == narrow.model["ffn_multiple_of"]
    assert narrow.alpha == pytest.approx(22.4, abs=0.05)


def test_at_equal_total_flops_controls_are_wider_and_equal_models_are_trained_once():
    cells = {c.name: c for c in solve(wanted(matches=["linear", "total"]), SMALL)[0]}
    assert cells["a50_k4"].matches == ("linear", "total"), "its own passes are the reference"
    assert "a50_k4_total" not in cells
    totals = [c for c in cells.values() if "total" in c.matches and c.family != "expanded"]
    attention = [flops(c, "attention_scores") + flops(c, "linear_total") for c in totals]
    assert attention == pytest.approx([attention[0]] * len(attention), rel=0.02)
    assert cells["wide_total"].model["d_ffn_wide"] > cells["wide"].model["d_ffn_wide"]


def test_the_papers_cells_come_out_with_a_finer_multiple():
    paper = ModelConfig(d_ffn=64, d_ffn_wide=64, ffn_multiple_of=64)
    asked = wanted(budgets=[80_000_000], loops=[2, 3, 4], controls=["wide", "loop"])
    cells, notes = solve(asked, paper)
    assert [cell.name for cell in cells] == [row.label for row in configurations("F80M")]
    assert notes == []
    for cell, row in zip(cells, configurations("F80M"), strict=True):
        ours, theirs = model_of(cell, paper), row.model_config("as_written")
        for width in ("d_ffn", "d_ffn_wide"):
            if getattr(theirs, width):
                assert getattr(ours, width) == pytest.approx(getattr(theirs, width), abs=96)


def test_what_cannot_be_is_named_with_a_way_out():
    cells, notes = solve(wanted(budgets=[300_000], alphas=[25, 75], loops=[4]), SMALL)
    assert "a25_k4" not in {cell.name for cell in cells}
    (note,) = [note for note in notes if note.startswith("a25_k4")]
    assert "cannot be" in note
    assert "would do" in note
    with pytest.raises(UserError, match=r"no configuration can be: .*a50_k4"):
        solve(wanted(budgets=[10_000], alphas=[50], loops=[4], controls=[]), SMALL)


@given(
    budget=st.integers(500_000, 4_000_000),
    layers=st.integers(2, 6),
    gqa=st.booleans(),
    total=st.booleans(),
)
def test_places_of_one_deep_path_cost_the_same(budget, layers, gqa, total):
    backbone = replace(SMALL, n_layers=layers, n_kv_heads=1 if gqa else 2)
    asked = wanted(
        budgets=[budget], controls=["wide", "loop"], positions=True,
        matches=["total" if total else "linear"],
    )  # fmt: skip
    cells, _ = solve(asked, backbone)
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
        families.setdefault(name, set()).add((sum(part.values()), parameters_non_embedding(model)))

    assert all(len(its) == 1 for its in families.values())


def test_odd_budgets_and_finest_multiples_are_taken_as_they_are():
    cells = {c.name: c for c in solve(wanted(budgets=[1_000_001], loops=[2, 3]), SMALL)[0]}
    assert {c.budget for c in cells.values()} == {1_000_001}, "also where layers divide it"
    finest = solve(wanted(), replace(SMALL, ffn_multiple_of=1))[0]
    (narrow,) = [cell for cell in finest if cell.name == "min_deep_k2"]
    assert model_of(narrow).effective_width(narrow.model["d_ffn"]) == 1


def test_equal_models_are_trained_once_and_no_control_has_one_loop():
    cells, notes = solve(wanted(loops=[1, 2], controls=["wide", "loop", "expanded"]), SMALL)
    assert not {"loop_k1", "expanded_k1"} & {cell.name for cell in cells}
    notes = solve(wanted(alphas=[33.3333333, 33.34], loops=[2], controls=["wide"]), SMALL)[1]
    assert [note.split()[0] for note in notes] == ["a33.34_k2"]


def test_experts_are_an_axis_of_wide_paths_at_equal_flops():
    asked = wanted(alphas=[50], loops=[2], controls=["wide", "loop"], experts=[0, 4])
    cells = {cell.name: cell for cell in solve(asked, SMALL)[0]}
    assert list(cells) == ["wide", "wide_e4", "loop_k2", "a50_k2", "a50_k2_e4"]
    for name in ("wide", "a50_k2"):
        dense, sparse = cells[name], cells[f"{name}_e4"]
        linear = [flops(cell, "linear_total") for cell in (dense, sparse)]
        assert linear[1] == pytest.approx(linear[0], rel=0.03)
        sizes = [parameters_non_embedding(model_of(cell)) for cell in (dense, sparse)]
        assert sizes[1] > sizes[0]
    # The multiple of 8 of an expert's width is coarse in a small model: that is said.
    coarse = replace(SMALL, top_k=7)
    cells, notes = solve(wanted(alphas=[50], loops=[2], controls=["wide"], experts=[8]), coarse)
    for cell in cells:
        linear = mean_layer_flops(replace(coarse, **cell.model))["linear_total"]
        assert cell.spent == pytest.approx(linear / cell.budget, rel=0.002)
        named = f"{cell.name} spends {cell.spent:.4f} of the budget: no width comes nearer"
        assert (named in notes) == (abs(cell.spent - 1) > 0.01)
    assert any("_e8 spends" in note for note in notes)
    cells, notes = solve(wanted(alphas=[50], loops=[2], controls=["wide"], experts=[0, 1]), SMALL)
    assert [cell.name for cell in cells] == ["wide", "a50_k2"]
    assert notes[0].startswith("wide_e1 cannot be: top_k=2 experts of n_experts=1")
    with pytest.raises(UserError, match=r"no configuration can be: .*_e1 cannot be: top_k"):
        solve(wanted(alphas=[50], loops=[2], controls=["wide"], experts=[1]), SMALL)
