"""What must hold of any dual-path model, whatever its weights, and of every model at the start."""

import copy
import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dualpath_cli.config import ModelConfig
from dualpath_cli.model import DualPathLM, RoutingTrace
from dualpath_cli.model.loss import IGNORE
from tests.model import reference
from tests.model.reference import difference, random_tokens

EXACT = 1e-12
"""Largest relative difference of two float64 results that are equal by the equations."""

SMALL = ModelConfig(
    vocab_size=17,
    n_layers=2,
    d_model=16,
    n_heads=4,
    n_kv_heads=2,
    max_seq_len=12,
    loops=3,
    d_ffn=24,
    d_ffn_wide=48,
    ffn_multiple_of=8,
)

MEDIUM = ModelConfig(
    vocab_size=64,
    n_layers=4,
    d_model=64,
    n_heads=4,
    n_kv_heads=4,
    max_seq_len=32,
    loops=4,
    d_ffn=100,
    d_ffn_wide=200,
    ffn_multiple_of=64,
)

ALL_KINDS = {"block": ["dual", "loop", "wide"], "n_layers": 3}


def with_changes(config: ModelConfig, **changes) -> ModelConfig:
    return dataclasses.replace(config, **changes)


def with_weights(config: ModelConfig, weights: reference.Weights | None = None) -> DualPathLM:
    """A float64 model with these weights, or with large random ones."""
    weights = weights or reference.random_weights(config, seed=0)
    return reference.load(DualPathLM(config).double(), weights)


def at_the_start(config: ModelConfig, seed: int = 0) -> DualPathLM:
    model = DualPathLM(config)
    model.init_weights(seed)
    return model


