"""Whatever a block computes again, losses and gradients are those of one that keeps
everything."""

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._logging._internal import warning_once
from torch.utils._python_dispatch import TorchDispatchMode

from dualpath_cli.model import AuxiliaryLoss, DualPathLM, RoutingTrace
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.training.parallel import build_model, checkpoint_block
from tests.model.small_models import (
    ALL_KINDS,
    CORES,
    EXACT,
    EXPERTS,
    SMALL,
    STEPS,
    TARGETS,
    TOKENS,
    UNEVEN,
    small,
    with_weights,
)

KINDS: dict[str, dict[str, Any]] = {
    "dual": {},
    "loop": {"block": "loop", "step_conditioning": "film"},
    "wide": {"block": "wide"},
    "experts": {**EXPERTS, "balance": "loss"},
    "one loop": {"loops": 1},
    "convex gate": {"gate": "convex", "combination": "mean", "qk_norm": "before_rope"},
    "softmax gate": {"gate": "softmax", "combination": "final", "document_start": 3},
    "fixed gate": {"gate": "fixed", "qk_norm": "none", "tie_embeddings": True},
}
"""Every kind of block, gate, combination and norm of queries and keys, as changes to
SMALL."""
CASES: dict[str, tuple[ModelConfig, dict[str, Any]]] = {
    **{name: (small(**changes), {}) for name, changes in KINDS.items()},
    "loops by layer": (small(**UNEVEN), {}),
    "fewer loops": (SMALL, {"intervention": Intervention(loops=2)}),
    "forced gates": (SMALL, {"intervention": Intervention(gates=(1.0, 0.5))}),
}
COMPILED = {
    **KINDS,
    "core": CORES["routed"] | STEPS["steps of their own, keys of the first"],
}
AGAIN = ("selective", "full")


def checkpointed(
    model: DualPathLM, policy: Any, compiled: str | None = None
) -> DualPathLM:
    for block in model.blocks:
        checkpoint_block(block, policy)
        if compiled is not None:
            block.compile(backend=compiled, fullgraph=True)
    return model


def gradients(model: DualPathLM, **options: Any) -> dict[str, torch.Tensor]:
    """Gradients by parameter, and the losses (B, T) as `nll`."""
    auxiliary = AuxiliaryLoss()
    nll = model(TOKENS, TARGETS, auxiliary=auxiliary, **options)
    loss = nll.mean() + auxiliary.total
    loss.backward()
    assert nll.mean() + auxiliary.total == loss, "what is computed again counts once"
    sparse = [layer.n_experts > 0 for layer in model.config.layers]
    assert list(auxiliary.loads) == [
        n for n, has_experts in enumerate(sparse) if has_experts
    ]
    assert all(
        int(load.sum()) == 2 * TOKENS.numel() for load in auxiliary.loads.values()
    )
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {"nll": nll.detach(), **found}


def assert_equal(
    one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], rtol: float
) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(
            value, other[name], rtol=rtol, atol=rtol * value.abs().max()
        )


@pytest.mark.parametrize("policy", AGAIN)
@pytest.mark.parametrize("case", CASES)
def test_float64_gradients_are_those_without(case, policy):
    config, options = CASES[case]
    expected = gradients(with_weights(config), **options)
    assert options or len(expected) == 1 + len(list(with_weights(config).parameters()))
    model = checkpointed(with_weights(config), policy)
    assert_equal(gradients(model, **options), expected, EXACT)


