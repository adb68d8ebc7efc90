"""A custom gate or combination is used as built-in ones are: copies give their numbers."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.flops import count
from dualpath_cli.flops.shapes import numbers, units
from dualpath_cli.model import DualPathLM, RoutingTrace
from dualpath_cli.recipe.settings import OptimSettings
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.spec.own_checks import import_classes
from dualpath_cli.training.module import build_optimizer
from tests.model.reference import difference
from tests.model.small_models import ALL_KINDS, EXACT, TOKENS, small

HERE = "tests.spec.custom_classes"
COPIES: dict[str, Any] = {"gate": f"{HERE}.TwoGates", "combination": f"{HERE}.Router"}
MASSLESS = {"combination": f"{HERE}.WithoutMass"}


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    for gate in (COPIES["gate"], f"{HERE}.MlpGate"):
        for combination in (COPIES["combination"], MASSLESS["combination"]):
            import_classes(small(gate=gate, combination=combination), allowed=True)


@given(
    gates=st.sampled_from(["two_gates", COPIES["gate"]]),
    combination=st.sampled_from([COPIES["combination"], MASSLESS["combination"]]),
    loops=st.integers(2, 4),
    step_index=st.sampled_from(["zero_based", "one_based"]),
    change=st.sampled_from(
        [{}, {"loops": 1}, {"loops": 2}, {"loops": 5}, {"gates": (0.25, 0.75)},
         {"gates": "shuffled"}, {"skip": 0.5}, {"kv_slots": 1}]
    ),
)  # fmt: skip
@settings(max_examples=40)
def test_copies_do_what_the_built_in_ones_do_under_any_intervention(
    gates, combination, loops, step_index, change
):
    intervention = Intervention(**change)
    config = small(loops=loops, step_index=step_index, gain_init=0.0, init_std=0.3)
    own = dataclasses.replace(config, gate=gates, combination=combination)
    outputs, traces = [], []
    for one in (config, own):
        model, trace = DualPathLM(one, seed=1).double(), RoutingTrace()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".gate." in name:
                    parameter += torch.linspace(-1, 1, parameter.numel()).view_as(parameter)
            outputs.append(forward(model, TOKENS, trace=trace, intervention=intervention))
        traces.append(trace)
    assert difference(*outputs) <= EXACT
    for one, other in zip(*(trace.layers for trace in traces), strict=True):
        assert difference(one.step_weights, other.step_weights) <= EXACT
        assert difference(one.expected_loops, other.expected_loops) <= EXACT
        assert torch.equal(one.steps_taken, other.steps_taken)


def test_halting_by_mass_needs_a_class_that_leaves_some():
    by_mass = Intervention(halting=0.1)
    assert by_mass.problem(small(**COPIES)) is None
    problem = by_mass.problem(small(**MASSLESS))
    assert problem is not None
    assert "tests.spec.custom_classes.WithoutMass has no step_probability" in problem
    assert Intervention(loops=2).problem(small(loops=1, **MASSLESS)) is not None


class TestCounts:
    config = small(gate=f"{HERE}.MlpGate", combination=MASSLESS["combination"], **ALL_KINDS)

    def test_parameters_are_counted_off_the_class(self):
        config, model = self.config, DualPathLM(self.config)
        assert count.parameters(config) == sum(p.numel() for p in model.parameters())
        gate = sum(p.numel() for p in model.blocks[0].gate.parameters())
        assert count.parameters_by_part(config)["gate"] == gate == 16 + 16 * 5 + 5 + 5 * 2 + 2
        assert sum(map(numbers, units(config))) == count.parameters(config)

    def test_flops_are_what_the_class_declares(self):
        dual, built_in = (
            count.layer_flops(config.layers[0]) for config in (self.config, small(**ALL_KINDS))
        )
        assert dual.gate == 2 * 5 * (16 + 2)
        assert dual.linear_total - built_in.linear_total == dual.gate - 4 * 16
        assert dual.router == 2 * 17 * 3
        assert dual.total == dual.linear_total + dual.router + dual.attention_scores
        assert count.layer_flops(dataclasses.replace(self.config, block="loop").layers[0]).gate == 0


class TestParameters:
    def test_they_follow_the_class_and_its_defaults(self):
        config = small(gate=f"{HERE}.MlpGate", init_std=0.5)
        model = DualPathLM(config, seed=0)
        gate = model.blocks[1].gate
        assert (gate.norm.weight == 1).all()
        assert 0.3 < gate.hidden.weight.std() < 0.7
        assert (gate.hidden.bias == 0).all()
        optimizer = build_optimizer(model.named_parameters(), OptimSettings(), 9, config)
        grouped = {
            id(p): group["name"] for group in optimizer.param_groups for p in group["params"]
        }
        assert {name: grouped[id(parameter)] for name, parameter in gate.named_parameters()} == {
            "norm.weight": "norms", "hidden.weight": "gate", "hidden.bias": "biases",
            "out.weight": "gate", "out.bias": "biases",
        }  # fmt: skip
        declared = DualPathLM(small(gate=COPIES["gate"]), seed=0).blocks[0].gate
        assert (declared.proj.weight == 0).all()


def test_under_autocast_classes_work_in_the_type_of_their_weights():
    """As the built-in ones do, whatever operations a class is made of."""
    config = small(gain_init=0.0, init_std=0.3, residual_dtype="bfloat16")
    seen = []
    for one in (config, dataclasses.replace(config, **COPIES)):
        model, trace = DualPathLM(one, seed=1), RoutingTrace()
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            logits = model(TOKENS, trace=trace)
        assert trace.layers[0].gate_deep.dtype == torch.float32
        assert trace.layers[0].step_weights.dtype == torch.float32
        seen.append(logits)
    assert torch.equal(*seen)
