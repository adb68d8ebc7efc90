"""Experts in the wide path: what must hold of them, beside the reference's equations.

A feed-forward may add a loss of its own, as experts do.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.kernels.grouped_products import group_by_group
from dualpath_cli.model import DualPathLM, Intervention
from dualpath_cli.model.draws import expert_draws
from dualpath_cli.model.experts import Experts
from dualpath_cli.model.layer_pass import LayerAuxiliary, SublayerPass
from dualpath_cli.model.positions import whole_sequences
from dualpath_cli.recipe.settings import OptimSettings, RunSettings
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.step import losses_of
from tests.conftest import examples
from tests.model import reference
from tests.model.reference import Weights, difference, random_tokens
from tests.model.small_models import (
    EXACT,
    EXPERTS,
    OUTPUTS,
    SHOWS,
    SMALL,
    TARGETS,
    TOKENS,
    same_weights,
    small,
    traced,
    with_balanced,
    with_weights,
)

SPARSE = small(**EXPERTS)


def experts_alone(
    config: ModelConfig = SPARSE, seed: int = 0
) -> tuple[Experts, Weights]:
    """The float64 experts of the first layer with large random weights, and these."""
    weights = reference.random_weights(config, seed)
    ffn = with_weights(config, weights).blocks[0].wide.sublayer.ffn
    assert isinstance(ffn, Experts)
    return ffn, reference.below(weights, "blocks.0.wide.sublayer.ffn")


def plain_pass(x_BTD: Tensor) -> SublayerPass:
    tokens = torch.zeros(x_BTD.shape[:2], dtype=torch.long)
    return SublayerPass(whole_sequences(SPARSE, tokens, x_BTD), LayerAuxiliary())


def inputs(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, SPARSE.d_model, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("balance", ["bias", "loss", "none"])
def test_one_expert_is_the_dense_model_to_the_bit(balance):
    dense = DualPathLM(small(d_ffn_wide=100), seed=0)
    one = DualPathLM(
        small(d_ffn_wide=100, n_experts=1, top_k=1, balance=balance), seed=0
    )
    for model in (dense, one):
        loss = model(TOKENS, TARGETS)
        loss.mean().backward()
    assert torch.equal(one(TOKENS, TARGETS), dense(TOKENS, TARGETS))
    found = dict(one.named_parameters())
    for name, parameter in dense.named_parameters():
        assert torch.equal(found[name].grad, parameter.grad), name


@settings(max_examples=examples(20))
@given(n=st.integers(1, 6), data=st.data(), seed=st.integers(0, 99))
def test_equal_experts_are_one_dense_network_of_their_width(n, data, seed):
    top_k = data.draw(st.integers(1, n))
    config = small(d_ffn_wide=400, n_experts=n, top_k=top_k)
    ffn, weights = experts_alone(config, seed)
    with torch.no_grad():
        for projection in (ffn.gate_proj, ffn.up_proj, ffn.down_proj):
            first = projection.weight.unflatten(0, (n, -1))[0].clone()
            projection.weight.copy_(first.repeat(n, 1))
    x = inputs(2, 3, seed=seed)
    expected = torch.stack(
        [reference.ffn(reference.expert(weights, 0), v) for v in x.view(6, -1)]
    )
    assert difference(ffn(x, plain_pass(x)).view(6, -1), expected) <= EXACT


def test_an_expert_without_tokens_gives_no_nan_and_gets_no_gradient():
    ffn, _ = experts_alone()
    with torch.no_grad():
        ffn.balance_bias.copy_(torch.tensor([9.0, 0.0, 9.0, 0.0]))
    for shape in ((2, 3), (1, 1)):
        x, here = inputs(*shape), plain_pass(inputs(*shape))
        ffn.zero_grad()
        y = ffn(x, here)
        y.sum().backward()
        tokens = shape[0] * shape[1]
        assert here.auxiliary is not None
        assert here.auxiliary.load.tolist() == [tokens, 0, tokens, 0]
        assert y.isfinite().all()
        grads = ffn.up_proj.weight.grad.unflatten(0, (4, -1)).flatten(1).abs().amax(1)
        assert grads.isfinite().all()
        assert (grads > 0).tolist() == [True, False, True, False]


def test_padding_changes_no_other_token_and_a_batch_of_it_gives_no_nan():
    model = with_weights(SPARSE)
    padded = torch.cat([torch.zeros_like(TOKENS[:, :3]), TOKENS], dim=1)
    mask = torch.arange(padded.shape[1]).expand_as(padded) >= 3
    assert (
        difference(forward(model, padded, attention_mask=mask)[:, 3:], model(TOKENS))
        <= EXACT
    )
    none = torch.zeros_like(padded, dtype=torch.bool)
    assert forward(model, padded, attention_mask=none).isfinite().all()


@pytest.mark.parametrize("forced", [1, 3, 4])
def test_more_or_fewer_of_the_best_experts_follow_the_equations(forced):
    weights = reference.random_weights(SPARSE, seed=0)
    model, override = with_weights(SPARSE, weights), Intervention(experts=forced)
    expected = reference.logits(weights, replace(SPARSE, top_k=forced), TOKENS)
    actual = model(TOKENS, intervention=override)
    assert difference(actual, expected) <= OUTPUTS
    assert difference(actual, model(TOKENS)) >= SHOWS


def test_a_random_choice_depends_on_the_seed_and_on_the_sequence_alone():
    model = with_weights(SPARSE)

    def chosen(tokens: Tensor, seed: int) -> Tensor:
        trace = traced(
            model, tokens, intervention=Intervention(experts="random", seed=seed)
        )
        return torch.stack([layer.experts for layer in trace.layers])

    both = chosen(TOKENS, 0)
    assert both.shape == (2, *TOKENS.shape, 2)
    assert torch.equal(both[:, 1:], chosen(TOKENS[1:], 0))
    assert not torch.equal(both, chosen(TOKENS, 1))
    assert (both[..., 0] != both[..., 1]).all()
    counts = chosen(random_tokens(SPARSE, 64, 16), 0).flatten().bincount(minlength=4)
    # Of 2,048 tokens each expert gets half, to five standard deviations of sqrt(2048) /
    # 2.
    assert (counts - 1024).abs().max() < 5 * 2048**0.5 / 2


def test_a_random_choice_does_not_depend_on_the_default_type():
    """Lightning sets it by the precision."""
    draws = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            draws[dtype] = expert_draws(TOKENS, None, 2, 4, seed=0)
        finally:
            torch.set_default_dtype(torch.float32)
    for found in draws.values():
        assert found.dtype == torch.float32
        assert torch.equal(found, draws[torch.float32])


def test_the_trace_and_the_load_are_those_of_the_equations():
    ffn, weights = experts_alone(seed=3)
    x, trace = inputs(2, 4), traced(with_weights(SPARSE), TOKENS).layers[0]
    here = replace(plain_pass(x), trace=trace)
    ffn(x, here)
    load = [0] * 4
    for b in range(2):
        for t in range(4):
            shares = reference.expert_shares(weights, 2, x[b, t])
            found = zip(
                trace.experts[b, t].tolist(), trace.expert_weights[b, t], strict=True
            )
            assert {i: pytest.approx(w.item()) for i, w in shares.items()} == {
                i: w.item() for i, w in found
            }
            for i in shares:
                load[i] += 1
    assert here.auxiliary is not None
    assert here.auxiliary.load.tolist() == load


def test_the_auxiliary_loss_is_that_of_each_sequence():
    config = small(**EXPERTS, balance="loss", balance_rate=0.5)
    ffn, weights = experts_alone(config)
    x = inputs(3, 5)

    def loss(x: Tensor) -> Tensor:
        here = plain_pass(x)
        ffn(x, here)
        assert here.auxiliary is not None
        return here.auxiliary.loss

    expected = 0.0
    for sequence in x:
        choices = [set(reference.expert_shares(weights, 2, v)) for v in sequence]
        scores = [reference.softmax(weights["router.weight"] @ v) for v in sequence]
        for i in range(4):
            fraction = 4 / (2 * 5) * sum(i in chosen for chosen in choices)
            expected += 0.5 / 3 * fraction * sum(s[i].item() for s in scores) / 5
    assert loss(x).item() == pytest.approx(expected, rel=1e-12)
    parts = [loss(part).item() for part in x.split(1)]
    assert sum(parts) / 3 == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.grad(loss(x), ffn.router.weight)[0].abs().max() > SHOWS
    with torch.no_grad():
        ffn.router.weight.zero_()
    assert loss(x).item() == pytest.approx(0.5, rel=1e-12)  # all scores are alike


def test_the_auxiliary_loss_of_bfloat16_scores_counts_choices_beyond_256():
    """All tokens have the same scores, which are exact in bfloat16."""
    ffn, _ = experts_alone(small(**EXPERTS, balance="loss", balance_rate=0.5))
    scores = torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=torch.bfloat16)
    counts = (701, 300)
    chosen = torch.tensor(counts[0] * [0] + counts[1] * [1]).view(1, -1, 1)
    loss = ffn.loss(scores.repeat(1, sum(counts), 1), chosen)
    expected = 0.5 * 4 / sum(counts) * (counts[0] * 0.5 + counts[1] * 0.25)
    assert loss.item() == pytest.approx(expected, rel=1e-6)


@settings(max_examples=examples(25))
@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=5), seed=st.integers(0, 99)
)
def test_products_by_group_and_their_gradients_are_those_of_each_group(sizes, seed):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(
        sum(sizes), 6, generator=rng, dtype=torch.float64, requires_grad=True
    )
    w = torch.randn(
        len(sizes), 4, 6, generator=rng, dtype=torch.float64, requires_grad=True
    )
    ends = torch.tensor(sizes).cumsum(0).int()
    starts = pairwise([0, *ends.tolist()])
    expected = torch.cat([x[a:b] @ w[e].T for e, (a, b) in enumerate(starts)])
    actual = group_by_group(x, w, ends)
    assert torch.allclose(actual, expected, rtol=1e-12, atol=1e-12)
    for found, right in zip(
        torch.autograd.grad(actual.square().sum(), (x, w)),
        torch.autograd.grad(expected.square().sum(), (x, w)),
        strict=True,
    ):
        assert torch.allclose(found, right, rtol=1e-12, atol=1e-12)


def test_under_autocast_products_are_in_its_type_and_near_the_equations():
    ffn, _ = experts_alone()
    x = inputs(2, 8)
    exact = ffn(x, plain_pass(x))
    single = ffn.float()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = single(x.float(), plain_pass(x.float()))
    assert rounded.dtype == torch.float32
    assert 1e-4 < difference(rounded, exact) < 3e-2


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"top_k": 5}, "top_k=5 experts of n_experts=4 cannot be chosen"),
        (
            {"block": "loop"},
            "n_experts=4 in layer 0, a 'loop' block, which has no wide path",
        ),
        ({"block": ["dual", "loop"]}, "n_experts=4 in layer 1, a 'loop' block"),
        (
            {"d_ffn_wide": 12},
            "n_experts=4 with top_k=2 leaves an expert less than 8 of",
        ),
        ({"n_experts": [4, 4, 4]}, "n_experts lists 3 numbers for n_layers=2 layers"),
        ({"n_experts": -1}, "n_experts must be at least 0, not -1"),
        ({"document_start": 17}, "document_start=17 is not a token of vocab_size=17"),
    ],
)
def test_impossible_models_are_refused(changes, problem):
    with pytest.raises(ValueError, match=problem):
        small(**EXPERTS | changes)


def test_training_minimises_the_auxiliary_loss_and_logs_the_loss_without_it():
    module = DualPathModule(
        SMALL,
        OptimSettings(),
        RunSettings(),
        [1] * SMALL.vocab_size,
        [],
        seed=0,
        compile_blocks=False,
    )
    module.configure_model()
    assert same_weights(module.model, DualPathLM(SMALL, seed=0))
    plain = losses_of(module, TOKENS, TARGETS).loss
    assert torch.equal(plain, module.model(TOKENS, TARGETS).mean())
    with_balanced(module.model)
    made = losses_of(module, TOKENS, TARGETS)
    module.record(made, TARGETS)
    nats = module.model(TOKENS, TARGETS).mean()
    assert (made.loss - nats).item() == pytest.approx(
        (SMALL.loops + 1) * 0.25, rel=1e-5
    )
    assert module.train_loss.compute()["loss"].item() == pytest.approx(
        nats.item(), rel=1e-6
    )
