"""Part `switches`: candidate changes beside the step as it is, by turns in one process.

A ratio is of tokens/s in one round, to those of the family's first variant in the same round. What
differs by less than the rounds scatter is not known to differ.
"""

from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from benchmarks.gpu.clock import by_turns
from benchmarks.gpu.kernel_classes import attention_kernels
from benchmarks.gpu.parts import Bench, Cell, Column, Part, number
from benchmarks.gpu.results import Row
from benchmarks.gpu.sizes import MAIN, Sizes
from benchmarks.gpu.training import SDPA, TrainingStep, Variant
from dualpath_cli.errors import one_line

Changes = dict[str, Any]


def families(sizes: Sizes) -> dict[str, dict[str, Changes]]:
    """Names of variants, by family, and their changes to the step as it is; the first is without.

    Most important first.
    """
    several = {"accumulate": sizes.accumulate}
    return {
        "attention": {"torch's choice": {}, **{name: {"attention": name} for name in SDPA}},
        "loss": {
            "compiled": {},
            "eager": {"compiled_loss": False},
            "compiled, all logits at once": {"max_logits": 2**40},
        },
        "logits at once": {
            "2^28": {},
            **{f"2^{power}": {"max_logits": 2**power} for power in (27, 29, 30)},
        },
        "checkpointing": {
            "selective": {},
            "none": {"checkpointing": "none"},
            "full": {"checkpointing": "full"},
        },
        "micro-batch": {
            f"micro-batch {n}": {} if n == sizes.micro_batch else {"micro_batch": n}
            for n in sorted(sizes.micro_batches, key=lambda n: n != sizes.micro_batch)
        },
        "gradients": {
            "one micro-batch a step": {},
            f"{sizes.accumulate}, first one makes them": several,
            f"{sizes.accumulate}, all added to zeros": {**several, "keep_gradients": True},
        },
        "documents": {"whole sequences": {}, "each alone": {"documents": True}},
        "optimizer": {"fused": {}, "foreach": {"optimizer": "foreach"}},
        "float32 products": {"highest": {}, "high (TF32)": {"matmul_precision": "high"}},
        "compile": {"each block": {}, "whole model": {"compile": "model"}},
        "autotuning": {"off": {}, "max": {"mode": "max-autotune-no-cudagraphs"}},
    }


def compare(bench: Bench, family: str, variants: dict[str, Changes]) -> dict[str, Row]:
    """Times all variants of a family by turns.

    One that this machine cannot make is `absent`, with the reason; the others go on.
    """
    sizes, config = bench.sizes, bench.sizes.model(MAIN)
    steps: dict[str, TrainingStep] = {}
    rows: dict[str, Row] = {}
    for name, changes in variants.items():
        step = TrainingStep(bench, config, replace(Variant(sizes.micro_batch), **changes))
        try:
            for _ in range(sizes.warm_up):
                step()
            step.check_compiled()
        except RuntimeError as error:
            if name == next(iter(variants)):
                raise
            rows[row_name(family, name)] = {"absent": one_line(str(root(error)))[:200]}
            continue
        steps[name] = step
    repeats = max(1, sizes.repeats // 3)
    seconds = by_turns(dict(steps), bench.device, sizes.rounds, repeats)
    speeds = {
        name: [step.tokens_per_step / s for s in seconds[name]] for name, step in steps.items()
    }
    first = next(iter(speeds.values()))
    for name, rounds in speeds.items():
        ratios = [speed / of_first for speed, of_first in zip(rounds, first, strict=True)]
        rows[row_name(family, name)] = {
            "tokens_per_second": median(rounds),
            "ratio": median(ratios),
            "least": min(ratios),
            "most": max(ratios),
            "graphs": steps[name].graphs,
            "attention_kernels": attention_kernels(steps[name], bench.device),
        }
    return rows


def root(error: BaseException) -> BaseException:
    """What an error came of first; the compiler wraps errors into its own."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return error


def row_name(family: str, variant: str) -> str:
    """Name of a variant's row."""
    return f"{family}: {variant}"


def cells(bench: Bench) -> list[Cell]:
    """A cell for each family."""
    return [
        Cell(
            family,
            tuple(row_name(family, name) for name in variants),
            partial(compare, bench, family, variants),
        )
        for family, variants in families(bench.sizes).items()
    ]


PART = Part(
    "switches",
    "variant",
    (
        number("tokens/s, median", "tokens_per_second"),
        number("ratio, median", "ratio", "{:.3f}"),
        Column("least to most", lambda row: f"{row['least']:.3f} to {row['most']:.3f}"),
    ),
    cells,
)
