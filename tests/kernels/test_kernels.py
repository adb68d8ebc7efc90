"""Attention by blocks, rotation and norm of heads, sums for few numbers, freed
memory."""

import importlib.util
import math
import platform
import resource
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dualpath_cli.kernels import attention, linear
from dualpath_cli.kernels import blockwise_attention as by_blocks
from dualpath_cli.kernels.attention import attend
from dualpath_cli.kernels.blockwise_attention import blockwise_attention
from dualpath_cli.kernels.linear import ToFew
from dualpath_cli.kernels.rotary import RotatedNorm, rope_of, rotate
from dualpath_cli.training.module import DualPathModule
from tests.cli.processes import call_on_ranks
from tests.model.reference import difference

# Attention by blocks: values and gradients, against one plain softmax in float64


def plain(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
    """``softmax(q k^T) v`` below the diagonal, and where it is `seen`, (B, T, H, N)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(2, 3)
    visible = torch.ones_like(scores, dtype=torch.bool).tril()
    if seen is not None:
        visible &= seen[:, None]
    return (scores.masked_fill(~visible, -math.inf).softmax(-1) @ v).transpose(1, 2)


def inputs(
    *shape: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> list[Tensor]:
    """Queries, keys, values and the gradient of what comes out."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v, grad = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(4)
    )
    q = q * shape[-1] ** -0.5
    return [x.to(dtype).requires_grad_() for x in (q, k, v)] + [grad.to(dtype)]


def values_and_gradients(
    attention, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, seen: Tensor | None = None
) -> list[Tensor]:
    out = attention(q, k, v, seen)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad)]


@given(
    sequences=st.integers(1, 3),
    heads=st.integers(1, 3),
    length=st.integers(1, 40),
    size=st.integers(1, 9),
    queries=st.integers(1, 16),
    weights=st.integers(1, 1000),
    masked=st.booleans(),
    amx=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=100)
def test_any_blocks_give_the_plain_softmax(
    sequences, heads, length, size, queries, weights, masked, amx, seed
):
    drawn = inputs(sequences, length, heads, size, seed=seed)
    seen = None
    if masked:
        generator = torch.Generator().manual_seed(seed)
        seen = torch.rand(sequences, length, length, generator=generator) < 0.5
        seen |= torch.eye(length, dtype=torch.bool)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_blocks, "_queries", lambda length: min(length, queries))
        patch.setattr(by_blocks, "WEIGHTS", weights)
        # or not: PyTorch's kernel in the forward pass
        patch.setattr(by_blocks, "AMX", amx)
        actual = values_and_gradients(blockwise_attention, *drawn, seen)
    for one, other in zip(
        actual, values_and_gradients(plain, *drawn, seen), strict=True
    ):
        assert (one - other).abs().max() <= 1e-12  # of numbers around 1


@pytest.mark.parametrize("amx", [False, True])
@pytest.mark.parametrize("length", [300, 600])
def test_bf16_is_near_float64(length, amx, monkeypatch):
    """Measured: 0.3 to 0.8 %; of PyTorch's own kernel, 0.2 to 1.1 %."""
    monkeypatch.setattr(by_blocks, "AMX", amx)
    drawn = inputs(2, length, 4, 64, dtype=torch.bfloat16)
    exact = [x.detach().double().requires_grad_() for x in drawn]
    narrow = values_and_gradients(blockwise_attention, *drawn)
    for one, other in zip(narrow, values_and_gradients(plain, *exact), strict=True):
        assert one.dtype == torch.bfloat16
        assert difference(one.double(), other) <= 0.015


def test_it_keeps_pytorchs_rules_for_operators():
    drawn = inputs(1, 150, 2, 8, dtype=torch.float32)[:3]
    seen = torch.ones(1, 150, 150, dtype=torch.bool)
    for mask in (None, seen):
        torch.library.opcheck(blockwise_attention._opoverload, (*drawn, mask))


