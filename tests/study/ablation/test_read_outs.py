"""A fitted read-out is the best one by a slow float64 search, and never worse than the
identity."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from dualpath_cli.study.ablation import read_outs
from dualpath_cli.study.ablation.read_outs import (
    READ_OUTS,
    Affine,
    Temperature,
    Text,
    facts_of,
    fit,
    fit_all,
    read_outs_of,
)

D = 3
V = 5


def text_of(seed: int, tokens: int, head: torch.Tensor, stretch: float = 1.0) -> Text:
    """Next tokens drawn by the head from states; the text's states are stretched and
    shifted."""
    draw = torch.Generator().manual_seed(seed)
    states = torch.randn(tokens, D, generator=draw)
    shares = (states @ head.T).softmax(-1)
    targets = shares.multinomial(1, generator=draw)[:, 0]
    return Text(stretch * states + (stretch - 1), targets)


@pytest.fixture
def head() -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(V, D, generator=draw)


def slow_loss(
    text: Text, head: torch.Tensor, matrix: np.ndarray, bias: np.ndarray
) -> float:
    """Mean nats of ``z + M z + b`` under the head, token by token, in float64."""
    nats = []
    for z, target in zip(text.states.double().numpy(), text.targets, strict=True):
        logits = head.double().numpy() @ (z + matrix @ z + bias)
        nats.append(math.log(np.exp(logits).sum()) - logits[int(target)])
    return float(np.mean(nats))


def penalised(
    text: Text, head: torch.Tensor, numbers: np.ndarray, penalty: float
) -> float:
    matrix = numbers[: D * D].reshape(D, D)
    loss = slow_loss(text, head, matrix, numbers[D * D :])
    return loss + penalty / 2 * float(np.sum(numbers**2))


def test_no_small_change_of_an_affine_map_lowers_its_penalised_loss(head, monkeypatch):
    """The problem is convex: a point without a way down is the best one."""
    monkeypatch.setattr(read_outs, "TOLERANCE", 1e-9)
    text = text_of(1, 60, head, stretch=3.0)
    affine = Affine(D)
    assert fit(affine, text, head).converged

    numbers = torch.cat([affine.matrix.flatten(), affine.bias]).detach().double()
    penalty = D / 60
    best = penalised(text, head, numbers.numpy(), penalty)
    draw = np.random.default_rng(0)
    for size in (0.3, 0.1, 0.03):
        for change in draw.normal(size=(20, len(numbers))):
            other = numbers.numpy() + size * change / np.linalg.norm(change)
            assert penalised(text, head, other, penalty) > best - 1e-6
    without = slow_loss(text, head, np.zeros((D, D)), np.zeros(D))
    assert best < without - 0.1


def test_the_temperature_is_that_of_a_search_in_float64(head):
    text = text_of(2, 200, head, stretch=1.0)
    text.states = 2.5 * text.states
    temperature = Temperature(D)
    fit(temperature, text, head)

    def slow(inverse: float) -> float:
        loss = slow_loss(text, head, (inverse - 1) * np.eye(D), np.zeros(D))
        return loss + (inverse - 1) ** 2 / (2 * 200)

    # The loss is convex: one minimum.
    best = minimize_scalar(slow, bounds=(0.1, 2), method="bounded").x
    assert temperature.inverse.item() == pytest.approx(best, abs=0.003)
    # about the factor that the states were stretched by
    assert 1 / temperature.inverse.item() == pytest.approx(2.5, rel=0.25)


@given(
    st.sampled_from(sorted(READ_OUTS)),
    st.floats(0.5, 4),
    st.integers(1, 40),
    st.integers(0, 99),
)
def test_no_fit_is_worse_than_the_identity_on_its_text(name, stretch, tokens, seed):
    head = torch.randn(V, D, generator=torch.Generator().manual_seed(0))
    text = text_of(seed, tokens, head, stretch)
    before = slow_loss(text, head, np.zeros((D, D)), np.zeros(D))
    read_out = READ_OUTS[name](D)
    found = fit(read_out, text, head)
    assert found.loss_before == pytest.approx(before, rel=1e-5, abs=1e-6)
    assert found.loss <= found.loss_before + 1e-6
    assert found.loss == pytest.approx(text.nats(read_out, head).item() / tokens)


def test_a_fit_is_the_same_again_and_comes_back_from_its_arrays(head, monkeypatch):
    text = text_of(7, 40, head, 2.0)
    first, second = fit_all(text, head), fit_all(text, head)
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert np.array_equal(array, second[name]), name

    z = torch.randn(4, D)
    found = read_outs_of(first, torch.device("cpu"))
    matrix, bias = (torch.from_numpy(first[f"affine.{n}"]) for n in ("matrix", "bias"))
    torch.testing.assert_close(found["affine"](z), z + z @ matrix.T + bias)
    temperature = facts_of(first)["temperature"]["temperature"]
    torch.testing.assert_close(found["temperature"](z), z / temperature)

    monkeypatch.setattr(read_outs, "MOST_STEPS", 2)
    facts = facts_of(fit_all(text, head))
    assert not facts["affine"]["converged"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_fits_do_not_depend_on_the_default_type(dtype, head):
    """Lightning sets it by the precision."""
    text = text_of(3, 40, head, 2.0)
    expected = fit_all(text, head)
    torch.set_default_dtype(dtype)
    try:
        found = fit_all(text, head)
        mapped = read_outs_of(found, torch.device("cpu"))["affine"](text.states)
    finally:
        torch.set_default_dtype(torch.float32)
    assert mapped.dtype == torch.float32
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert array.dtype == expected[name].dtype, name
        assert np.array_equal(array, expected[name]), name