@pytest.mark.parametrize(
    "policy", ["selective", pytest.param("full", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", COMPILED)
def test_compiled_they_are_too(kind, policy):
    """One graph a block: `fullgraph` refuses breaks."""
    torch._dynamo.reset()
    config = small(**{"loops": 2, "n_layers": 1, **COMPILED[kind]})
    model = checkpointed(with_weights(config), policy, "aot_eager")
    assert_equal(gradients(model), gradients(with_weights(config)), EXACT)


@pytest.mark.parametrize("policy", AGAIN)
def test_under_autocast_they_are_too(policy):
    """To the last bit: in eager mode the same operations run, on the same numbers."""
    found = []
    for one in ("none", policy):
        model = checkpointed(DualPathLM(small(**ALL_KINDS, gain_init=0.0), seed=0), one)
        with torch.autocast("cpu", torch.bfloat16):
            found.append(gradients(model))
    assert_equal(*found, rtol=0)


@pytest.mark.parametrize("policy", AGAIN)
def test_a_trace_is_written_once_and_has_its_gradient(policy):
    found = []
    for one in ("none", policy):
        model, trace = checkpointed(with_weights(SMALL), one), RoutingTrace()
        model(TOKENS, TARGETS, trace=trace)
        assert len(trace.layers) == SMALL.n_layers
        torch.stack([layer.expected_loops for layer in trace.layers]).sum().backward()
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        assert any("router" in name for name in grads)
        found.append(grads)
    assert_equal(*found, EXACT)


# What is computed twice

PRODUCTS = ("mm", "addmm", "bmm")


def kind_of(operation: Any) -> str:
    name = operation.name().removeprefix("aten::").partition(".")[0]
    if "scaled_dot_product" in name or "blockwise_attention" in name:
        return "attention backward" if "backward" in name else "attention"
    return "product" if name in PRODUCTS else "other"


class Executed(TorchDispatchMode):
    """Counts what eager mode runs."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.counts[kind_of(func)] += 1
        return func(*args, **(kwargs or {}))


def executed(policy: str) -> Counter[str]:
    model = checkpointed(DualPathLM(SMALL, seed=0), policy)
    with torch.autocast("cpu", torch.bfloat16), Executed() as run:
        gradients(model)
    return run.counts


@contextlib.contextmanager
def graphs() -> Iterator[tuple[Any, list[torch.fx.GraphModule]]]:
    """A backend that partitions as inductor does, and the graphs that it was given to
    compile."""
    seen: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        seen.append(graph)
        return graph

    torch._dynamo.reset()
    yield (
        aot_autograd(
            fw_compiler=keep,
            bw_compiler=keep,
            decompositions=select_decomp_table(),
            partition_fn=min_cut_rematerialization_partition,
        ),
        seen,
    )
    torch._dynamo.reset()


def in_graphs(policy: str) -> Counter[str]:
    """Counts what compiled graphs hold."""
    with graphs() as (backend, seen), torch.autocast("cpu", torch.bfloat16):
        gradients(
            checkpointed(
                DualPathLM(small(n_layers=2, loops=2), seed=0), policy, backend
            )
        )
    assert len(seen) == 2, "one graph forward and one backward, for both layers"
    nodes = [node.target for graph in seen for node in graph.graph.nodes]
    return Counter(kind_of(n) for n in nodes if isinstance(n, torch._ops.OpOverload))


@pytest.mark.parametrize("count", [executed, in_graphs])
def test_selective_computes_no_product_and_no_attention_twice(count, caplog):
    warning_once.cache_clear()
    plain, selective = count("none"), count("selective")
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert not [message for message in said if "context_fn" in message], (
        "torch is silenced"
    )
    for kind in ("product", "attention", "attention backward"):
        assert selective[kind] == plain[kind] > 0
    assert selective["other"] > plain["other"], "something is computed again"
    if count is executed:
        assert executed("full")["attention"] == 2 * plain["attention"]


def test_kernels_that_sum_are_chosen_by_rule_whatever_a_trainer_sets(monkeypatch):
    class Chosen(Exception):
        """Ends a compilation at its kernels, which would take a minute."""

    def codegen(graph: object) -> None:
        raise Chosen(torch._inductor.config.deterministic)

    monkeypatch.setattr(torch._inductor.graph.GraphLowering, "codegen", codegen)
    with torch.device("cpu"):
        config = ModelConfig(n_layers=1, block="wide", d_ffn_wide=64)
        model = build_model(config, seed=0, compile_blocks=True)
    # which calls use_deterministic_algorithms(False)
    Trainer(logger=False, accelerator="cpu")
    tokens = torch.arange(8)[None]
    loss = partial(model.loss, model.embed(tokens), model.head.weight, tokens)
    for part in (partial(model, tokens), loss):
        with (
            torch._inductor.config.patch(fx_graph_cache=False),
            pytest.raises(Exception, match="True"),
        ):
            part()
