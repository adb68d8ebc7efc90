"""A model as `dualpath flops` prints it: the record behind every format, and the formats."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from dualpath_cli.config import ModelConfig
from dualpath_cli.files.csv_text import format_csv
from dualpath_cli.flops import count
from dualpath_cli.flops.widths import Target, Widths
from dualpath_cli.sizes import format_size

NUMERICS = ("norm_eps", "gain_init", "init_std", "residual_dtype", "rope_dtype",
            "document_start")  # fmt: skip
"""ModelConfig fields that say nothing about sizes; yaml names them only off their defaults."""


@dataclass(frozen=True)
class Hardware:
    """The hardware that training hours are computed for."""

    tokens: int
    gpus: int
    tflops: float
    """Sustained TFLOP/s of each GPU."""
    asked: bool
    """Whether the user gave any of the three; otherwise only the table of a budget has hours."""


@dataclass(frozen=True)
class Description:
    """A model with what it was solved for."""

    config: ModelConfig
    reading: str | None
    """as_written, as_trained, or None where a recipe's model is neither."""
    hardware: Hardware
    seq_len: int
    """Tokens that attention scores are averaged over."""
    budget: int | None = None
    """F_M to compare with; a recipe has none unless it is given."""
    solved: tuple[tuple[Target, Widths], ...] = ()
    """What widths were solved for, and the widths, which know what was clamped: one for all layers,
    or one for each. Empty for a recipe's model."""
    step_loops: Mapping[int, float] = field(default_factory=dict)
    """Training steps that run each number of loops; empty where all run the model's own."""

    @property
    def target(self) -> Target | None:
        """What the widths of all layers were solved for; None where layers differ."""
        return self.solved[0][0] if len(self.solved) == 1 else None

    @property
    def clamped(self) -> tuple[str, ...]:
        """Names of widths that were raised to the smallest multiple."""
        return tuple(dict.fromkeys(name for _, widths in self.solved for name in widths.clamped))

    @property
    def loops(self) -> int | list[int]:
        """K, which is 1 without a deep path; or a list by layer."""
        return 1 if set(self.config.block_kinds) == {"wide"} else self.config.loops

    @property
    def layer(self) -> dict[str, int | float]:
        """FLOPs per token and layer by part, the mean where kinds of blocks are mixed."""
        return count.mean_layer_flops(self.config, self.seq_len)

    @property
    def budget_ratio(self) -> float | None:
        """The spent part of the budget: linear FLOPs, with attention scores under match total."""
        if self.target is not None and self.target.match == "total":
            spent = self.layer["linear_total"] + self.layer["attention_scores"]
            return spent / self.target.matched_budget
        return None if self.budget is None else self.layer["linear_total"] / self.budget

    @property
    def training_flops(self) -> float:
        """FLOPs of one token in training, head included: their mean over steps."""
        counted = partial(count.training_flops_per_token, seq_len=self.seq_len)
        return count.over_loops(counted, self.config, self.step_loops)

    @property
    def hours(self) -> float:
        """Training hours on the hardware."""
        rate = self.hardware.gpus * self.hardware.tflops * 1e12
        return self.training_flops * self.hardware.tokens / rate / 3600

    def effective(self, name: str) -> int | list[int | None] | None:
        """Effective width of ``d_ffn`` or ``d_ffn_wide``; None where no block has that path."""
        return None if self.width(name) is None else self.config.effective(name)

    def width(self, name: str) -> int | list[int | None] | None:
        """Configured ``d_ffn`` or ``d_ffn_wide``; None where no block has that path."""
        unused = {"d_ffn": "wide", "d_ffn_wide": "loop"}[name]
        value: int | list[int | None] | None = getattr(self.config, name)
        return None if set(self.config.block_kinds) == {unused} else value

    def record(self) -> dict[str, Any]:
        """Every number by name: the JSON object, and flattened the CSV row."""
        block = self.config.block
        alpha = next((t.alpha for t, _ in self.solved if t.block == "dual"), None)
        record = {
            "block": block if isinstance(block, str) else list(block),
            "alpha": int(alpha) if alpha is not None and alpha == int(alpha) else alpha,
            "loops": self.loops,
            "d_ffn": self.width("d_ffn"),
            "d_ffn_wide": self.width("d_ffn_wide"),
            "d_ffn_effective": self.effective("d_ffn"),
            "d_ffn_wide_effective": self.effective("d_ffn_wide"),
            "ffn_multiple_of": self.config.ffn_multiple_of,
            "params": count.parameters(self.config),
            "params_non_embedding": count.parameters_non_embedding(self.config),
            "flops_per_token_per_layer": self.layer,
            "budget": self.budget,
            "budget_ratio": self.budget_ratio,
            "reading": self.reading,
        }
        if any(layer.n_experts for layer in self.config.layers):
            record |= {"n_experts": self.config.n_experts, "top_k": self.config.top_k}
            widths = [layer.expert_width for layer in self.config.layers]
            record |= {"expert_width": widths if len({*widths}) > 1 else widths[0]}
            record |= {"params_active": count.active_parameters(self.config)}
        if self.target is not None and self.target.match == "total":
            record |= {"match": "total", "matched_budget": self.target.matched_budget}
        if self.hardware.asked:
            record |= {"training_flops_per_token": self.training_flops}
            record |= {"training_hours": round(self.hours, 3)}
        return record


def as_records(descriptions: Sequence[Description], form: str, single: bool = False) -> str:
    """The models as json or csv; one json object if ``single``, else a list."""
    records = [description.record() for description in descriptions]
    return as_csv(records) if form == "csv" else as_json(records[0] if single else records)


def as_json(value: object) -> str:
    """A value as readable JSON."""
    return json.dumps(value, indent=2)


def as_csv(records: Sequence[dict[str, Any]]) -> str:
    """A header and one row a record; nested names are joined by a dot, lists by a space."""
    rows = []
    for record in records:
        row: dict[str, Any] = {}
        for name, value in record.items():
            if isinstance(value, dict):
                row |= {f"{name}.{part}": number for part, number in value.items()}
            else:
                row[name] = " ".join(map(str, value)) if isinstance(value, list) else value
        rows.append(row)
    return format_csv(rows).rstrip("\n")


def as_yaml(description: Description) -> str:
    """A `model:` section for a recipe, with a comment that says what it holds."""
    config, ratio = description.config, description.budget_ratio
    label = (description.reading or "as the recipe says").replace("_", " ")
    lines = [f"# {label}: {count.parameters(config):,} parameters"]
    if ratio is not None and description.budget is not None:
        lines[0] += f", {ratio:.4f} of {_budget_in_words(description)}"
    lines.append("model:")
    for entry in fields(config):
        value = getattr(config, entry.name)
        if entry.name in NUMERICS and value == entry.default:
            continue
        lines.append(f"  {entry.name}: {_yaml_scalar(value)}")
    return "\n".join(lines)


def _yaml_scalar(value: Any) -> str:
    if isinstance(value, str):
        return value
    text = json.dumps(list(value) if isinstance(value, tuple) else value)
    # YAML 1.1 reads 1e-05 as a string, 1.0e-05 as a number
    return text.replace("e", ".0e") if isinstance(value, float) and "." not in text else text


def _budget_in_words(description: Description) -> str:
    assert description.budget is not None
    if description.target is not None and description.target.match == "total":
        return (
            f"{description.target.matched_budget:,} linear and attention FLOPs per token and layer"
        )
    return f"{format_size(description.budget)} linear FLOPs per token and layer"
