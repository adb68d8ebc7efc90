"""The paper's two configuration tables, every number beside ours."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dualpath_cli.flops import count, paper
from dualpath_cli.flops.request import DEFAULT_TFLOPS
from dualpath_cli.flops.widths import Widths, solve_widths


@dataclass(frozen=True)
class Row:
    """One configuration: the paper's numbers and ours, by reading where they depend on it."""

    printed: paper.Configuration
    solved: Widths
    params: Mapping[str, int]
    untied_params: int
    """Parameters as written but untied: the first of two causes, alone."""
    linear_ratio: Mapping[str, float]
    """Linear FLOPs over F_M."""
    passes: int
    """Attention passes of a layer."""
    total: int
    """FLOPs per token and layer as trained: linear, router and attention scores."""
    training_flops: Mapping[str, int]
    """FLOPs of one token in training, head included."""

    @property
    def name(self) -> str:
        """Budget and label, such as F80M a50_k4."""
        return f"{self.printed.budget_name} {self.printed.label}"

    @property
    def tied_head(self) -> int:
        """Parameters that the model as written lacks because its head is the embedding."""
        return self.untied_params - self.params["as_written"]

    @property
    def narrower(self) -> int:
        """Parameters that it lacks because effective widths round up to 64 instead of 256."""
        return self.params["as_trained"] - self.untied_params

    @property
    def implied_tflops(self) -> float:
        """Sustained TFLOP/s of each GPU that the paper's hours imply for the trained model."""
        seconds = self.printed.hours_on_64_gpus * 3600
        work = self.training_flops["as_trained"] * paper.TRAINING_TOKENS
        return work / seconds / paper.GPUS / 1e12

    def hours(self, reading: str) -> float:
        """Training hours on the paper's GPUs at DEFAULT_TFLOPS each."""
        work = self.training_flops[reading] * paper.TRAINING_TOKENS
        return work / (paper.GPUS * DEFAULT_TFLOPS * 1e12) / 3600


def compare() -> list[Row]:
    """All 26 configurations, in the order of the paper's tables."""
    return [_row(configuration) for configuration in paper.configurations()]


def _row(printed: paper.Configuration) -> Row:
    models = {reading: printed.model_config(reading) for reading in paper.READINGS}
    layers = {name: count.layer_flops(model.layers[0]) for name, model in models.items()}
    untied = replace(models["as_written"], tie_embeddings=False)
    return Row(
        printed,
        solved=solve_widths(printed.target),
        params={name: count.parameters(model) for name, model in models.items()},
        untied_params=count.parameters(untied),
        linear_ratio={name: f.linear_total / printed.budget for name, f in layers.items()},
        passes=count.passes(printed.block, printed.loops),
        total=layers["as_trained"].total,
        training_flops={n: count.training_flops_per_token(m) for n, m in models.items()},
    )


def by_budget(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each budget."""
    return {b: [row for row in rows if row.printed.budget_name == b] for b in paper.BUDGETS}


def numbers(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Every number of the two tables beside ours, one record each.

    Parameters are in millions and agree when they round to the paper's; widths agree when equal;
    hours are ours at DEFAULT_TFLOPS and agree when they round to the paper's tenth.
    """
    for row in rows:
        for name in ("d_ffn", "d_ffn_wide"):
            if getattr(row.printed, name) is not None:
                width = getattr(row.solved, name)
                yield _compared(row, name, [width, width], "solved differently")
        yield _compared(
            row,
            "params_millions",
            [round(row.params[reading] / 1e6) for reading in paper.READINGS],
            f"as written the head is tied (-{row.tied_head / 1e6:.1f}M) and effective widths round "
            f"up to 64, not 256 (-{row.narrower / 1e6:.1f}M)",
        )
        yield _compared(
            row,
            "hours_on_64_gpus",
            [round(row.hours(reading), 1) for reading in paper.READINGS],
            f"a measured time, which implies {row.implied_tflops:.0f} TFLOP/s a GPU, not "
            f"{DEFAULT_TFLOPS:g}",
        )


def _compared(row: Row, quantity: str, ours: Sequence[float], cause: str) -> dict[str, Any]:
    """One number of the paper and ours by reading, in the order of paper.READINGS."""
    printed = getattr(row.printed, quantity)
    agrees = [number == printed for number in ours]
    return {
        "budget": row.printed.budget_name,
        "configuration": row.printed.label,
        "quantity": quantity,
        "paper": printed,
        **dict(zip(paper.READINGS, ours, strict=True)),
        **dict(zip((f"agrees_{name}" for name in paper.READINGS), agrees, strict=True)),
        "cause": "" if all(agrees) else cause,
    }
