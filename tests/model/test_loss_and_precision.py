"""The loss is the cross-entropy, and float32 under bf16 autocast is as good as it can
be."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dualpath_cli.model import DualPathLM
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.spec.config import ModelConfig
from tests.model import reference
from tests.model.reference import difference, random_tokens
from tests.model.small_models import (
    EXACT,
    MEDIUM,
    SMALL,
    TARGETS,
    TOKENS,
    medium,
    streams,
    with_weights,
)

WINDOW = random_tokens(MEDIUM, 2, 32)
NEXT = random_tokens(MEDIUM, 2, 32, seed=1)


class TestLoss:
    def test_it_is_the_cross_entropy_of_the_logits(self):
        model = with_weights(SMALL)
        expected = F.cross_entropy(
            model(TOKENS).flatten(0, 1), TARGETS.flatten(), reduction="none"
        )
        nll = model(TOKENS, TARGETS)
        assert nll.dtype == torch.float64
        assert difference(nll, expected.view(2, 8)) <= EXACT

    def test_ignored_targets_cost_nothing_and_teach_nothing(self):
        model, masked = with_weights(SMALL), TARGETS.clone()
        masked[0, 2] = masked[1, 5:] = IGNORE
        kept = masked != IGNORE
        assert IGNORE == -100
        nll = model(TOKENS, masked)
        assert torch.equal(nll, model(TOKENS, TARGETS) * kept)

        expected = (model(TOKENS, TARGETS) * kept).sum()
        for actual, wanted in zip(
            gradients(model, nll), gradients(model, expected), strict=True
        ):
            assert difference(actual, wanted) <= EXACT

    @pytest.mark.parametrize(
        ("positions", "compiled"), [(1, False), (15, False), (6, True)]
    )
    def test_parts_do_not_show(self, positions, compiled, monkeypatch):
        """Of 16 positions: one by one, 8 and 8, and 6, 5 and 5."""
        model, targets = with_weights(SMALL), TARGETS.clone()
        targets[1, 2] = IGNORE
        whole = model(TOKENS, targets)
        expected = gradients(model, whole)
        monkeypatch.setattr(
            "dualpath_cli.model.loss.MAX_LOGITS", positions * SMALL.vocab_size
        )
        if compiled:
            model.loss.compile(backend="aot_eager")
        chunked = model(TOKENS, targets)
        assert difference(chunked, whole) <= EXACT
        for actual, wanted in zip(gradients(model, chunked), expected, strict=True):
            assert difference(actual, wanted) <= EXACT


def gradients(model: DualPathLM, losses: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(losses.sum(), list(model.parameters()))


class TestPrecision:
    """A float32 model under bf16 autocast, against the same model in float64.

    Errors are norms of differences over norms, each bound about twice the distance
    measured on the weights of this test. At the start: logits 0.3 %, updates of the
    stream 0.5 %, gradients of matrices 1 %. With large random weights, 16 sublayers
    deep: logits 2.2 %.
    """

    def test_logits_at_the_start_and_with_large_weights(self):
        start = DualPathLM(MEDIUM, seed=0)
        large = reference.load(
            DualPathLM(MEDIUM), reference.random_weights(MEDIUM, seed=0)
        )
        exact = as_double(large)(WINDOW)
        assert distance(under_autocast(start), as_double(start)(WINDOW)) < 0.006
        assert distance(under_autocast(large), exact) < 0.045
        assert distance(large(WINDOW), exact) < 5e-6

    def test_the_loss_is_float32_whatever_the_logits_are(self):
        single = DualPathLM(MEDIUM, seed=0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits, nll = single(WINDOW), single(WINDOW, NEXT)
        assert logits.dtype == torch.bfloat16
        assert nll.dtype == torch.float32
        # A bf16 loss of about ln 64 would lie on a grid of 2^-6.
        assert (nll - as_double(single)(WINDOW, NEXT)).abs().max() < 2e-3

    def test_gradients_at_the_start(self):
        single = DualPathLM(MEDIUM, seed=0)
        double = as_double(single)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = single(WINDOW, NEXT).mean()
        loss.backward()
        double(WINDOW, NEXT).mean().backward()
        exact = dict(double.named_parameters())
        for name, parameter in single.named_parameters():
            few = parameter.numel() < 16  # gains and biases: no averaging over entries
            assert distance(parameter.grad, exact[name].grad) < (
                0.08 if few else 0.02
            ), name

    @pytest.mark.parametrize("gain_init", [-7.0, -5.0, -3.0])
    @pytest.mark.parametrize("block", ["dual", "loop"])
    def test_the_first_updates_of_a_float32_stream_survive(self, block, gain_init):
        config = medium(block=block, gain_init=gain_init)
        assert error_of_the_updates(config, "float32") < 0.01

    @pytest.mark.parametrize(
        ("gain_init", "lost"), [(-7.0, 0.98), (-5.0, 0.79), (-3.0, 0.25)]
    )
    def test_the_first_updates_of_a_bfloat16_stream_are_rounded_away(
        self, gain_init, lost
    ):
        config = medium(gain_init=gain_init)
        assert error_of_the_updates(config, "bfloat16") == pytest.approx(lost, abs=0.05)


def as_double(single: DualPathLM) -> DualPathLM:
    return copy.deepcopy(single).double()


@torch.no_grad()
def under_autocast(single: DualPathLM) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return single(WINDOW)


@torch.no_grad()
def error_of_the_updates(config: ModelConfig, residual_dtype: str) -> float:
    """How far all blocks' updates together are from those in float64, at the start."""
    start = DualPathLM(config, seed=0)
    exact = streams(as_double(start), WINDOW)
    model = DualPathLM(
        dataclasses.replace(config, residual_dtype=residual_dtype), seed=0
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = streams(model, WINDOW)
    update = rounded[-1][1].double() - rounded[0][0].double()
    return distance(update, exact[-1][1] - exact[0][0])


def distance(actual: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of what is expected."""
    return ((actual.double() - expected).norm() / expected.norm()).item()
