"""Linear maps to few numbers, as sums."""

import torch
from torch import nn

from dualpath_cli.kernels import linear
from dualpath_cli.kernels.linear import ToFew


def test_sums_are_the_product_that_they_replace(monkeypatch):
    monkeypatch.setattr(linear, "SUMMED", ("cpu",))
    few, x = ToFew(6, 2, dtype=torch.float64), torch.randn(2, 5, 6, dtype=torch.float64)
    products = []

    def count(graph, inputs):
        calls = [node.target for node in graph.graph.nodes if node.op == "call_function"]
        products.append(sum(call in (nn.functional.linear, torch._C._nn.linear) for call in calls))
        return graph.forward

    summed = torch.compile(few, backend=count, fullgraph=True)
    assert torch.allclose(summed(x), few(x), rtol=0, atol=1e-14)
    assert products == [0]
