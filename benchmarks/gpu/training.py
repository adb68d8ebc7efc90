"""One optimizer step as `dualpath fit` makes it, without Lightning's loop."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from benchmarks.gpu.parts import Bench
from dualpath_cli.config import Checkpointing, ModelConfig
from dualpath_cli.flops.memory import Optimizer
from dualpath_cli.intervention import Intervention
from dualpath_cli.model import loss
from dualpath_cli.recipe.optimizer import OptimSettings
from dualpath_cli.training.optim import build_optimizer
from dualpath_cli.training.parallel import build_model

BATCHES = 4
"""Random micro-batches that a step takes by turns."""
RATE = 1e-5
"""A learning rate at which weights hardly move, as random tokens teach nothing."""


@dataclass(frozen=True)
class Variant:
    """How a step is made; the defaults are the recipes'."""

    micro_batch: int
    """Sequences in one forward pass."""
    accumulate: int = 1
    """Micro-batches of an optimizer step."""
    compile: bool = True
    """Whether each block and the loss are compiled."""
    checkpointing: Checkpointing = "selective"
    max_logits: int = loss.MAX_LOGITS
    """Logits held at once."""
    bfloat16: bool = True
    """Whether under bf16 autocast; weights are float32 anyway."""
    optimizer: Optimizer = "adamw"
    model: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the recipe's model that are others."""
    loops: int | None = None
    """The number that the step is forced to, as in a phase of run.loop_schedule."""


class TrainingStep:
    """A model with its optimizer and random tokens; each call makes one optimizer step."""

    def __init__(self, bench: Bench, config: ModelConfig, variant: Variant) -> None:
        config = replace(config, **variant.model)
        self.bench, self.config, self.variant = bench, config, variant
        self.forced = None if variant.loops is None else Intervention(loops=variant.loops)
        self.graphs = 0
        """Graphs compiled so far. Where something is meant to be compiled and is not, torch runs it
        eagerly and says nothing."""
        with bench.device:
            self.model = build_model(config, seed=0, checkpointing=variant.checkpointing)
        if variant.compile:
            for part in (*self.model.blocks, self.model.loss):
                part.compile(backend=self._compile_graph, dynamic=False)
        parameters = self.model.named_parameters()
        optim = OptimSettings(name=variant.optimizer, lr=RATE)
        products = torch.bfloat16 if variant.bfloat16 else None
        self.optimizer = build_optimizer(parameters, optim, total_steps=1, products=products)
        shape = (BATCHES, variant.micro_batch, bench.sizes.seq_len + 1)
        self.tokens = torch.randint(config.vocab_size, shape, device=bench.device)
        self.calls = 0

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step."""
        return self.variant.micro_batch * self.variant.accumulate * self.bench.sizes.seq_len

    def __call__(self) -> None:
        """Forward, loss, backward of each micro-batch, then clipping and the optimizer."""
        for _ in range(self.variant.accumulate):
            self.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def backward(self) -> None:
        """Forward, loss, backward of the next micro-batch; nothing waits for the device."""
        tokens_BT = self.tokens[self.calls % BATCHES]
        self.calls += 1
        with (
            patch.object(loss, "MAX_LOGITS", self.variant.max_logits),
            torch.autocast(self.bench.device.type, torch.bfloat16, enabled=self.variant.bfloat16),
        ):
            nll = self.model(tokens_BT[:, :-1], tokens_BT[:, 1:], intervention=self.forced)
            mean = nll.mean()
        mean.backward()

    def check_compiled(self) -> None:
        """Raises RuntimeError where a step that was to be compiled has run eagerly."""
        if self.variant.compile and not self.graphs:
            raise RuntimeError("nothing was compiled: the step runs eagerly")

    def _compile_graph(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        """A backend of torch.compile for this step alone, which counts its graphs.

        Dynamo shares a graph between all blocks of a shape that have one backend; steps that are
        compared must not.
        """
        self.graphs += 1
        return torch._dynamo.lookup_backend(self.bench.sizes.compiler)(graph, inputs)


@contextmanager
def settings_for_comparisons() -> Iterator[None]:
    """Sets what comparing compiled steps in one process needs, and leaves it as it was.

    Shapes stay fixed, as they are within one run: a second micro-batch must not make them symbolic.
    Where there are too many graphs, an error instead of a step that runs eagerly. Float32 products
    are exact: no TF32.
    """
    precision = torch.get_float32_matmul_precision()
    dynamo = {"recompile_limit": 64, "fail_on_recompile_limit_hit": True}
    try:
        torch.set_float32_matmul_precision("highest")
        with torch._dynamo.config.patch(automatic_dynamic_shapes=False, **dynamo):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
