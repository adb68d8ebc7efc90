"""The kernels of one training step, each timed alone: its time, were there nothing else.

GEMMs in the shapes that the model has, forward, for inputs and for weights; attention by its
fastest kernel; clipping and AdamW as they are. Of everything elementwise only the traffic is
counted: the bytes that cannot be avoided at today's precisions, over the measured copy bandwidth.
That part is a bound, not a measurement, and has a name of its own.
"""

from collections import Counter
from statistics import median

import torch
from torch import nn

from benchmarks.gpu import attention
from benchmarks.gpu.clock import kernel_seconds, seconds_of
from benchmarks.gpu.parts import Bench
from benchmarks.gpu.results import Row
from benchmarks.gpu.training import TrainingStep
from dualpath_cli.config import ModelConfig
from dualpath_cli.flops.count import passes

Shape = tuple[int, int, int]
"""Rows, inputs and outputs of a linear layer's product."""


def alone(step: TrainingStep) -> Row:
    """Returns the seconds of a step's kernels by class, and two sums.

    `products_seconds` is of GEMMs and attention; `kernels_seconds` adds optimizer and the bound of
    elementwise traffic.
    """
    bench, variant = step.bench, step.variant
    gemms = {"forward": 0.0, "input": 0.0, "weight": 0.0}
    for shape, times in gemm_shapes(step).items():
        for direction, seconds in gemm_seconds(bench, shape).items():
            gemms[direction] += times * seconds
    kernel, forward, backward = fastest_attention(step)
    n_passes = variant.accumulate * sum(
        passes(kind, step.config.loops) for kind in step.config.block_kinds
    )
    row: Row = {f"gemm_{direction}_seconds": seconds for direction, seconds in gemms.items()}
    row["attention"] = kernel
    row["attention_forward_seconds"] = n_passes * forward
    row["attention_backward_seconds"] = n_passes * backward
    row["products_seconds"] = sum(gemms.values()) + n_passes * (forward + backward)
    row["optimizer_seconds"] = optimizer_seconds(step)
    row["elementwise_bytes"] = elementwise_bytes(step)
    row["elementwise_bound_seconds"] = row["elementwise_bytes"] / bench.ceilings["copy_bytes"]
    row["kernels_seconds"] = (
        row["products_seconds"] + row["optimizer_seconds"] + row["elementwise_bound_seconds"]
    )
    return row


def gemm_shapes(step: TrainingStep) -> Counter[Shape]:
    """How often a step multiplies which shapes; the head in the loss's parts, without recomputing.

    Router and gates have one or two outputs: reading their input is all they cost, and that is
    counted as elementwise.
    """
    config, variant = step.config, step.variant
    rows = variant.micro_batch * step.bench.sizes.seq_len
    shapes: Counter[Shape] = Counter()
    for name, module in step.model.named_modules():
        if isinstance(module, nn.Linear) and module.out_features > 2 and name != "head":
            times = config.loops if ".deep." in name else 1
            shapes[rows, module.in_features, module.out_features] += times
    parts = min(rows, max(1, -(-rows * config.vocab_size // variant.max_logits)))
    for part in range(parts):
        part_rows = rows // parts + (part < rows % parts)
        shapes[part_rows, config.d_model, config.vocab_size] += 1
    return Counter({shape: times * variant.accumulate for shape, times in shapes.items()})


def gemm_seconds(bench: Bench, shape: Shape) -> dict[str, float]:
    """Seconds of the three bf16 products of a linear layer: forward, for its input, its weight."""
    rows, inputs, outputs = shape

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, device=bench.device, dtype=torch.bfloat16)

    sets = [(random(rows, inputs), random(outputs, inputs), random(rows, outputs)) for _ in "123"]
    directions = {
        "forward": [lambda x=x, w=w: torch.mm(x, w.t()) for x, w, _ in sets],
        "input": [lambda w=w, g=g: torch.mm(g, w) for _, w, g in sets],
        "weight": [lambda x=x, g=g: torch.mm(g.t(), x) for x, _, g in sets],
    }
    repeats = bench.sizes.kernel_repeats
    return {name: kernel_seconds(c, bench.device, repeats) for name, c in directions.items()}


def fastest_attention(step: TrainingStep) -> tuple[str, float, float]:
    """Name, forward and backward seconds of the kernel that takes least for both together."""
    bench, found = step.bench, []
    shape = attention.shape_of(step.config, step.variant.micro_batch, bench.sizes.seq_len)
    for name in attention.CAUSAL:
        try:
            forward, backward = attention.seconds(bench, name, shape)
        except attention.Absent:
            continue
        found.append((forward + backward, name, forward, backward))
    _, name, forward, backward = min(found)
    return name, forward, backward


def optimizer_seconds(step: TrainingStep) -> float:
    """Seconds of clipping and the optimizer's step, on gradients that are there."""
    step.backward()

    def update() -> None:
        nn.utils.clip_grad_norm_(step.model.parameters(), 1.0)
        step.optimizer.step()

    seconds = seconds_of(update, step.bench.device, step.bench.sizes.repeats, warm_up=2)
    step.optimizer.zero_grad()
    return median(seconds)


def elementwise_bytes(step: TrainingStep) -> int:
    """Bytes that a step's elementwise work reads and writes at the least, forward and backward.

    float32 residual stream and gradients of it, bf16 branches; each operation between two products
    reads its inputs and writes its outputs once. Per token:

    - a sublayer's forward: 2 d normed input; 8 d to rotate and normalise queries and keys; 12 d
      first residual sum and its norm; 6 h SwiGLU; 10 d second residual sum
    - its backward: 8 d, 10 h, 18 d, 12 d, 14 d, in the opposite order
    - a layer's mixture: 4 d for each state, the wide path and the result, three times
    - the loss: 6 V, its bf16 logits read twice and their gradient written

    Once a micro-batch, per weight: 6 to make a bf16 copy, 4 to write the gradient, and 2 for each
    use of the weight, to read the product that the gradient is a sum of.
    """
    config, variant = step.config, step.variant
    tokens = variant.micro_batch * step.bench.sizes.seq_len
    per_token = 6 * config.vocab_size
    for kind in config.block_kinds:
        per_token += sum((84 * config.d_model) + 16 * width for width in widths(config, kind))
        states = passes(kind, config.loops)
        per_token += 3 * 4 * config.d_model * (states + 1) if states > 1 else 0
    weights = sum(
        parameter.numel() * (10 + 2 * (config.loops if ".deep." in name else 1))
        for name, parameter in step.model.named_parameters()
        if parameter.dim() == 2
    )
    return variant.accumulate * (tokens * per_token + weights)


def widths(config: ModelConfig, kind: str) -> list[int]:
    """Effective FFN width h of every sublayer pass of a layer."""
    found = []
    if kind != "wide":
        assert config.d_ffn is not None
        found += [config.effective_width(config.d_ffn)] * config.loops
    if kind != "loop":
        assert config.d_ffn_wide is not None
        found.append(config.effective_width(config.d_ffn_wide))
    return found