def streams(model: DualPathLM, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The residual stream before and after each block."""
    seen: list[tuple[Tensor, Tensor]] = []
    hooks = [
        block.register_forward_hook(lambda _, inputs, y: seen.append((inputs[0], y)))
        for block in model.blocks
    ]
    model(tokens)
    for hook in hooks:
        hook.remove()
    return seen


def traced(model: DualPathLM, tokens: Tensor) -> RoutingTrace:
    trace = RoutingTrace()
    model(tokens, trace=trace)
    return trace


class TestStart:
    def test_both_gates_are_one_half(self):
        for layer in traced(at_the_start(MEDIUM), random_tokens(MEDIUM, 2, 32)).layers:
            assert (layer.gate_deep == 0.5).all()
            assert (layer.gate_wide == 0.5).all()

    @pytest.mark.parametrize("block", ["dual", "loop", "wide"])
    def test_each_block_returns_its_input_to_one_percent_but_not_exactly(self, block):
        config = with_changes(MEDIUM, block=block)
        for x, y in streams(at_the_start(config), random_tokens(config, 2, 32)):
            assert 1e-5 < ((y - x).norm() / x.norm()).item() < 1e-2

    def test_the_gains_are_nine_ten_thousandths(self):
        block = at_the_start(MEDIUM).blocks[0]
        for gains in (F.softplus(block.deep.gains), F.softplus(block.wide.gain)):
            assert gains.tolist() == pytest.approx([9.1e-4] * len(gains), rel=5e-3)

    def test_the_place_of_the_query_and_key_norm_does_not_show_yet(self):
        """A rotation keeps the RMS: only learned norm weights tell the two orders apart."""
        tokens = random_tokens(SMALL, 2, 8)
        after = at_the_start(with_changes(SMALL, gain_init=1.0)).double()
        before = DualPathLM(with_changes(SMALL, qk_norm="before_rope")).double()
        before.load_state_dict(after.state_dict())
        assert difference(before(tokens), after(tokens)) <= EXACT

    def test_two_gates_are_fixed_gates_yet(self):
        tokens = random_tokens(SMALL, 2, 8)
        config = with_changes(SMALL, gain_init=1.0)
        free, fixed = (at_the_start(with_changes(config, gate=g)) for g in ("two_gates", "fixed"))
        assert difference(free.double()(tokens), fixed.double()(tokens)) <= EXACT


STDS = {
    "embed": 0.02,
    "head": 0.02,
    "q_proj": 0.02,
    "k_proj": 0.02,
    "v_proj": 0.02,
    "gate_proj": 0.02,
    "up_proj": 0.02,
    "router": 0.02,
    "o_proj": 0.02 / math.sqrt(2 * 4),
    "down_proj": 0.02 / math.sqrt(2 * 4),
}
"""Standard deviations of what is drawn, in MEDIUM with its four layers."""


class TestInitialisation:
    @pytest.mark.parametrize(("module", "std"), STDS.items(), ids=STDS.keys())
    def test_weights_are_normal_with_the_standard_deviation_of_their_kind(self, module, std):
        drawn = [
            parameter.flatten()
            for name, parameter in at_the_start(MEDIUM).named_parameters()
            if name.endswith(f"{module}.weight")
        ]
        values = torch.cat(drawn) / std
        n = len(values)  # at least 4 routers of 65 weights
        assert abs(values.mean().item()) < 4 / math.sqrt(n)
        assert abs(values.std().item() - 1) < 4 / math.sqrt(2 * n)
        beyond_two_stds = (values.abs() > 2).double().mean().item()
        assert abs(beyond_two_stds - 0.0455) < 4 * math.sqrt(0.0455 / n)

    def test_everything_else_starts_at_its_constant(self):
        constants = {"gains": -7.0, "gain": -7.0, "bias": 0.0}
        seen = set()
        for name, parameter in at_the_start(MEDIUM).named_parameters():
            module, _, kind = name.rpartition(".")
            if module.endswith("norm"):
                expected = 1.0
            elif module.endswith("gate.proj"):
                expected = 0.0
            elif kind in constants:
                expected = constants[kind]
            else:
                assert module.split(".")[-1] in STDS, f"{name} is in neither test"
                continue
            seen.add(expected)
            assert (parameter == expected).all(), name
        assert seen == {-7.0, 0.0, 1.0}

    def test_the_settings_reach_the_weights(self):
        model = at_the_start(with_changes(MEDIUM, init_std=0.1, gain_init=-3.0))
        assert model.embed.weight.std().item() == pytest.approx(0.1, rel=0.05)
        assert (model.blocks[0].deep.gains == -3).all()

    def test_a_seed_decides_all_weights(self):
        first, again, other = (at_the_start(SMALL, seed) for seed in (5, 5, 6))
        assert same_weights(first, again)
        assert not same_weights(first, other)

    def test_without_a_seed_the_global_one_decides(self):
        models = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            models.append(DualPathLM(SMALL))
        assert same_weights(models[0], models[1])
        assert not same_weights(models[0], models[2])

    def test_no_two_matrices_are_drawn_alike(self):
        starts = [
            tuple(parameter.flatten()[:4].tolist())
            for parameter in at_the_start(with_changes(SMALL, gate="fixed")).parameters()
            if parameter.dim() == 2
        ]
        assert len(set(starts)) == len(starts)

    def test_a_layer_starts_alike_whatever_kind_the_others_are(self):
        dual, mixed = (
            dict(at_the_start(with_changes(SMALL, block=block)).named_parameters())
            for block in (["dual", "dual"], ["wide", "dual"])
        )
        assert set(mixed) < set(dual)
        assert all(torch.equal(dual[name], mixed[name]) for name in mixed)

    @pytest.mark.parametrize("tied", [False, True])
    def test_a_model_built_without_memory_starts_alike(self, tied):
        config = with_changes(SMALL, tie_embeddings=tied, **ALL_KINDS)
        with torch.device("meta"):
            model = DualPathLM(config)
        assert all(parameter.is_meta for parameter in model.parameters())
        model.to_empty(device="cpu")
        model.init_weights(3)
        direct = at_the_start(config, 3)
        assert same_weights(model, direct)
        tokens = random_tokens(config, 1, 5)
        assert torch.equal(model(tokens), direct(tokens))
        assert (model.head.weight.data_ptr() == model.embed.weight.data_ptr()) is tied


def same_weights(one: DualPathLM, other: DualPathLM) -> bool:
    pairs = zip(one.named_parameters(), other.named_parameters(), strict=True)
    return all(a == b and torch.equal(p, q) for (a, p), (b, q) in pairs)


class TestSteps:
    @pytest.mark.parametrize("step_index", ["zero_based", "one_based"])
    @pytest.mark.parametrize("combination", ["router", "final", "mean"])
    def test_step_weights_sum_to_one(self, combination, step_index):
        config = with_changes(SMALL, combination=combination, step_index=step_index)
        for layer in traced(with_weights(config), random_tokens(config, 2, 8)).layers:
            weights = layer.step_weights
            assert weights.shape == (2, 8, config.loops)
            assert (weights >= 0).all()
            assert (weights.sum(-1) - 1).abs().max() <= EXACT

    @pytest.mark.parametrize("combination", ["router", "final", "mean"])
    def test_a_silent_sublayer_makes_the_deep_path_the_identity(self, combination):
        """All h^(k) = x, so h_deep = x: the weights that mix them sum to 1, whatever they are."""
        config = with_changes(SMALL, block="loop", combination=combination)
        weights = reference.random_weights(config, seed=0)
        silent = {k: w.fill_(-1000) if k.endswith("gains") else w for k, w in weights.items()}
        for x, y in streams(with_weights(config, silent), random_tokens(config, 2, 8)):
            assert difference(y, x) <= EXACT

    def test_a_router_that_never_stops_returns_the_last_step(self):
        tokens = random_tokens(SMALL, 2, 8)
        router = routers_at(-1000, reference.random_weights(SMALL, seed=0))
        final = with_changes(SMALL, combination="final")
        expected = with_weights(final, router)(tokens)
        assert difference(with_weights(SMALL, router)(tokens), expected) <= EXACT

    def test_a_router_that_stops_at_once_returns_the_first_step(self):
        tokens = random_tokens(SMALL, 2, 8)
        router = routers_at(1000, reference.random_weights(SMALL, seed=0))
        once = {k: w[:1] if k.endswith("gains") else w for k, w in router.items()}
        expected = with_weights(with_changes(SMALL, loops=1), once)(tokens)
        assert difference(with_weights(SMALL, router)(tokens), expected) <= EXACT

    def test_an_undecided_router_of_two_steps_returns_their_mean(self):
        tokens = random_tokens(SMALL, 2, 8)
        two, mean = (with_changes(SMALL, loops=2, combination=c) for c in ("router", "mean"))
        router = routers_at(0, reference.random_weights(two, seed=0))
        expected = with_weights(mean, router)(tokens)
        assert difference(with_weights(two, router)(tokens), expected) <= EXACT

    def test_the_last_step_is_not_routed(self):
        """Of two steps the first has index 0: the index's weight would act through q_2 alone."""
        config = with_changes(SMALL, loops=2)
        weights = reference.random_weights(config, seed=0)
        tokens = random_tokens(config, 2, 8)
        model = with_weights(config, weights)
        logits = model(tokens)
        logits.square().sum().backward()
        other = copy.deepcopy(model)
        with torch.no_grad():
            for block, changed in zip(model.blocks, other.blocks, strict=True):
                assert (block.deep.router.weight.grad[0, -1] == 0).all()
                assert (block.deep.router.weight.grad[0, :-1] != 0).all()
                changed.deep.router.weight[0, -1] += 10
        assert torch.equal(other(tokens), logits)

    def test_with_the_index_counted_from_one_its_weight_acts(self):
        config = with_changes(SMALL, loops=2, step_index="one_based")
        model = with_weights(config)
        model(random_tokens(config, 2, 8)).square().sum().backward()
        assert all((block.deep.router.weight.grad != 0).all() for block in model.blocks)

    def test_one_step_is_the_same_under_every_combination(self):
        tokens = random_tokens(SMALL, 2, 8)
        one = with_changes(SMALL, loops=1)
        weights = reference.random_weights(one, seed=0)
        router, final, mean = (
            with_weights(with_changes(one, combination=c), weights)(tokens)
            for c in ("router", "final", "mean")
        )
        assert difference(final, router) <= EXACT
        assert difference(mean, router) <= EXACT

    def test_a_loop_block_of_one_step_is_a_wide_block(self):
        tokens = random_tokens(SMALL, 2, 8)
        loop = with_changes(SMALL, block="loop", loops=1)
        wide = with_changes(SMALL, block="wide", d_ffn_wide=SMALL.d_ffn)
        weights = reference.random_weights(loop, seed=0)
        renamed = {
            name.replace("deep.gains", "wide.gain").replace("deep", "wide"): weight
            for name, weight in weights.items()
        }
        expected = with_weights(loop, weights)(tokens)
        assert difference(with_weights(wide, renamed)(tokens), expected) <= EXACT

    @pytest.mark.parametrize(
        ("changes", "routed"),
        [
            ({}, True),
            ({"block": "loop"}, True),
            ({"loops": 1}, False),
            ({"combination": "final"}, False),
            ({"combination": "mean"}, False),
            ({"block": "wide"}, False),
        ],
        ids=str,
    )
    def test_a_router_exists_where_there_is_a_choice_of_steps(self, changes, routed):
        names = DualPathLM(with_changes(SMALL, **changes)).state_dict()
        assert any("router" in name for name in names) is routed

    @pytest.mark.parametrize("gate", ["two_gates", "convex", "softmax", "fixed"])
    @pytest.mark.parametrize("combination", ["router", "final", "mean"])
    @pytest.mark.parametrize("loops", [1, 2])
    def test_every_parameter_is_used(self, loops, combination, gate):
        config = with_changes(SMALL, loops=loops, combination=combination, gate=gate, **ALL_KINDS)
        model = with_weights(config)
        model(random_tokens(config, 2, 8)).square().sum().backward()
        unused = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
        assert unused == []


def routers_at(bias: float, weights: reference.Weights) -> reference.Weights:
    """Every router decides by its bias alone."""
    values = {"router.weight": 0.0, "router.bias": bias}
    return {
        name: torch.full_like(weight, values[".".join(name.split(".")[-2:])])
        if "router" in name
        else weight
        for name, weight in weights.items()
    }


class TestGates:
    def test_two_open_and_shut_gates_leave_one_path(self):
        tokens = random_tokens(SMALL, 2, 8)
        weights = reference.random_weights(SMALL, seed=0)
        for block, logits in (("loop", [1000.0, -1000.0]), ("wide", [-1000.0, 1000.0])):
            gated = {
                name: torch.tensor(logits, dtype=torch.float64)
                if name.endswith("gate.proj.bias")
                else weight
                for name, weight in weights.items()
            }
            expected = with_weights(with_changes(SMALL, block=block), weights)(tokens)
            assert difference(with_weights(SMALL, gated)(tokens), expected) <= EXACT

    def test_silent_paths_scale_the_stream_by_the_sum_of_the_gates(self):
        weights = reference.random_weights(SMALL, seed=0)
        silent = {k: w.fill_(-1000) if ".gain" in k else w for k, w in weights.items()}
        model = with_weights(SMALL, silent)
        tokens = random_tokens(SMALL, 2, 8)
        layers = traced(model, tokens).layers
        for (x, y), layer in zip(streams(model, tokens), layers, strict=True):
            total = (layer.gate_deep + layer.gate_wide)[..., None]
            assert difference(y, total * x) <= EXACT
            assert (total - 1).abs().max() > 0.1

    @pytest.mark.parametrize("gate", ["convex", "softmax", "fixed"])
    def test_gates_of_these_kinds_sum_to_one(self, gate):
        config = with_changes(SMALL, gate=gate)
        for layer in traced(with_weights(config), random_tokens(config, 2, 8)).layers:
            assert (layer.gate_deep + layer.gate_wide - 1).abs().max() <= EXACT

    def test_a_softmax_over_two_logits_is_the_convex_gate_of_their_difference(self):
        tokens = random_tokens(SMALL, 2, 8)
        weights = reference.random_weights(SMALL, seed=0)
        merged = {k: w[:1] - w[1:] if "gate.proj." in k else w for k, w in weights.items()}
        merged |= {k: w for k, w in weights.items() if "ffn.gate_proj" in k}
        softmax, convex = (with_changes(SMALL, gate=g) for g in ("softmax", "convex"))
        expected = with_weights(softmax, weights)(tokens)
        assert difference(with_weights(convex, merged)(tokens), expected) <= EXACT


class TestTokens:
    @pytest.mark.parametrize("changed", [0, 3, 7])
    def test_a_token_reaches_itself_and_the_later_ones_only(self, changed):
        config = with_changes(SMALL, **ALL_KINDS)
        model, tokens = with_weights(config), random_tokens(config, 2, 8)
        other = tokens.clone()
        other[:, changed] = (other[:, changed] + 1) % config.vocab_size
        moved = (model(tokens) - model(other)).abs().amax(-1)
        assert (moved[:, :changed] <= EXACT).all()
        assert (moved[:, changed:] > 1e-6).all()

    def test_what_follows_does_not_change_a_prefix(self):
        config = with_changes(SMALL, **ALL_KINDS)
        model, tokens = with_weights(config), random_tokens(config, 2, 8)
        for length in (1, 5):
            assert difference(model(tokens[:, :length]), model(tokens)[:, :length]) <= EXACT

    def test_sequences_of_a_batch_do_not_meet(self):
        config = with_changes(SMALL, **ALL_KINDS)
        model, tokens = with_weights(config), random_tokens(config, 3, 8)
        for row in range(3):
            assert difference(model(tokens[row : row + 1])[0], model(tokens)[row]) <= EXACT

    def test_the_order_of_earlier_tokens_matters(self):
        config = with_changes(SMALL, **ALL_KINDS)
        model = with_weights(config)
        one, other = (model(torch.tensor([order]))[0, -1] for order in ([1, 2, 3, 4], [2, 1, 3, 4]))
        assert difference(one, other) > 1e-3


class TestTying:
    def test_tied_weights_are_one_tensor(self):
        model = DualPathLM(with_changes(SMALL, tie_embeddings=True))
        assert model.head.weight.data_ptr() == model.embed.weight.data_ptr()
        assert "head.weight" not in dict(model.named_parameters())

    def test_untied_weights_are_two(self):
        model = DualPathLM(SMALL)
        assert model.head.weight.data_ptr() != model.embed.weight.data_ptr()

    def test_the_gradient_of_tied_weights_is_the_sum_over_both_uses(self):
        tokens, targets = random_tokens(SMALL, 2, 8), random_tokens(SMALL, 2, 8, seed=1)
        tied = with_weights(with_changes(SMALL, tie_embeddings=True))
        untied = with_weights(SMALL, tied.state_dict() | {"head.weight": tied.embed.weight})
        for model in (tied, untied):
            model(tokens, targets).sum().backward()
        both = untied.embed.weight.grad + untied.head.weight.grad
        assert difference(tied.embed.weight.grad, both) <= EXACT

    def test_tied_weights_stay_tied_when_loaded(self):
        config = with_changes(SMALL, tie_embeddings=True)
        saved = at_the_start(config, 1).state_dict()
        model = at_the_start(config, 2)
        model.load_state_dict(saved)
        assert model.head.weight.data_ptr() == model.embed.weight.data_ptr()
        assert torch.equal(model.head.weight, saved["embed.weight"])


class TestLoss:
    def test_it_is_the_cross_entropy_of_the_logits(self):
        model, tokens = with_weights(SMALL), random_tokens(SMALL, 2, 8)
        targets = random_tokens(SMALL, 2, 8, seed=1)
        expected = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="none")
        nll = model(tokens, targets=targets)
        assert nll.dtype == torch.float64
        assert difference(nll, expected.view(2, 8)) <= EXACT

    def test_ignored_targets_cost_nothing_and_teach_nothing(self):
        model, tokens = with_weights(SMALL), random_tokens(SMALL, 2, 8)
        targets = random_tokens(SMALL, 2, 8, seed=1)
        masked = targets.clone()
        masked[0, 2] = masked[1, 5:] = IGNORE
        kept = masked != IGNORE
        assert IGNORE == -100
        nll = model(tokens, targets=masked)
        assert torch.equal(nll, model(tokens, targets=targets) * kept)

        gradients = torch.autograd.grad(nll.sum(), list(model.parameters()))
        expected = (model(tokens, targets=targets) * kept).sum()
        for actual, wanted in zip(
            gradients, torch.autograd.grad(expected, list(model.parameters())), strict=True
        ):
            assert difference(actual, wanted) <= EXACT

    def test_a_batch_without_targets_gives_zeros_everywhere(self):
        model, tokens = with_weights(SMALL), random_tokens(SMALL, 2, 8)
        nll = model(tokens, targets=torch.full_like(tokens, IGNORE))
        nll.sum().backward()
        assert (nll == 0).all()
        assert all((parameter.grad == 0).all() for parameter in model.parameters())

    @pytest.mark.parametrize("positions", [1, 3, 15, 16])
    def test_chunks_do_not_show(self, positions, monkeypatch):
        model, tokens = with_weights(SMALL), random_tokens(SMALL, 2, 8)
        targets = random_tokens(SMALL, 2, 8, seed=1)
        targets[1, 2] = IGNORE
        whole = model(tokens, targets=targets)
        expected = torch.autograd.grad(whole.sum(), list(model.parameters()))
        monkeypatch.setattr("dualpath_cli.model.loss.MAX_LOGITS", positions * SMALL.vocab_size)
        chunked = model(tokens, targets=targets)
        assert difference(chunked, whole) <= EXACT
        actual = torch.autograd.grad(chunked.sum(), list(model.parameters()))
        for a, e in zip(actual, expected, strict=True):
            assert difference(a, e) <= EXACT


