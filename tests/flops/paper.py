"""The paper's 26 configurations and its results, from docs/paper_tables.json (arXiv
2605.30202)."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualpath_cli.flops.description import READINGS, PaperReading
from dualpath_cli.flops.widths import Target
from dualpath_cli.spec.config import BlockKind, ModelConfig

TABLES: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "docs" / "paper_tables.json").read_text()
)


@dataclass(frozen=True)
class PublishedRow:
    """One row of the paper's configuration tables."""

    budget_name: str  # F80M or F160M
    block: BlockKind  # kind of all 16 blocks
    # percent of the FLOPs on the deep path; None for single-axis controls
    alpha: int | None
    loops: int  # K; 1 for PureWide
    d_ffn: int | None  # configured width of the deep path
    d_ffn_wide: int | None  # configured width of the wide path
    params_millions: int  # the Params column
    hours_on_64_gpus: float  # the Time column: wall-clock hours of the training run

    @property
    def budget(self) -> int:
        """F_M, FLOPs per token and layer (Section 4.1)."""
        return {"F80M": 80_000_000, "F160M": 160_000_000}[self.budget_name]

    @property
    def recipe(self) -> str:
        """Name of the configuration's recipe: f80m_wide, f80m_loop_k2, f80m_a50_k4."""
        path = "loop" if self.alpha is None else f"a{self.alpha}"
        name = "wide" if self.block == "wide" else f"{path}_k{self.loops}"
        return f"{self.budget_name.lower()}_{name}"

    @property
    def target(self) -> Target:
        alpha = 50 if self.alpha is None else self.alpha
        return Target(self.budget, self.block, alpha=alpha, loops=self.loops)

    def model_config(self, reading: PaperReading) -> ModelConfig:
        """The model under a reading, with the widths of the paper's table."""
        return ModelConfig(
            block=self.block,
            loops=self.loops,
            d_ffn=self.d_ffn,
            d_ffn_wide=self.d_ffn_wide,
            **READINGS[reading],
        )


CONFIGURATIONS = [
    PublishedRow(name, **dict(zip(TABLES["configuration_columns"], row, strict=True)))
    for name, rows in TABLES["configurations"].items()
    for row in rows
]
"""In the order of the tables."""
