"""The paper's numbers as data: its 26 configurations, its results, its two readings.

Source: "A Dual-Path Architecture for Scaling Compute and Capacity in LLMs", arXiv 2605.30202.
Only numbers are carried over; they live in paper_tables.json beside this file.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast, get_args

from dualpath_cli.flops.widths import Target
from dualpath_cli.spec.config import BlockKind, ModelConfig

Reading = Literal["as_written", "as_trained"]
READINGS: tuple[Reading, ...] = get_args(Reading)

# ModelConfig fields that the text settles. It gives no RoPE base: the default stays.
AS_WRITTEN: Mapping[str, Any] = {
    "ffn_multiple_of": 64, "tie_embeddings": True, "qk_norm": "before_rope",
    "step_index": "one_based",
}  # fmt: skip
# The same fields as the authors trained them; the Params columns confirm these values.
AS_TRAINED: Mapping[str, Any] = {
    "ffn_multiple_of": 256, "tie_embeddings": False, "qk_norm": "after_rope",
    "step_index": "zero_based",
}  # fmt: skip

BUDGETS = {"F80M": 80_000_000, "F160M": 160_000_000}  # F_M, FLOPs per token and layer (Section 4.1)
TRAINING_TOKENS = 38_503_710_720  # 18,360 steps of 2,097,152 tokens; the text says 38B
GPUS = 64  # GPUs (A100) of every run (Section 4.1)


def reading_fields(reading: Reading) -> dict[str, Any]:
    return dict(AS_WRITTEN if reading == "as_written" else AS_TRAINED)


@dataclass(frozen=True)
class PublishedRow:
    """One row of the paper's configuration tables."""

    budget_name: str  # F80M or F160M
    block: BlockKind  # kind of all 16 blocks
    alpha: int | None  # percent of the FLOPs on the deep path; None for single-axis controls
    loops: int  # K; 1 for PureWide
    d_ffn: int | None  # configured width of the deep path
    d_ffn_wide: int | None  # configured width of the wide path
    params_millions: int  # the Params column
    hours_on_64_gpus: float  # the Time column: wall-clock hours of the training run

    @property
    def budget(self) -> int:
        return BUDGETS[self.budget_name]

    @property
    def label(self) -> str:
        """Short name within a budget, as in the result columns: wide, loop_k2, a50_k4."""
        if self.block == "wide":
            return "wide"
        return f"loop_k{self.loops}" if self.block == "loop" else f"a{self.alpha}_k{self.loops}"

    @property
    def recipe(self) -> str:
        """Name of the configuration's recipe: f80m_a50_k4."""
        return f"{self.budget_name.lower()}_{self.label}"

    @property
    def target(self) -> Target:
        alpha = 50 if self.alpha is None else self.alpha
        return Target(self.budget, self.block, alpha=alpha, loops=self.loops)

    def model_config(self, reading: Reading) -> ModelConfig:
        """The model under a reading, with the widths of the paper's table."""
        return ModelConfig(
            block=self.block, loops=self.loops, d_ffn=self.d_ffn, d_ffn_wide=self.d_ffn_wide,
            **reading_fields(reading),
        )  # fmt: skip


@cache
def tables() -> dict[str, Any]:
    text = Path(__file__).with_name("paper_tables.json").read_text(encoding="utf-8")
    return cast("dict[str, Any]", json.loads(text))


def configurations(budget_name: str | None = None) -> list[PublishedRow]:
    """The 13 configurations of a budget, or all 26, in the order of the tables."""
    columns = tables()["configuration_columns"]
    return [
        PublishedRow(name, **dict(zip(columns, row, strict=True)))
        for name, rows in tables()["configurations"].items()
        if budget_name in (None, name)
        for row in rows
    ]
