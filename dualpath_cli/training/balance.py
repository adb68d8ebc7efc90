"""The load of experts: counted, and evened out by moving their biases.

The rule is algorithm 1 of arXiv 2408.15664. Loads are whole numbers, so that biases do
not depend on the division of a step among micro-batches and ranks.
"""

import math
from collections.abc import Mapping

import torch
import torch.distributed as dist

from dualpath_cli.model import DualPathLM
from dualpath_cli.model.block import DualPathBlock
from dualpath_cli.model.experts import Experts
from dualpath_cli.training.parallel import sharded_as

COLUMNS = ("load_max", "load_entropy", "idle_experts")
"""Columns of metrics.csv, followed by `_` and the layer: see `load_statistics`."""


class ExpertLoads:
    """Choices of each expert, int64 (E,) by layer."""

    def __init__(self) -> None:
        self.in_step: dict[int, torch.Tensor] = {}
        self.since_report: dict[int, torch.Tensor] = {}

    def add(self, loads: Mapping[int, torch.Tensor]) -> None:
        """Adds the loads of a micro-batch on this rank."""
        _add(self.in_step, loads)

    @torch.no_grad()
    def end_step(self, model: DualPathLM, moves: bool) -> None:
        """Sums a step's loads over ranks and moves the biases.

        A skipped step moves nothing.
        """
        loads = self.in_step
        self.in_step = {}
        if not loads or not moves:
            return

        sums = torch.cat(list(loads.values()))
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(sums)
        sizes = [len(load) for load in loads.values()]
        loads = dict(zip(loads, sums.split(sizes), strict=True))
        _add(self.since_report, loads)

        for layer, load in loads.items():
            experts = _experts_of(model, layer)
            if experts.balance == "bias":
                bias = experts.balance_bias
                # +1 for an expert with less than the mean load, -1 for one with more
                sign = (load.sum() - len(load) * load).sign().to(bias.dtype)
                bias.add_(sharded_as(bias, sign * experts.rate))

    def report(self) -> dict[str, float]:
        """COLUMNS of each layer since the last report."""
        loads = self.since_report
        self.since_report = {}

        row = {}
        for layer, load in loads.items():
            for name, value in zip(COLUMNS, load_statistics(load), strict=True):
                row[f"{name}_{layer}"] = value
        return row


def load_statistics(load: torch.Tensor) -> tuple[float, float, int]:
    """Largest load over the mean, entropy over ln n, number of idle experts.

    The entropy is 1 for equal loads.
    """
    n = len(load)
    shares = load.double() / load.sum()
    largest = n * shares.max().item()

    entropy = 1.0
    if n > 1:
        nats = torch.special.entr(shares).sum().item()
        entropy = nats / math.log(n)

    idle = int((load == 0).sum())
    return largest, entropy, idle


def _experts_of(model: DualPathLM, layer: int) -> Experts:
    block = model.blocks[layer]
    assert isinstance(block, DualPathBlock)
    experts = block.wide.sublayer.ffn
    assert isinstance(experts, Experts)
    return experts


def _add(sums: dict[int, torch.Tensor], loads: Mapping[int, torch.Tensor]) -> None:
    for layer, load in loads.items():
        sums[layer] = sums[layer] + load if layer in sums else load
