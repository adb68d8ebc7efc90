"""One optimizer step as `dualpath fit` makes it.

Only torch and `dualpath_cli.model` are needed: Lightning, pydantic and the rest may be missing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from benchmarks.gpu.parts import Bench
from dualpath_cli.config import Checkpointing, ModelConfig
from dualpath_cli.model import DualPathLM, loss
from dualpath_cli.model.parameters import kind_of
from dualpath_cli.training.activation_checkpointing import checkpoint_block

BATCHES = 4
"""Random micro-batches that a step takes by turns."""


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


class TrainingStep:
    """A model with its optimizer and random tokens; each call makes one optimizer step."""

    def __init__(self, bench: Bench, config: ModelConfig, variant: Variant) -> None:
        self.bench = bench
        self.config = config
        self.variant = variant
        self.graphs = 0
        """Graphs compiled so far. Where something is meant to be compiled and is not, torch runs it
        eagerly and says nothing."""
        self.model = build(self.config, bench.device, variant, self._compiler())
        self.optimizer = build_optimizer(self.model)
        shape = (BATCHES, variant.micro_batch, bench.sizes.seq_len + 1)
        self.tokens = torch.randint(config.vocab_size, shape, device=bench.device)
        self.calls = 0

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step."""
        return self.variant.micro_batch * self.variant.accumulate * self.bench.sizes.seq_len

    def __call__(self) -> None:
        """Forward, loss, backward of each micro-batch, then clipping and AdamW."""
        for _ in range(self.variant.accumulate):
            self.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def backward(self) -> None:
        """Forward, loss, backward of the next micro-batch; nothing waits for the device."""
        tokens_BT = self.tokens[self.calls % BATCHES]
        self.calls += 1
        device, bfloat16 = self.bench.device.type, self.variant.bfloat16
        with (
            patch.object(loss, "MAX_LOGITS", self.variant.max_logits),
            torch.autocast(device, dtype=torch.bfloat16, enabled=bfloat16),
        ):
            mean = self.model(tokens_BT[:, :-1], tokens_BT[:, 1:]).mean()
        mean.backward()

    def check_compiled(self) -> None:
        """Raises RuntimeError where a step that was to be compiled has run eagerly."""
        if self.variant.compile and not self.graphs:
            raise RuntimeError("nothing was compiled: the step runs eagerly")

    def _compiler(self) -> Callable[..., Any]:
        """Returns a backend of torch.compile for this step alone, which counts its graphs.

        Dynamo shares a graph between all blocks of a shape that have one backend; steps that are
        compared must not.
        """
        compiler = self.bench.sizes.compiler

        def compile_graph(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
            self.graphs += 1
            return torch._dynamo.lookup_backend(compiler)(graph, inputs)

        return compile_graph


@contextmanager
def settings_for_comparisons() -> Iterator[None]:
    """Sets what comparing compiled steps in one process needs, and leaves it as it was.

    - Shapes stay fixed, as they are within one run: a second micro-batch must not make them
      symbolic.
    - Where there are too many graphs, an error instead of a step that runs eagerly.
    - Float32 products are exact: no TF32.
    """
    precision = torch.get_float32_matmul_precision()
    dynamo = {"recompile_limit": 64, "fail_on_recompile_limit_hit": True}
    try:
        torch.set_float32_matmul_precision("highest")
        with torch._dynamo.config.patch(automatic_dynamic_shapes=False, **dynamo):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


def build(
    config: ModelConfig, device: torch.device, variant: Variant, compiler: Callable[..., Any]
) -> DualPathLM:
    """Returns a model with the initial weights of seed 0, compiled as the variant says.

    As `dualpath_cli.training.parallel.build_model` does it, which needs Lightning.
    """
    with device:
        model = DualPathLM(config, seed=0)
    for block in model.blocks:
        checkpoint_block(block, variant.checkpointing)
        if variant.compile:
            block.compile(backend=compiler, dynamic=False)
    if variant.compile:
        model.loss.compile(backend=compiler, dynamic=False)
    return model


def build_optimizer(model: nn.Module) -> torch.optim.AdamW:
    """Returns fused AdamW in two groups: all but embeddings decay, as in the recipes."""
    decaying: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        decaying[kind_of(name).group != "embeddings"].append(parameter)
    groups = [
        {"params": decaying[True], "weight_decay": 0.3},
        {"params": decaying[False], "weight_decay": 0.0},
    ]
    # A rate at which weights hardly move: the tokens are random, there is nothing to learn.
    return torch.optim.AdamW(groups, lr=1e-5, betas=(0.9, 0.95), eps=1e-8, fused=True)
