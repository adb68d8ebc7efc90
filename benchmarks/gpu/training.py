"""One optimizer step as `dualpath fit` makes it, and the ways in which it could be made otherwise.

Only torch and `dualpath_cli.model` are needed: Lightning, pydantic and the rest may be missing.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal
from unittest.mock import patch

import torch
import torch._functorch.config
import torch._inductor
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.parts import Bench
from dualpath_cli.config import Checkpointing, ModelConfig
from dualpath_cli.model import DualPathLM, loss
from dualpath_cli.model.parameters import kind_of
from dualpath_cli.training.activation_checkpointing import checkpoint_block

SDPA = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
"""The fused kernels of torch's scaled_dot_product_attention."""

DOCUMENT_TOKENS = 512
BATCHES = 4
"""Random micro-batches that a step takes by turns."""


@dataclass(frozen=True)
class Variant:
    """How a step is made; the defaults are the recipes'."""

    micro_batch: int
    """Sequences in one forward pass."""
    accumulate: int = 1
    """Micro-batches of an optimizer step."""
    compile: Literal["blocks", "model", "no"] = "blocks"
    mode: str | None = None
    """A mode of torch.compile, such as max-autotune-no-cudagraphs."""
    checkpointing: Checkpointing = "selective"
    attention: str | None = None
    """A kernel of SDPA; None is torch's own choice."""
    compiled_loss: bool = True
    """Whether the loss is compiled, too, where the blocks are."""
    max_logits: int = loss.MAX_LOGITS
    """Logits held at once."""
    optimizer: Literal["fused", "foreach"] = "fused"
    matmul_precision: Literal["highest", "high"] = "highest"
    """Of float32 products, which router and gates have; `high` is TF32."""
    keep_gradients: bool = False
    """Whether gradients are set to zero, to be added to, in place of being dropped."""
    documents: bool = False
    """Whether attention stays within documents, of DOCUMENT_TOKENS tokens on average."""
    bfloat16: bool = True
    """Whether under bf16 autocast; weights are float32 anyway."""


class TrainingStep:
    """A model with its optimizer and random tokens; each call makes one optimizer step."""

    def __init__(self, bench: Bench, config: ModelConfig, variant: Variant) -> None:
        self.bench = bench
        self.config = replace(config, document_start=0) if variant.documents else config
        self.variant = variant
        self.graphs = 0
        """Graphs compiled so far. Where something is meant to be compiled and is not, torch runs it
        eagerly and says nothing."""
        self.model = build(self.config, bench.device, variant, self._compiler())
        self.optimizer = build_optimizer(self.model, variant.optimizer)
        shape = (BATCHES, variant.micro_batch, bench.sizes.seq_len + 1)
        self.tokens = torch.randint(1, config.vocab_size, shape, device=bench.device)
        # Token 0 begins a document, where the variant knows of documents.
        self.tokens[torch.rand(shape, device=bench.device) < 1 / DOCUMENT_TOKENS] = 0
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
        self.optimizer.zero_grad(set_to_none=not self.variant.keep_gradients)

    def backward(self) -> torch.Tensor:
        """Forward, loss, backward of the next micro-batch; returns its mean loss, still on the GPU.

        No wait for the device.
        """
        tokens_BT = self.tokens[self.calls % BATCHES]
        self.calls += 1
        with ExitStack() as stack:
            for context in self._contexts():
                stack.enter_context(context)
            mean = self.model(tokens_BT[:, :-1], tokens_BT[:, 1:]).mean()
        mean.backward()
        return mean.detach()

    def check_compiled(self) -> None:
        """Raises RuntimeError where a step that was to be compiled has run eagerly."""
        if self.variant.compile != "no" and not self.graphs:
            raise RuntimeError("nothing was compiled: the step runs eagerly")

    def _contexts(self) -> list[Any]:
        torch.set_float32_matmul_precision(self.variant.matmul_precision)
        contexts: list[Any] = [
            patch.object(loss, "MAX_LOGITS", self.variant.max_logits),
            sdpa_kernel(SDPA[self.variant.attention]) if self.variant.attention else nullcontext(),
        ]
        if self.variant.bfloat16:
            contexts.append(torch.autocast(self.bench.device.type, dtype=torch.bfloat16))
        return contexts

    def _compiler(self) -> Callable[..., Any]:
        """Returns a backend of torch.compile for this step alone.

        Dynamo shares a graph between all blocks of a shape that have one backend; steps that are
        compared must not, for what differs (attention kernel, mode) is not always among its guards.
        """
        mode = self.variant.mode
        inductor = self.bench.sizes.compiler == "inductor"
        patches = torch._inductor.list_mode_options(mode) if mode else {}

        def compile_graph(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
            self.graphs += 1
            if inductor:
                from torch._inductor.compile_fx import compile_fx

                return compile_fx(graph, inputs, config_patches=patches)
            return torch._dynamo.lookup_backend(self.bench.sizes.compiler)(graph, inputs)

        return compile_graph


@contextmanager
def settings_for_comparisons() -> Iterator[None]:
    """Sets what comparing compiled steps in one process needs, and leaves it as it was.

    - Shapes stay fixed, as they are within one run: a second micro-batch must not make them
      symbolic.
    - torch up to 2.11 keeps compiled graphs under a key without the attention kernel, so that a
      step for one kernel would be given the graph of another (pytorch/pytorch#185449).
    - Where there are too many graphs, an error instead of a step that runs eagerly.
    """
    precision = torch.get_float32_matmul_precision()
    dynamo = {"recompile_limit": 64, "fail_on_recompile_limit_hit": True}
    try:
        with (
            torch._dynamo.config.patch(automatic_dynamic_shapes=False, **dynamo),
            torch._functorch.config.patch(enable_autograd_cache=False),
        ):
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
        if variant.compile == "blocks":
            block.compile(backend=compiler, dynamic=False)
    if variant.compile == "blocks" and variant.compiled_loss:
        model.loss.compile(backend=compiler, dynamic=False)
    if variant.compile == "model":
        model.compile(backend=compiler, dynamic=False)
    return model


def build_optimizer(model: nn.Module, kind: Literal["fused", "foreach"]) -> torch.optim.AdamW:
    """Returns AdamW in two groups: all but embeddings decay, as in the recipes."""
    decaying: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        decaying[kind_of(name).group != "embeddings"].append(parameter)
    groups = [
        {"params": decaying[True], "weight_decay": 0.3},
        {"params": decaying[False], "weight_decay": 0.0},
    ]
    # A rate at which weights hardly move: the tokens are random, there is nothing to learn.
    return torch.optim.AdamW(groups, lr=1e-5, betas=(0.9, 0.95), eps=1e-8, **{kind: True})
