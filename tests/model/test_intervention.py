"""An intervention is data: it has a name, is checked, and leaves a model as it was."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from dualpath_cli.model import AuxiliaryLoss, Intervention
from tests.model.small_models import EXPERTS, SMALL, TARGETS, TOKENS, small, with_weights

SHUFFLE = Intervention(gates="shuffled")


def test_no_intervention_and_an_empty_one_are_the_same_to_the_bit():
    model = with_weights(SMALL).float()
    assert torch.equal(model(TOKENS, intervention=Intervention()), model(TOKENS))


def test_an_intervention_leaves_nothing_behind():
    model = with_weights(SMALL)
    before = model(TOKENS)
    for intervention in (Intervention(loops=5), Intervention(gates=(1.0, 1.0)), SHUFFLE):
        model(TOKENS, intervention=intervention)
    assert torch.equal(model(TOKENS), before)


@pytest.mark.parametrize(
    ("changes", "graphs"),
    [
        ({"n_layers": 4, "block": ["dual", "loop", "dual", "loop"]}, 2),
        (EXPERTS | {"n_layers": 3, "balance": "loss"}, 1),  # whatever the loads are
    ],
)
def test_all_layers_of_a_kind_share_one_graph(changes, graphs):
    model = with_weights(small(**changes)).float()
    eager = [model(tokens) for tokens in (TOKENS, TARGETS)]
    counter = CompileCounter()
    torch._dynamo.reset()
    for block in model.blocks:
        block.compile(backend=counter, fullgraph=True)
    for tokens, expected in zip((TOKENS, TARGETS), eager, strict=True):
        assert torch.equal(model(tokens, auxiliary=AuxiliaryLoss()), expected)
    assert counter.frame_count == graphs


CONSTANT = Intervention(gates=(1.0, 0.0))
HALTING = Intervention(halting=0.1)


@pytest.mark.parametrize(
    ("changes", "intervention", "reason"),
    [
        ({"block": "loop"}, CONSTANT, "the model has no dual block"),
        ({"block": "wide"}, SHUFFLE, "the model has no dual block"),
        ({"block": "wide"}, Intervention(loops=2), "the model has only wide blocks"),
        ({"block": "wide"}, HALTING, "the model has only wide blocks"),
        (
            {"loops": 1},
            Intervention(loops=2),
            "the model was trained with one loop, so it has no router",
        ),
        ({"combination": "mean"}, HALTING, "the model has no router"),
        ({"combination": "final"}, HALTING, "the model has no router"),
        ({}, Intervention(experts=1), "the model has no experts"),
        (EXPERTS, Intervention(experts=5), "a layer has 4 experts: take these or fewer, not 5"),
        (
            EXPERTS | {"n_experts": [4, 0]},
            Intervention(experts="random", layers=(1,)),
            "that part of the model has no experts",
        ),
        ({"block": "wide"}, Intervention(kv_slots=1), "the model has only wide blocks, so it"),
        ({"block": "loop"}, Intervention(skip=0.1), "the model has no dual block, so it has no"),
        ({"loops": 1}, HALTING, "the model has no router"),
        ({}, Intervention(loops=1, layers=(0, 2)), "the model has no layer 2: they go up to 1"),
        (
            {"block": ["wide", "loop"]},
            Intervention(loops=1, layers=(0,)),
            "that part of the model has only wide blocks",
        ),
        (
            {"block": ["dual", "loop"]},
            Intervention(gates=(1.0, 0.0), layers=(1,)),
            "that part of the model has no dual block",
        ),
    ],
)
def test_what_a_model_does_not_have_cannot_be_overridden(changes, intervention, reason):
    assert intervention.problem(small(**changes)).startswith(reason)
    with pytest.raises(ValueError, match=f"^{intervention.name}: {reason}"):
        with_weights(small(**changes))(TOKENS, intervention=intervention)


def test_a_class_of_tokens_needs_to_be_told_which_they_are():
    wide = Intervention(gates=(0.0, 1.0), tokens="some")
    with pytest.raises(ValueError, match="token_mask must say which"):
        with_weights(SMALL)(TOKENS, intervention=wide)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("loops", 0), ("loops", 1.5), ("loops", True),
        ("gates", (1.0,)), ("gates", (1.0, 1.5)), ("gates", (1.0, float("nan"))),
        ("gates", [1.0, 0.0]), ("gates", "shuffle"),
        ("seed", -1),
        ("halting", -0.1), ("halting", 1.5), ("halting", float("nan")),
        ("skip", 1.5), ("kv_slots", 0),
        ("layers", ()), ("layers", [0]), ("layers", (1, 0)), ("layers", (0, 0)), ("layers", (-1,)),
    ],
)  # fmt: skip
def test_fields_that_mean_nothing_are_refused(field, value):
    with pytest.raises(ValueError, match=f"^{field}"):
        Intervention(**{field: value})


CLASS = {"tokens": "some", "gates": (0.0, 1.0)}


@pytest.mark.parametrize(
    "fields",
    [
        CLASS | {"gates": None}, CLASS | {"gates": "shuffled"}, CLASS | {"loops": 2},
        CLASS | {"halting": 0.5}, {"kv_slots": 1, "gates": "shuffled"},
    ],
)  # fmt: skip
def test_fields_that_exclude_each_other_are_refused(fields):
    """A class of tokens needs constant gates; slots exclude shuffled ones."""
    with pytest.raises(
        ValueError, match=r"^(tokens|kv_slots).* (needs constant gates|excludes shuffled)"
    ):
        Intervention(**fields)