def test_gradients_are_those_of_finite_differences():
    config = ModelConfig(
        vocab_size=4,
        n_layers=1,
        d_model=4,
        n_heads=2,
        n_kv_heads=1,
        max_seq_len=3,
        loops=2,
        d_ffn=3,
        d_ffn_wide=4,
        ffn_multiple_of=1,
        norm_eps=1e-2,
    )
    model, tokens = with_weights(config), torch.tensor([[2, 0, 3]])
    names = [name for name, _ in model.named_parameters()]

    def loss(*values: Tensor) -> Tensor:
        named = dict(zip(names, values, strict=True))
        return torch.func.functional_call(model, named, (tokens, torch.tensor([[0, 3, 1]])))

    assert torch.autograd.gradcheck(loss, tuple(model.parameters()))


class TestPrecision:
    """A float32 model under bf16 autocast, against the same model in float64.

    Errors are norms of differences over norms, each bound about twice the distance measured on
    the weights of this test. At the start: logits 0.3 %, updates of the stream 0.5 %, gradients
    of matrices 1 %. With large random weights, 16 sublayers deep: logits 2.2 %.
    """

    def test_logits_at_the_start(self):
        single = at_the_start(MEDIUM)
        tokens = random_tokens(MEDIUM, 2, 32)
        assert distance(under_autocast(single, tokens), as_double(single)(tokens)) < 0.006

    def test_logits_with_large_weights(self):
        single = reference.load(DualPathLM(MEDIUM), reference.random_weights(MEDIUM, seed=0))
        tokens = random_tokens(MEDIUM, 2, 32)
        assert distance(under_autocast(single, tokens), as_double(single)(tokens)) < 0.045

    def test_float32_logits_without_autocast(self):
        single = reference.load(DualPathLM(MEDIUM), reference.random_weights(MEDIUM, seed=0))
        tokens = random_tokens(MEDIUM, 2, 32)
        assert distance(single(tokens), as_double(single)(tokens)) < 5e-6

    def test_the_loss_is_float32_whatever_the_logits_are(self):
        single = at_the_start(MEDIUM)
        tokens, targets = random_tokens(MEDIUM, 2, 32), random_tokens(MEDIUM, 2, 32, seed=1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits, nll = single(tokens), single(tokens, targets)
        assert logits.dtype == torch.bfloat16
        assert nll.dtype == torch.float32
        # A bf16 loss of about ln 64 would lie on a grid of 2^-6.
        assert (nll - as_double(single)(tokens, targets)).abs().max() < 2e-3

    def test_gradients_at_the_start(self):
        single = at_the_start(MEDIUM)
        double = as_double(single)
        tokens, targets = random_tokens(MEDIUM, 2, 32), random_tokens(MEDIUM, 2, 32, seed=1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = single(tokens, targets).mean()
        loss.backward()
        double(tokens, targets).mean().backward()
        exact = dict(double.named_parameters())
        for name, parameter in single.named_parameters():
            few = parameter.numel() < 16  # gains and biases: no averaging over entries
            assert distance(parameter.grad, exact[name].grad) < (0.08 if few else 0.02), name

    @pytest.mark.parametrize("block", ["dual", "loop", "wide"])
    def test_the_residual_stream_stays_float32(self, block):
        single = at_the_start(with_changes(MEDIUM, block=block))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            seen = streams(single, random_tokens(MEDIUM, 2, 32))
        assert {stream.dtype for pair in seen for stream in pair} == {torch.float32}

    @pytest.mark.parametrize("gain_init", [-7.0, -5.0, -3.0])
    @pytest.mark.parametrize("block", ["dual", "loop"])
    def test_the_first_updates_of_a_float32_stream_survive(self, block, gain_init):
        config = with_changes(MEDIUM, block=block, gain_init=gain_init)
        assert error_of_the_updates(config, "float32") < 0.01

    @pytest.mark.parametrize(("gain_init", "lost"), [(-7.0, 0.98), (-5.0, 0.79), (-3.0, 0.25)])
    def test_the_first_updates_of_a_bfloat16_stream_are_rounded_away(self, gain_init, lost):
        config = with_changes(MEDIUM, gain_init=gain_init)
        assert error_of_the_updates(config, "bfloat16") == pytest.approx(lost, abs=0.05)


def as_double(single: DualPathLM) -> DualPathLM:
    return copy.deepcopy(single).double()


@torch.no_grad()
def under_autocast(single: DualPathLM, tokens: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return single(tokens)


@torch.no_grad()
def error_of_the_updates(config: ModelConfig, residual_dtype: str) -> float:
    """How far all blocks' updates together are from those in float64, at the start."""
    tokens = random_tokens(config, 2, 32)
    start = at_the_start(config)
    exact = streams(as_double(start), tokens)
    model = DualPathLM(with_changes(config, residual_dtype=residual_dtype))
    model.load_state_dict(start.state_dict())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = streams(model, tokens)
    update = rounded[-1][1].double() - rounded[0][0].double()
    return distance(update, exact[-1][1] - exact[0][0])


def distance(actual: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of what is expected."""
    return ((actual.double() - expected).norm() / expected.norm()).item()
