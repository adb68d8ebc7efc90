"""One table knows every parameter: its group in the optimizer and what it starts from.

What a model does at the start: each block next to nothing, and scales and shifts
nothing.
"""

import itertools
import math
import re
from collections import Counter
from fnmatch import fnmatchcase

import pytest
import torch
from torch import nn

from dualpath_cli.flops.count import parameters_by_part
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.parameters import KINDS, kind_of
from dualpath_cli.recipe.settings import OptimSettings
from dualpath_cli.spec.config import COMBINATIONS, GATE_OUTPUTS
from dualpath_cli.training.optim import build_optimizer
from tests.model.reference import random_tokens
from tests.model.small_models import (
    ALL_KINDS,
    CORES,
    MEDIUM,
    SMALL,
    STEPS,
    TOKENS,
    UNEVEN,
    medium,
    same_weights,
    small,
    streams,
)

VARIANTS = [
    small(gate=gate, combination=combination, **ALL_KINDS)
    for gate, combination in itertools.product(GATE_OUTPUTS, COMBINATIONS)
] + [
    small(qk_norm="none", tie_embeddings=True),
    small(step_conditioning="film"),
    small(**UNEVEN),
    small(n_experts=3, top_k=1),
    *(small(**changes) for changes in (CORES | STEPS).values()),
]


def test_every_parameter_of_every_variant_is_of_exactly_one_kind():
    used = set()
    for config in VARIANTS:
        counts: Counter[str] = Counter()
        for name, parameter in DualPathLM(config).named_parameters():
            (pattern,) = [pattern for pattern in KINDS if fnmatchcase(name, pattern)]
            used.add(pattern)
            counts[kind_of(name).group] += parameter.numel()
        parts = parameters_by_part(config)
        assert counts["embeddings"] == parts["embedding"]
        assert counts["gains"] == parts["gains"]
        assert sum(counts.values()) == sum(parts.values())
    assert used == KINDS.keys()


def test_who_meets_an_unknown_parameter_refuses_it_by_name():
    model = DualPathLM(SMALL)
    model.blocks[1].surprise = nn.Parameter(torch.zeros(2))
    for meet in (
        lambda: kind_of("blocks.1.surprise"),
        lambda: model.init_weights(0),
        lambda: build_optimizer(
            model.named_parameters(), OptimSettings(), total_steps=9, config=SMALL
        ),
    ):
        with pytest.raises(
            ValueError, match=r"'blocks\.1.surprise' is of no known kind"
        ):
            meet()


def test_kinds_are_what_their_names_say():
    core = CORES["routed"] | {"injection": "linear"}
    model = DualPathLM(small(step_conditioning="film", **core))
    members: dict[str, set[str]] = {}
    for name, parameter in model.named_parameters():
        kind, group = kind_of(name).kind, kind_of(name).group
        members.setdefault(kind, set()).add(
            re.sub(r"^blocks\.\d\.(.*sublayer\.)?", "", name)
        )
        assert (group in ("matrices", "embeddings")) is (parameter.ndim == 2)
        assert (kind == "norms") is ("norm" in name)
    del members["norms"]
    assert members == {
        "hidden": {
            *(f"attn.{one}_proj.weight" for one in "qkvo"),
            *(f"ffn.{one}_proj.weight" for one in ("gate", "up", "down")),
            "core.injection.weight",
        },
        "embedding": {"embed.weight"},
        "head": {"head.weight"},
        "router": {"deep.router.weight", "core.router.weight"},
        "gate": {"gate.proj.weight"},
        "gains": {"deep.gains", "wide.gain"},
        "biases": {"deep.router.bias", "gate.proj.bias", "core.router.bias"},
        "conditioning": {"deep.film"},
    }


STDS = {
    **dict.fromkeys(["embed", "head", "router"], 0.02),
    **dict.fromkeys(["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"], 0.02),
    **dict.fromkeys(["o_proj", "down_proj"], 0.02 / math.sqrt(2 * 4)),
}
"""Standard deviations of what is drawn, in MEDIUM with its four layers."""


@pytest.mark.parametrize(("module", "std"), STDS.items(), ids=STDS.keys())
def test_weights_are_normal_with_the_standard_deviation_of_their_kind(module, std):
    drawn = [
        parameter.flatten()
        for name, parameter in DualPathLM(MEDIUM, seed=0).named_parameters()
        if name.endswith(f"{module}.weight")
    ]
    values = torch.cat(drawn) / std
    n = len(values)  # at least 4 routers of 65 weights
    assert abs(values.mean().item()) < 4 / math.sqrt(n)
    assert abs(values.std().item() - 1) < 4 / math.sqrt(2 * n)
    beyond_two_stds = (values.abs() > 2).double().mean().item()
    assert abs(beyond_two_stds - 0.0455) < 4 * math.sqrt(0.0455 / n)


