"""What `dualpath flops` describes: a model, the hardware that trains it, the batch it decodes."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from dualpath_cli.config import ModelConfig
from dualpath_cli.errors import UserError
from dualpath_cli.flops import count
from dualpath_cli.flops.widths import Target, Widths


@dataclass(frozen=True)
class Hardware:
    tokens: int
    gpus: int
    tflops: float  # sustained TFLOP/s of each GPU
    asked: bool  # whether the user gave any of these; else only a budget's table has hours


@dataclass(frozen=True)
class Decoding:
    """Texts that grow by a token a step, side by side."""

    texts: int
    context: int  # tokens of each text
    bandwidth: float  # bytes a second that memory is read at

    @classmethod
    def read(cls, words: str | None) -> "Decoding | None":
        """`32x4096@3.35TB/s`; None of None."""
        if words is None:
            return None
        found = re.fullmatch(r"(\d+)x(\d+)@(\d+(?:\.\d+)?)([GT])B/s", words.replace(" ", ""))
        if found:
            unit = {"G": 1e9, "T": 1e12}[found[4]]
            decoding = cls(int(found[1]), int(found[2]), float(found[3]) * unit)
            if all(vars(decoding).values()) and max(decoding.texts, decoding.context) <= 10**9:
                return decoding
        raise UserError(
            "--decode must be texts x tokens @ bandwidth in GB/s or TB/s, such as "
            f"32x4096@3.35TB/s, not '{words}'"
        )


@dataclass(frozen=True)
class Description:
    config: ModelConfig
    reading: str | None  # as_written, as_trained, or None where a recipe's model is neither
    hardware: Hardware
    seq_len: int  # tokens that attention scores are averaged over
    decoding: Decoding | None
    budget: int | None = None  # F_M to compare with; a recipe has none unless it is given
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
    def in_total(self) -> bool:
        """Whether widths were solved for equal sums with attention, in a multiple of their own."""
        return self.target is not None and self.target.match == "total"

    @property
    def clamped(self) -> tuple[str, ...]:
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
        if self.in_total and self.target is not None:
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
        rate = self.hardware.gpus * self.hardware.tflops * 1e12
        return self.training_flops * self.hardware.tokens / rate / 3600

    @property
    def step_seconds(self) -> float | None:
        """The least seconds of a step of decoding."""
        if (d := self.decoding) is None:
            return None
        return count.decoding_seconds(self.config, d.texts, d.context, d.bandwidth)

    def width(self, name: str) -> int | list[int | None] | None:
        """Configured ``d_ffn`` or ``d_ffn_wide``; None where no block has that path."""
        unused = {"d_ffn": "wide", "d_ffn_wide": "loop"}[name]
        value: int | list[int | None] | None = getattr(self.config, name)
        return None if set(self.config.block_kinds) == {unused} else value

    def effective(self, name: str) -> int | list[int | None] | None:
        """Effective width of ``d_ffn`` or ``d_ffn_wide``; None where no block has that path."""
        return None if self.width(name) is None else self.config.effective(name)

    def record(self) -> dict[str, Any]:
        """Every number by name, for JSON; `model` is a section of a recipe, for YAML reads JSON."""
        block = self.config.block
        alpha = next((t.alpha for t, _ in self.solved if t.block == "dual"), None)
        record = {
            "block": block if isinstance(block, str) else list(block),
            "alpha": int(alpha) if alpha is not None and alpha == int(alpha) else alpha,
            "loops": self.loops,
            "d_ffn": self.width("d_ffn"), "d_ffn_wide": self.width("d_ffn_wide"),
            "d_ffn_effective": self.effective("d_ffn"),
            "d_ffn_wide_effective": self.effective("d_ffn_wide"),
            "ffn_multiple_of": self.config.ffn_multiple_of,
            "params": count.parameters(self.config),
            "params_non_embedding": count.parameters_non_embedding(self.config),
            "flops_per_token_per_layer": self.layer,
            "kv_bytes_per_token": count.kv_bytes(self.config),
            "budget": self.budget, "budget_ratio": self.budget_ratio, "reading": self.reading,
        }  # fmt: skip
        if any(layer.n_experts for layer in self.config.layers):
            record |= {"n_experts": self.config.n_experts, "top_k": self.config.top_k}
            record["expert_width"] = one_or_list([own.expert_width for own in self.config.layers])
            record["params_active"] = count.active_parameters(self.config)
        if self.in_total and self.target is not None:
            record |= {"match": "total", "matched_budget": self.target.matched_budget}
        if self.hardware.asked:
            record["training_flops_per_token"] = self.training_flops
            record["training_hours"] = round(self.hours, 3)
        if self.decoding is not None and self.step_seconds is not None:
            record["decoding"] = asdict(self.decoding) | {
                "step_seconds": self.step_seconds,
                "tokens_per_second": self.decoding.texts / self.step_seconds,
            }
        return record | {"model": asdict(self.config)}


def one_or_list(values: list[Any], without: Any = None) -> Any:
    """The value of all layers that have one, or a list where they differ."""
    different = {value for value in values if value is not None}
    if len(different) < 2:
        return different.pop() if different else without
    return [without if value is None else value for value in values]
