"""An intervention is data: it has a name, is checked, and leaves a model as it was."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from dualpath_cli.model import AuxiliaryLoss, Intervention
from tests.model.small_models import SMALL, TOKENS, small, with_weights

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


def test_all_layers_of_a_kind_share_one_graph():
    model = with_weights(small(n_layers=4, block=["dual", "loop", "dual", "loop"])).float()
    eager = model(TOKENS)
    counter = CompileCounter()
    torch._dynamo.reset()
    for block in model.blocks:
        block.compile(backend=counter, fullgraph=True)
    assert torch.equal(model(TOKENS, auxiliary=AuxiliaryLoss()), eager)
    assert counter.frame_count == 2


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
        ("layers", ()), ("layers", [0]), ("layers", (1, 0)), ("layers", (0, 0)), ("layers", (-1,)),
    ],
)  # fmt: skip
def test_fields_that_mean_nothing_are_refused(field, value):
    with pytest.raises(ValueError, match=f"^{field}"):
        Intervention(**{field: value})


@pytest.mark.parametrize(
    "others",
    [
        {},
        {"gates": "shuffled"},
        {"gates": (0.0, 1.0), "loops": 2},
        {"gates": (0.0, 1.0), "halting": 0.5},
    ],
)
def test_a_class_of_tokens_goes_with_constant_gates_alone(others):
    with pytest.raises(ValueError, match=r"^tokens"):
        Intervention(tokens="some", **others)


def test_each_intervention_has_a_short_name_of_its_own():
    names = {
        "learned": Intervention(),
        "K=3": Intervention(loops=3),
        "gates=1,0": CONSTANT,
        "gates=0.5,0.5": Intervention(gates=(0.5, 0.5)),
        "shuffled": SHUFFLE,
        "shuffled:7": Intervention(gates="shuffled", seed=7),
        "K=2 shuffled": Intervention(loops=2, gates="shuffled"),
        "halting=0.1": HALTING,
        "K=6 halting=0.1": Intervention(loops=6, halting=0.1),
        "K=2 layers=0,3": Intervention(loops=2, layers=(0, 3)),
        "gates=0,1 tokens=arithmetic": Intervention(gates=(0.0, 1.0), tokens="arithmetic"),
        "gates=0,1 layers=1 tokens=x": Intervention(gates=(0.0, 1.0), layers=(1,), tokens="x"),
    }
    assert {intervention.name: intervention for intervention in names.values()} == names
    assert len(set(names.values())) == len(names)  # hashable, and all different