def test_a_copy_of_the_code_in_the_same_process_takes_nothing_from_it():
    """As exported folders have one: torch drops an operation whose name is registered
    again."""
    ours = blockwise_attention._opoverload
    spec = importlib.util.spec_from_file_location("a_copy", by_blocks.__file__)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    assert copy.blockwise_attention._opoverload.name() != ours.name()
    assert getattr(torch.ops.dualpath, ours.name().split("::")[1]).default is ours
    drawn = inputs(1, 150, 2, 8, dtype=torch.float32)[:3]
    assert torch.equal(
        copy.blockwise_attention(*drawn, None), blockwise_attention(*drawn, None)
    )


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_bf16_on_the_cpu_is_attended_by_blocks_with_shared_keys_too(
    kv_heads, monkeypatch
):
    monkeypatch.setattr(attention, "BY_BLOCKS", range(64, 150))
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 140, 4, 16, generator=generator)
    k, v = (torch.randn(2, 140, kv_heads, 16, generator=generator) for _ in range(2))
    with torch.profiler.profile() as profile:
        narrow = attend(q, k, v.bfloat16())
    assert any("blockwise_attention" in event.key for event in profile.key_averages())
    # lengths that blocks would only slow down
    with torch.profiler.profile() as profile:
        attend(q[:, :40], k[:, :40], v[:, :40].bfloat16())
        attend(*(x.repeat(1, 2, 1, 1)[:, :150] for x in (q, k, v.bfloat16())))
    assert not any(
        "blockwise_attention" in event.key for event in profile.key_averages()
    )
    assert narrow.dtype == torch.bfloat16
    exact = attend(q.double(), k.double(), v.double())
    assert exact.dtype == torch.float64
    assert difference(narrow.double(), exact) <= 0.02  # measured: 0.004 to 0.009

    # One mask for all sequences, which are not all in one group.
    monkeypatch.setattr(by_blocks, "WEIGHTS", 1)
    mask = torch.ones(1, 1, 140, 140, dtype=torch.bool).tril()
    masked = attend(q, k, v.bfloat16(), mask)
    assert difference(masked.double(), exact) <= 0.02


# Rotation and norm of heads, beside the equations in float64 number by number


EPS = 1e-5


def turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Each pair (x_i, x_{i + N/2}) of a head turned by its position's i-th angle, in a
    loop."""
    out, half = torch.empty_like(x), x.shape[-1] // 2
    for b, t, h, i in torch.cartesian_prod(
        *map(torch.arange, (*x.shape[:-1], half))
    ).tolist():
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
        return torch.randn(
            shape, generator=generator, dtype=torch.float64
        ).requires_grad_()

    x, weight, angles = (
        drawn(2, 3, heads, 2 * half),
        drawn(2 * half),
        drawn(3, half).detach(),
    )
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
    torch.testing.assert_close(
        y, exact.to(weights), rtol=off[weights], atol=off[weights]
    )
    if gradients:
        gradient = torch.randn(y.shape).to(weights)
        y.backward(gradient)
        for leaf, wanted in zip(
            (x, norm.weight),
            torch.autograd.grad(exact, given, gradient.double()),
            strict=True,
        ):
            assert leaf.grad.dtype == leaf.dtype
            # Rounded once: half a unit of the last of 8 bits.
            near = 1e-5 if leaf.dtype == torch.float32 else 2**-8
            torch.testing.assert_close(leaf.grad.double(), wanted, rtol=near, atol=1e-5)


# Linear maps to few numbers, as sums


def test_sums_are_the_product_that_they_replace(monkeypatch):
    monkeypatch.setattr(linear, "SUMMED", ("cpu",))
    few, x = ToFew(6, 2, dtype=torch.float64), torch.randn(2, 5, 6, dtype=torch.float64)
    products = []

    def count(graph, inputs):
        calls = [
            node.target for node in graph.graph.nodes if node.op == "call_function"
        ]
        products.append(
            sum(call in (nn.functional.linear, torch._C._nn.linear) for call in calls)
        )
        return graph.forward

    summed = torch.compile(few, backend=count, fullgraph=True)
    assert torch.allclose(summed(x), few(x), rtol=0, atol=1e-14)
    assert products == [0]


# Memory that is freed stays with the process: its pages are not taken anew


def print_faults(device: str) -> None:
    """Prints how many pages five large tensors take anew once a module is set up on a
    device."""

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(5):
            # so large that malloc always takes them from the system
            torch.ones(10_000_000)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    strategy = SimpleNamespace(root_device=torch.device(device))
    trainer = SimpleNamespace(strategy=strategy, precision_plugin=SimpleNamespace())
    own: Any = SimpleNamespace(trainer=trainer)
    DualPathModule.setup(own, "fit")
    # until the heap has room for them beside what else is made on the way
    for _ in range(4):
        faults()
    print(faults())


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone is told")
@pytest.mark.parametrize(("device", "kept"), [("cpu", True), ("cuda", False)])
def test_a_model_on_a_cpu_keeps_what_a_step_frees(device, kept, tmp_path):
    (printed,) = call_on_ranks(1, partial(print_faults, device), tmp_path)
    faults, pages = int(printed), 5 * 40_000_000 // 4096
    # Fewer faults than pages where those are huge, of 2 MiB, as the system decides.
    assert faults < pages / 1000 if kept else faults > pages / 600
