"""Linear maps in fewer products are the same maps."""

from collections.abc import Callable

import torch
from torch import nn

from dualpath_cli.kernels import linear
from dualpath_cli.kernels.linear import ToFew, together


def compiled(function: Callable[..., object]) -> tuple[Callable[..., object], list[int]]:
    """The function compiled, and the number of linear maps in each of its graphs."""
    products: list[int] = []

    def count(graph, inputs):
        calls = [node.target for node in graph.graph.nodes if node.op == "call_function"]
        products.append(sum(call in (nn.functional.linear, torch._C._nn.linear) for call in calls))
        return graph.forward

    return torch.compile(function, backend=count, fullgraph=True), products


def test_compiled_for_training_several_maps_are_one_product():
    maps = [nn.Linear(6, width, bias=False, dtype=torch.float64) for width in (4, 2, 3)]
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    one, products = compiled(lambda x: together(x, maps))
    for actual, each in zip(one(x), maps, strict=True):
        assert torch.allclose(actual, each(x), rtol=0, atol=1e-14)
    with torch.no_grad():  # decoding would join the weights for every token
        one(x)
    assert products == [1, 3]


def test_an_adapter_in_the_place_of_a_map_is_called():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    maps = [nn.Linear(6, 4, bias=False), Doubled(6, 4, bias=False)]
    x = torch.randn(5, 6)
    one, _ = compiled(lambda x: together(x, maps))
    assert torch.allclose(one(x)[1], 2 * x @ maps[1].weight.T)


def test_sums_are_the_product_that_they_replace(monkeypatch):
    monkeypatch.setattr(linear, "SUMMED", ("cpu",))
    few, x = ToFew(6, 2, dtype=torch.float64), torch.randn(2, 5, 6, dtype=torch.float64)
    summed, products = compiled(few)
    assert torch.allclose(summed(x), few(x), rtol=0, atol=1e-14)
    assert products == [0]
