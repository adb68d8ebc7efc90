"""FLOPs, parameters, solved widths: by the paper, their properties, and the built
model."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any, get_args

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import format_size, parse_size
from dualpath_cli.decoding.decoder import Decoder
from dualpath_cli.flops import count as flops
from dualpath_cli.flops.description import READINGS
from dualpath_cli.flops.shapes import units
from dualpath_cli.flops.widths import (
    FlopMatch,
    Target,
    largest_width,
    solve_widths,
    solve_within,
    ways_out,
)
from dualpath_cli.model.language_model import DualPathLM
from dualpath_cli.model.layer_pass import AuxiliaryLoss, ModelPass
from dualpath_cli.recipe.schedule import check_loops
from dualpath_cli.recipe.settings import RunSettings
from dualpath_cli.spec.config import (
    COMBINATIONS,
    GATE_OUTPUTS,
    BlockKind,
    Injection,
    ModelConfig,
    StepKv,
)
from tests.flops.paper import CONFIGURATIONS
from tests.model.small_models import CORES, STEPS

each_configuration = pytest.mark.parametrize(
    "row", CONFIGURATIONS, ids=lambda row: row.recipe
)


def with_gate(gate: str, d_model: int, **fields: Any) -> Target:
    if fields["block"] == "loop":  # without a feed-forward it has no width
        fields["deep_ffn"] = True
    return Target(
        d_model=d_model, gate_flops=2 * d_model * GATE_OUTPUTS[gate], **fields
    )


targets = st.builds(
    with_gate,
    gate=st.sampled_from(sorted(GATE_OUTPUTS)),
    d_model=st.sampled_from([384, 768]),
    budget=st.integers(10**6, 10**9),
    block=st.sampled_from(get_args(BlockKind)),
    alpha=st.integers(1, 99),
    loops=st.integers(1, 8),
    match=st.sampled_from(get_args(FlopMatch)),
    n_kv_heads=st.sampled_from([3, 12]),
    seq_len=st.sampled_from([128, 4096]),
    multiple_of=st.sampled_from([1, 8, 64, 256]),
    step_kv=st.sampled_from(get_args(StepKv)),
    deep_ffn=st.booleans(),
    n_layers=st.just(4),
    core_layers=st.integers(0, 4),
    core_loops=st.integers(1, 4),
    injection=st.sampled_from(get_args(Injection)),
)


def small(**changes: Any) -> ModelConfig:
    fields: dict[str, Any] = {
        "vocab_size": 96,
        "n_layers": 2,
        "d_model": 32,
        "n_heads": 4,
        "n_kv_heads": 4,
        "max_seq_len": 16,
        "loops": 3,
        "d_ffn": 40,
        "d_ffn_wide": 96,
        "ffn_multiple_of": 8,
    }
    return ModelConfig(**(fields | changes))


def model(target: Target, d_ffn: int | None, d_ffn_wide: int | None) -> ModelConfig:
    """A model with a target's backbone, gate and core, and these widths, in its
    multiple."""
    core: dict[str, Any] = {}
    if target.core_layers:
        core = {
            "core": [0, target.core_layers - 1],
            "core_loops": target.core_loops,
            "injection": target.injection,
        }
    outputs = target.off_the_top / (2 * target.d_model)
    gate = next((gate for gate, n in GATE_OUTPUTS.items() if n == outputs), "two_gates")
    return ModelConfig(
        gate=gate,
        d_model=target.d_model,
        n_heads=target.n_heads,
        n_kv_heads=target.n_kv_heads,
        max_seq_len=target.seq_len,
        block=target.block,
        loops=target.loops,
        d_ffn=d_ffn,
        d_ffn_wide=d_ffn_wide,
        ffn_multiple_of=target.multiple_of,
        step_kv=target.step_kv,
        deep_ffn=target.deep_ffn,
        n_layers=target.n_layers,
        **core,
    )


def linear_and_scores(config: ModelConfig) -> tuple[Fraction, Fraction]:
    """FLOPs per token and layer, counted from all layers."""
    layers = flops.all_flops(config)
    linear = sum(layer.linear_total for layer in layers)
    scores = sum(layer.attention_scores for layer in layers)
    return Fraction(linear, config.n_layers), Fraction(scores, config.n_layers)


# The paper's tables


@each_configuration
def test_the_solver_and_the_count_give_the_papers_numbers(row):
    widths = solve_widths(row.target)
    assert (widths.d_ffn, widths.d_ffn_wide) == (row.d_ffn, row.d_ffn_wide)
    trained, written = (
        flops.parameters(row.model_config(reading)) / 1e6
        for reading in ("as_trained", "as_written")
    )
    assert round(trained) == row.params_millions != round(written)


# The solver


def solved(target: Target) -> tuple[int | None, int | None]:
    """Solved widths, or a rejected example where the budget buys none."""
    assume(target.has_room)
    assume(not solve_widths(target).clamped)
    return in_multiple(target)


@given(targets)
def test_solved_flops_stay_within_the_budget_and_one_multiple_of_it(target):
    """Under match total the budget grows by what a dual block's attention takes
    more."""
    config = model(target, *solved(target))
    linear, scores = linear_and_scores(config)
    budget: Fraction | int = target.budget
    if target.match == "total":
        dual = flops.passes("dual", target.loops) * 2 * target.seq_len * target.d_model
        budget += dual - scores
    # one multiple of one pass, in all applications of a layer
    step = 6 * target.d_model * target.multiple_of
    step *= Fraction(len(config.applications()), config.n_layers)
    if target.block == "wide":
        assert budget <= linear < budget + 2 * step
    else:
        assert (
            budget - flops.passes(target.block, target.loops) * step < linear <= budget
        )


def distance(target: Target) -> float:
    """How far the solved model's linear FLOPs and attention scores are from the sum
    wanted."""
    spent = sum(linear_and_scores(model(target, *in_multiple(target))))
    sum_of_dual = target.budget + 2 * target.seq_len * target.d_model * (
        1 + target.loops
    )
    return float(abs(spent / sum_of_dual - 1))


def in_multiple(target: Target) -> tuple[int | None, int | None]:
    widths = solve_widths(target)
    return widths.d_ffn, widths.d_ffn_wide


@given(
    targets.filter(lambda target: target.match == "total"), st.sampled_from([64, 256])
)
def test_match_total_is_met_within_1_percent_in_the_coarsest_multiple_that_can(
    target, multiple
):
    start = replace(target, multiple_of=multiple)
    assume(start.has_room)
    found, widths = solve_within(start)
    assert found == replace(start, multiple_of=found.multiple_of)
    assert (widths.d_ffn, widths.d_ffn_wide) == in_multiple(found)
    assert distance(found) <= 0.01
    coarser = found.multiple_of * 2
    while coarser <= multiple:
        assert distance(replace(start, multiple_of=coarser)) > 0.01
        coarser *= 2
    assert coarser == 2 * multiple


def test_a_model_too_narrow_for_1_percent_gets_the_finest_multiple():
    """One channel of its three deep passes is 288 FLOPs, 3 % of 9,800."""
    target = Target(
        9_800,
        "loop",
        loops=3,
        match="total",
        d_model=16,
        n_heads=2,
        n_kv_heads=2,
        seq_len=1,
    )
    found, widths = solve_within(target)
    assert (found.multiple_of, widths) == (
        1,
        solve_widths(replace(target, multiple_of=1)),
    )
    assert distance(found) > 0.01


@given(targets)
def test_ways_out_are_changes_that_really_solve(target):
    assume(not target.has_room)
    with pytest.raises(UserError, match="would do"):
        solve_widths(target)
    ways = ways_out(target)
    assert "budget" in ways
    for field, value in ways.items():
        changed: dict[str, Any] = {field: value}
        solve_widths(replace(target, **changed))
        if "loops" in field:  # the largest K or R
            changed[field] += 1
            assert not replace(target, **changed).has_room


def test_a_width_is_raised_to_a_multiple_only_while_its_exact_value_is_positive():
    clamped = {row.recipe: solve_widths(row.target).clamped for row in CONFIGURATIONS}
    assert {name: c for name, c in clamped.items() if c} == {"f80m_a25_k4": ("d_ffn",)}
    with pytest.raises(UserError, match="alpha 24 or K=3 or a budget of"):
        solve_widths(Target(budget=80_000_000, alpha=20, loops=4))


def test_a_width_without_a_whole_channel_is_raised_to_one():
    """A channel of its three passes is 288 FLOPs, beside projections of 6,144."""
    backbone: dict[str, Any] = {"d_model": 16, "n_heads": 2, "n_kv_heads": 2}
    half = Target(6_144 + 144, "loop", loops=3, multiple_of=1, **backbone)
    assert half.exact_widths() == (Fraction(1, 2), None)
    widths = solve_widths(half)
    assert (widths.d_ffn, widths.clamped) == (2, ("d_ffn",))
    assert largest_width(Fraction(1, 2), 1) == 0
    assert largest_width(Fraction(1), 1) == 2


@given(targets)
def test_what_a_target_says_is_spent_is_what_is_counted(target):
    widths = solved(target)
    linear, scores = linear_and_scores(model(target, *widths))
    in_total = target.match == "total"
    assert target.spent(*widths) == linear + (scores if in_total else 0)


def test_a_loop_block_without_a_feed_forward_has_no_width_to_solve():
    with pytest.raises(UserError, match="no width to solve"):
        solve_widths(Target(budget=80_000_000, block="loop", deep_ffn=False))


# Sizes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.28G", 1_280_000_000),
        ("8E7", 80_000_000),
        ("80_000_000", 80_000_000),
        (" 2k ", 2000),
        ("1.50T", 15 * 10**11),
    ],
)
def test_sizes_are_read_as_people_write_them(text, value):
    assert parse_size(text) == value


@pytest.mark.parametrize(
    "text", ["", "M", "0", "-1", "1.5", "80X", "1e-3", "0.0001K", "1,5M", "inf", "nan"]
)
def test_other_sizes_are_refused_by_value(text):
    with pytest.raises(ValueError, match="Got value") as caught:
        parse_size(text)
    assert str(caught.value) == f"Got value: {text}"


@given(st.integers(1, 10**15))
def test_formatted_sizes_read_back_as_the_same_number(value):
    assert parse_size(format_size(value)) == value


# The accounting against the built model: PyTorch's FLOP counter, and its parameters


KINDS = get_args(BlockKind)
GROUPED = torch.ops.dualpath.group_by_group
MATRIX_PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm, GROUPED)
BATCH = 2

VARIANTS: dict[str, dict[str, Any]] = {
    **{
        f"{kind}_k{k}": {"block": kind, "loops": k} for kind in KINDS for k in (1, 2, 3)
    },
    "mixed": {"block": [*KINDS], "n_layers": len(KINDS), "loops": 2},
    "gqa": {"n_kv_heads": 2, "loops": 2},
    "multi_query_wide": {"block": "wide", "n_kv_heads": 1},
    "tied": {"tie_embeddings": True, "loops": 2},
    "as_written": {**READINGS["as_written"], "loops": 3},
    "film": {"step_conditioning": "film", "loops": 2},
    "by_layer": {
        "block": ["wide", "dual", "loop"],
        "n_layers": 3,
        "loops": [1, 3, 2],
        "d_ffn": [None, 40, 64],
        "d_ffn_wide": [96, 80, None],
    },
    "no_qk_norm": {"qk_norm": "none", "loops": 2},
    "experts": {"n_experts": [4, 0, 2], "n_layers": 3, "d_ffn_wide": 96, "loops": 2},
    "experts without a bias": {
        "block": "wide",
        "n_experts": 4,
        "top_k": 1,
        "d_ffn_wide": 96,
        "balance": "loss",
    },
    **STEPS,
    **CORES,
    "core of experts": {
        "core": [0, 0],
        "core_loops": 3,
        "core_combination": "router",
        "injection": "linear",
        "n_experts": 4,
    },
    "core applied once": {"core": [0, 1], "injection": "linear"},
    **{gate: {"gate": gate} for gate in GATE_OUTPUTS},
    **{combination: {"combination": combination} for combination in COMBINATIONS},
}
each_variant = pytest.mark.parametrize(
    "config", [small(**changes) for changes in VARIANTS.values()], ids=VARIANTS
)


def counted(config: ModelConfig) -> tuple[int, int]:
    """FLOPs of a forward pass by PyTorch's counter: (linear layers, attention).

    Attention is done as batched products, for not every version counts the CPU's
    kernel.
    """
    tokens = torch.zeros(BATCH, config.max_seq_len, dtype=torch.long)
    # the counter hooks gradients of arguments
    model = DualPathLM(config).requires_grad_(False)
    grouped = {GROUPED: lambda x, w, *_, **__: 2 * x[0] * w[1] * w[2]}
    counter = FlopCounterMode(display=False, custom_mapping=grouped)
    with counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model(tokens)
    by_kernel = counter.get_flop_counts()["Global"]
    products = sum(by_kernel.get(kernel, 0) for kernel in MATRIX_PRODUCTS)
    return products, sum(by_kernel.values()) - products


@each_variant
def test_flops_are_those_that_pytorch_counts(config):
    """But for two: the step index, and the half of the attention scores that is masked.

    The model adds the router's step index as one scalar multiply-add for all tokens,
    not as a column of its matrix, so the counter sees 2 d of each routed step's 2 (d +
    1). And it takes every query with every key, of which a causal pass needs half.
    """
    products, attention = counted(config)
    layers = flops.all_flops(config)
    d, tokens = config.d_model, BATCH * config.max_seq_len
    linear = sum(layer.linear_total for layer in layers)
    router = sum(layer.router for layer in layers) * d // (d + 1)
    assert products == tokens * (linear + router + flops.head_flops(config))
    assert attention == 2 * tokens * sum(layer.attention_scores for layer in layers)


LOOPED = {**STEPS, **CORES, "core applied once": VARIANTS["core applied once"]}


def trains(changes: dict[str, Any], last: int | None) -> bool:
    """Whether `fit` accepts this number of last loops for the model."""
    try:
        check_loops(RunSettings(backprop_loops=last), small(**changes))
    except UserError:
        return False
    return True


TRAINED = {
    f"{name}, last {last}": (changes, last)
    for name, changes in LOOPED.items()
    for last in (None, 1, 2)
    if trains(changes, last)
}


@pytest.mark.parametrize(("changes", "last"), TRAINED.values(), ids=TRAINED)
def test_training_flops_are_those_that_pytorch_counts(changes, last):
    """But for the router, whose gradients are counted as if all its inputs had one."""
    config = small(**changes)
    model = DualPathLM(config, seed=0)
    tokens = torch.zeros(BATCH, config.max_seq_len, dtype=torch.long)
    for loop_losses in (0.0, 1.0):
        auxiliary = AuxiliaryLoss(loop_losses)
        counter = FlopCounterMode(display=False)
        with counter, sdpa_kernel(SDPBackend.MATH):
            losses_BT = model(
                tokens,
                tokens,
                auxiliary=auxiliary,
                model_pass=ModelPass(backprop_loops=last),
            )
            (losses_BT.mean() + auxiliary.total).backward()

        # Of the doubled length, half of the attention scores are all of this one.
        planned = flops.training_flops_per_token(
            config, 2 * config.max_seq_len, last, bool(loop_losses)
        )
        found = counter.get_total_flops() / tokens.numel()
        assert planned == pytest.approx(found, rel=5e-3)


@settings(max_examples=30)
@given(
    layers=st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(1, 4)), min_size=1, max_size=3
    ),
    kv_heads=st.sampled_from([1, 2, 4]),
    d_model=st.sampled_from([16, 32]),
    texts=st.integers(1, 3),
    tokens=st.integers(1, 5),
    step_kv=st.sampled_from(["own", "first"]),
    core=st.sampled_from([None, [0, 0], [0, 1], [1, 2]]),
    core_loops=st.integers(1, 3),
)
def test_keys_and_values_take_the_bytes_of_the_cache_that_decodes(
    layers, kv_heads, d_model, texts, tokens, step_kv, core, core_loops
):
    """K + 1 caches of a dual layer, K of a loop one, 1 of a wide one, in bf16, in each
    repetition."""
    assume(core is None or core[1] < len(layers))
    config = small(
        n_layers=len(layers),
        block=[kind for kind, _ in layers],
        loops=[k for _, k in layers],
        n_kv_heads=kv_heads,
        d_model=d_model,
        step_kv=step_kv,
        core=core,
        core_loops=core_loops,
    )
    decoder = Decoder(DualPathLM(config, seed=0), autocast=torch.bfloat16)
    ids_BT = torch.zeros(texts, tokens, dtype=torch.long)
    decoder.next_logits(ids_BT, torch.ones_like(ids_BT, dtype=torch.bool))
    assert decoder.cache_bytes == texts * tokens * flops.kv_bytes(config)


@each_variant
def test_parameters_are_those_of_the_built_model(config):
    with torch.device("meta"):
        model = DualPathLM(config)
    assert flops.parameters(config) == sum(p.numel() for p in model.parameters())
    matrices = {id(model.embed.weight), id(model.head.weight)}
    rest = [p for p in model.parameters() if id(p) not in matrices]
    assert flops.parameters_non_embedding(config) == sum(p.numel() for p in rest)
    root = {
        name: p
        for name, p in model.named_parameters()
        if not name.startswith("blocks.")
    }
    modules = [*(dict(block.named_parameters()) for block in model.blocks), root]
    for unit, named in zip(units(config), modules, strict=True):
        assert Counter(unit) == Counter(tuple(p.shape) for p in named.values())


@each_variant
def test_applications_of_parameters_account_for_the_flops_of_a_pass(config):
    """Two FLOPs for each time that a matrix is applied; norms, gains and biases, which
    have none, are few. Experts' widths are rounded, and their router counts too."""
    by_times = flops.parameters_by_applications(config)
    assert sum(by_times.values()) == flops.active_parameters(config)

    parts = flops.parameters_by_part(config)
    outside = parts["embedding"] + parts["head"] + parts["final_norm"]
    applied = sum(times * number for times, number in by_times.items()) - outside
    layers = flops.all_flops(config)
    matrices = sum(layer.linear_total + layer.router for layer in layers)
    assert 2 * applied == pytest.approx(matrices, rel=0.06)
