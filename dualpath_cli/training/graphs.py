"""Forward, loss and backward of a micro-batch as one CUDA graph.

A kernel of a small model ends before the host has launched the next one: with 1,250
launches a step a GPU was idle for 71 to 87 % of the time. A graph is recorded once and
launched at once. Its tokens and targets, and the gradients that it adds to, stay in the
same memory.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn

from dualpath_cli.flops.count import training_flops_of
from dualpath_cli.kernels.cuda_graph import CudaGraph
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.spec.own_classes import own_roles

MOST_FLOPS = 3e13
"""Most FLOPs of a micro-batch. One of 9e13 (F80M, 16,384 tokens) keeps an H200 busy for
267 ms, and its launches take 40; a graph would gain nothing, and hold the memory of
activations for good."""
WARM_STEPS = 3
"""Optimizer steps before the graph is recorded, in which the model compiles."""
PRECISIONS = ("32-true", "bf16-mixed", "bf16-true")
"""Precisions without a state of their own, such as the scales of FP8."""


@dataclass
class Losses:
    """Of a micro-batch: the loss to minimise, (), and what is logged.

    `nll` is in nats per position, (B, T); `loads` are those of experts, by layer.
    """

    loss: torch.Tensor
    nll: torch.Tensor
    loads: Mapping[int, torch.Tensor]


def why_no_graph(settings: Settings, trainer: Trainer) -> str:
    """Why micro-batches are not one CUDA graph; empty if they are."""
    model = settings.model
    run = settings.run
    loops_differ = bool(run.train_loops or run.loop_schedule)
    # The hooks by which fsdp and ddp reduce gradients, also on one device, are not
    # recorded.
    has_hooks = not isinstance(trainer.strategy, SingleDeviceStrategy)
    reasons = {
        "no CUDA GPU": trainer.strategy.root_device.type != "cuda",
        "several devices": trainer.world_size > 1,
        f"trainer.strategy {settings.trainer.strategy}": has_hooks,
        f"trainer.precision {trainer.precision}": trainer.precision not in PRECISIONS,
        "trainer.detect_anomaly": settings.trainer.detect_anomaly,
        "loops that differ from step to step": loops_differ,
        "documents": model.document_start is not None,
        "experts": any(layer.n_experts for layer in model.layers),
        "custom classes": bool(own_roles(model)),
    }
    for reason, holds in reasons.items():
        if holds:
            return reason

    flops = training_flops_of(run)(model) * run.micro_batch * model.max_seq_len
    if flops > MOST_FLOPS:
        return f"a micro-batch of {flops / 1e12:.0f} TFLOPs, which keeps the GPU busy"
    return ""


class MicroBatchGraph:
    """Records and replays the micro-batches of a module."""

    def __init__(self, work: Callable[..., Losses], module: nn.Module) -> None:
        """`work` adds the gradients of tokens and targets, (B, T) each."""
        self._work = work
        self._module = module
        self._steps = 0
        self._first = False  # whether the next micro-batch is its step's first
        self._replay: Callable[[], Losses] | None = None
        self._inputs: list[torch.Tensor] = []
        self._gradients: dict[nn.Parameter, torch.Tensor] = {}

    @property
    def recorded(self) -> bool:
        """Whether there is a graph by now."""
        return self._replay is not None

    def begin_step(self) -> bool:
        """Counts a step; returns whether its micro-batches use the graph."""
        self._steps += 1
        self._first = True
        return self._steps > WARM_STEPS

    def __call__(self, tokens: torch.Tensor, targets: torch.Tensor) -> Losses:
        """Adds a micro-batch's gradients to those of its step.

        The next call overwrites `nll` of the returned losses.
        """
        if self._replay is None:
            self._inputs = [tokens.clone(), targets.clone()]
            self._replay = CudaGraph(self._record, tokens.device, self._begin)

        own_tokens, own_targets = self._inputs
        own_tokens.copy_(tokens)
        own_targets.copy_(targets)

        if self._first:
            torch._foreach_zero_(list(self._gradients.values()))
            self._first = False
        for parameter, gradient in self._gradients.items():
            parameter.grad = gradient  # a skipped step has none

        made = self._replay()
        return Losses(made.loss.clone(), made.nll, {})

    def _begin(self) -> None:
        """Runs the micro-batch that will be recorded, and keeps its gradients."""
        self._module.zero_grad(set_to_none=True)
        self._record()
        self._gradients = {
            parameter: parameter.grad
            for parameter in self._module.parameters()
            if parameter.grad is not None
        }

    def _record(self) -> Losses:
        return self._work(*self._inputs)
