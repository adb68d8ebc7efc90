"""Rotation and norm of heads, beside the equations in float64 number by number."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.kernels.rotary import RotatedNorm, rope_of, rotate

EPS = 1e-5


def turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Each pair (x_i, x_{i + N/2}) of a head turned by its position's i-th angle, in a loop."""
    out, half = torch.empty_like(x), x.shape[-1] // 2
    for b, t, h, i in torch.cartesian_prod(*map(torch.arange, (*x.shape[:-1], half))).tolist():
        angle = angles[t, i].item()
        first, second = x[b, t, h, i], x[b, t, h, i + half]
        out[b, t, h, i] = first * math.cos(angle) - second * math.sin(angle)
        out[b, t, h, i + half] = first * math.sin(angle) + second * math.cos(angle)
    return out


def module(weight: torch.Tensor) -> RotatedNorm:
    norm = RotatedNorm(len(weight), eps=EPS)
    norm.weight = torch.nn.Parameter(weight.detach())
    return norm


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + EPS) * weight


@given(seed=st.integers(0, 99), half=st.integers(1, 4), heads=st.integers(1, 3))
def test_heads_are_turned_then_normed_and_so_are_their_gradients(seed, half, heads):
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    x, weight, angles = drawn(2, 3, heads, 2 * half), drawn(2 * half), drawn(3, half).detach()
    rope = rope_of(angles, torch.float64)
    torch.testing.assert_close(rotate(x, rope), turned(x, angles))
    norm = module(weight)
    got, wanted = norm(x, rope), normed(turned(x, angles), weight)
    torch.testing.assert_close(got, wanted)
    gradient = drawn(*x.shape).detach()
    torch.testing.assert_close(
        torch.autograd.grad(got, (x, norm.weight), gradient),
        torch.autograd.grad(wanted, (x, weight), gradient),
    )


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("inputs", [torch.bfloat16, torch.float32])
def test_the_weight_decides_the_type_and_a_gradient_has_that_of_its_input(
    inputs, weights, gradients
):
    """All is computed in float32, the type of the tables, and rounded once."""
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3, 8, dtype=inputs, requires_grad=True)
    norm, angles = module(torch.randn(8)).to(weights), torch.randn(5, 4)
    with torch.set_grad_enabled(gradients):
        y = norm(x, rope_of(angles, torch.float32))
    given = [value.detach().double().requires_grad_() for value in (x, norm.weight)]
    exact = normed(turned(given[0], angles), given[1])
    off = {torch.float32: 1e-5, torch.bfloat16: 2**-7}  # in bf16 two roundings
    torch.testing.assert_close(y, exact.to(weights), rtol=off[weights], atol=off[weights])
    if gradients:
        gradient = torch.randn(y.shape).to(weights)
        y.backward(gradient)
        for leaf, wanted in zip(
            (x, norm.weight), torch.autograd.grad(exact, given, gradient.double()), strict=True
        ):
            assert leaf.grad.dtype == leaf.dtype
            # Rounded once: half a unit of the last of 8 bits.
            near = 1e-5 if leaf.dtype == torch.float32 else 2**-8
            torch.testing.assert_close(leaf.grad.double(), wanted, rtol=near, atol=1e-5)


def test_sequences_may_have_angles_of_their_own():
    x, angles = torch.randn(2, 3, 1, 4, dtype=torch.float64), torch.randn(2, 3, 2).double()
    each = [rotate(x[b : b + 1], rope_of(angles[b], torch.float64)) for b in range(2)]
    assert torch.equal(rotate(x, rope_of(angles, torch.float64)), torch.cat(each))