def test_everything_else_starts_at_its_constant():
    constants = {"gains": -7.0, "gain": -7.0, "bias": 0.0}
    seen = set()
    for name, parameter in DualPathLM(MEDIUM, seed=0).named_parameters():
        module, _, last = name.rpartition(".")
        if module.endswith("norm"):
            expected = 1.0
        elif module.endswith("gate.proj"):
            expected = 0.0
        elif last in constants:
            expected = constants[last]
        else:
            assert module.split(".")[-1] in STDS, f"{name} is in neither test"
            continue
        seen.add(expected)
        assert (parameter == expected).all(), name
    assert seen == {-7.0, 0.0, 1.0}


def test_a_factor_of_a_kind_scales_what_is_drawn_of_it_and_nothing_else():
    plain, scaled = (DualPathLM(medium(step_conditioning="film")) for _ in range(2))
    plain.init_weights(3)
    scaled.init_weights(
        3, std_factors={"hidden": 0.5, "head": 0.25, "gains": 9.0, "norms": 9.0}
    )
    factors = {"hidden": 0.5, "head": 0.25}
    for (name, value), other in zip(
        plain.named_parameters(), scaled.parameters(), strict=True
    ):
        assert torch.equal(other, factors.get(kind_of(name).kind, 1.0) * value), name


def test_a_seed_decides_all_weights_and_without_one_the_global_seed():
    first, again, other = (DualPathLM(SMALL, seed) for seed in (5, 5, 6))
    assert same_weights(first, again)
    assert not same_weights(first, other)
    unseeded = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        unseeded.append(DualPathLM(SMALL))
    assert same_weights(unseeded[0], unseeded[1])
    assert not same_weights(unseeded[0], unseeded[2])


def test_a_layer_starts_alike_whatever_kind_the_others_are():
    dual, mixed = (
        dict(DualPathLM(small(block=block), seed=0).named_parameters())
        for block in (["dual", "dual"], ["wide", "dual"])
    )
    assert set(mixed) < set(dual)
    assert all(torch.equal(dual[name], mixed[name]) for name in mixed)


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_built_without_memory_starts_alike(tied):
    config = small(tie_embeddings=tied, **ALL_KINDS)
    with torch.device("meta"):
        model = DualPathLM(config)
    assert all(parameter.is_meta for parameter in model.parameters())
    model.to_empty(device="cpu")
    model.init_weights(3)
    direct = DualPathLM(config, seed=3)
    assert same_weights(model, direct)
    tokens = random_tokens(config, 1, 5)
    assert torch.equal(model(tokens), direct(tokens))
    for lm in (model, direct):
        assert (lm.head.weight.data_ptr() == lm.embed.weight.data_ptr()) is tied
        assert ("head.weight" in dict(lm.named_parameters())) is not tied


def test_a_model_draws_each_parameter_once(monkeypatch):
    def draw_by_torch(*_: object) -> None:
        raise AssertionError("torch's own initial values are not wanted")

    for module in (nn.Linear, nn.Embedding, nn.RMSNorm):
        on_meta = module.reset_parameters
        monkeypatch.setattr(
            module,
            "reset_parameters",
            lambda self, on_meta=on_meta: (
                on_meta(self) if self.weight.is_meta else draw_by_torch()
            ),
        )
    drawn = []
    monkeypatch.setattr(
        "dualpath_cli.model.language_model.initial_value",
        lambda name, shape, *_: drawn.append(name) or torch.ones(shape),
    )
    model = DualPathLM(small(tie_embeddings=True, **ALL_KINDS), seed=0)
    assert drawn == [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("block", ["dual", "loop", "wide"])
def test_each_block_at_the_start_returns_its_input_to_one_percent_but_not_exactly(
    block,
):
    config = medium(block=block)
    for x, y in streams(DualPathLM(config, seed=0), random_tokens(config, 2, 32)):
        assert 1e-5 < ((y - x).norm() / x.norm()).item() < 1e-2


def test_scales_and_shifts_start_as_none_and_move_by_themselves():
    """Loss, shared gradients and their first update are bit for bit those without."""
    plain, film = (
        DualPathLM(small(step_conditioning=kind), seed=0) for kind in ("none", "film")
    )
    losses, gradients = [], {}
    for model in (plain, film):
        optimizer = torch.optim.AdamW(model.parameters())
        loss = model(TOKENS, TOKENS.roll(-1, 1)).mean()
        loss.backward()
        gradients |= {name: p.grad.abs().max() for name, p in model.named_parameters()}
        optimizer.step()
        losses.append(loss)
    assert losses[0] == losses[1]
    shared = dict(film.named_parameters())
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, shared[name]), name
        assert torch.equal(parameter.grad, shared[name].grad), name
    assert all(size > 0 for name, size in gradients.items() if name.endswith("film"))
