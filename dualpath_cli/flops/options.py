"""The options of `dualpath flops`, and the values parsed from them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, cast, get_args

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.base.ranges import LARGEST, Place, Range, Size, check_range, check_ranges
from dualpath_cli.flops import paper
from dualpath_cli.flops.widths import Match
from dualpath_cli.spec.config import RANGES, BlockKind

_FIELDS = {  # of a model, by the option that sets it
    "vocab": "vocab_size", "layers": "n_layers", "dim": "d_model", "heads": "n_heads",
    "kv_heads": "n_kv_heads", "seq_len": "max_seq_len", "width_multiple": "ffn_multiple_of",
    "experts": "n_experts", "top_k": "top_k",
}  # fmt: skip
_SOLVER = {"alpha", "loops", "block", "match", *_FIELDS} - {"seq_len"}
_PLAN = ("shard_size", "micro_batch", "batch_tokens")
SUSTAINED = {"a100": 68.0, "h200": 389.0}  # TFLOP/s of a GPU in training; docs/flops.md


@dataclass(frozen=True)
class Flops:
    """Solves FFN widths for a FLOP budget, and counts a model's parameters and FLOPs, for the paper
    as written and as trained."""

    budget: Size | None = None
    """Solve FFN widths for this number of linear FLOPs per token and layer, such as 80M."""
    config: tuple[Place, ...] = ()
    """Describe the model of a recipe (path or name) instead; later recipes win. With --budget, also
    compare the model to the budget."""
    table: bool = False
    """Print the paper's 13 configurations, solved for --budget."""
    block: str = "dual"
    """Kind of block: dual, loop or wide; or one for each layer, as wide,dual,wide."""
    alpha: float = 50
    """Percent of a dual block's FLOPs that its deep path gets."""
    loops: str = field(default="4", metadata={"also": ("--k",)})
    """K, passes of the deep path; or one for each layer, as 1,4,1,1."""
    match: Match = "linear"
    """linear: linear FLOPs meet the budget, as in the paper. total: linear FLOPs and
    attention scores meet the budget plus the K + 1 attention passes of a dual block, to within 1
    percent; wide and loop blocks then get wider FFNs."""
    width_multiple: int | None = None
    """Multiple of solved and effective widths, under both readings. By default widths are solved in
    multiples of 64, and effective widths round up to 64 as written, 256 as trained. Under --match
    total the default is the coarsest of 64 (256) and its halves that meets the sum to within 1
    percent."""
    experts: int = 0
    """Experts in each wide path's FFN, at the same FLOPs; 0 is dense."""
    top_k: int = 2
    """Experts that each token takes."""
    layers: int | None = None
    """Number of blocks. By default as many as --block or --loops lists, or 16."""
    dim: int = 768
    """Width of the residual stream."""
    heads: int | None = None
    """Number of query heads. By default one for 64 channels: 12."""
    kv_heads: int | None = None
    """Number of key and value heads. By default as many as query heads."""
    vocab: int = 50304
    """Rows of the embedding."""
    seq_len: int | None = None
    """Tokens a sequence, for attention scores. By default 4096, or the recipe's."""
    tokens: Size | None = None
    """Training tokens, such as 38.5B. By default 38503710720, or the recipe's."""
    gpus: int = paper.GPUS
    """Number of GPUs; --plan by itself takes fewer where a step has too few sequences."""
    tflops: float | Literal["a100", "h200"] = "a100"
    """TFLOP/s that each GPU sustains in training, not its peak: a number, or a card's name. a100 is
    68, the median implied by the paper's 26 training times. h200 is 389, the median of six measured
    models (337 to 473)."""
    plan: bool = False
    """Print the memory of each GPU under ddp, fsdp and hsdp instead."""
    shard_size: int | None = None
    """GPUs that share one set of weights under hsdp. By default the recipe's, or
    8."""
    micro_batch: int | None = None
    """Most sequences of a GPU at once. By default the recipe's, or 2."""
    batch_tokens: Size | None = None
    """Tokens of a step, such as 4194304. By default the recipe's, or 2097152."""
    reading: paper.Reading | None = None
    """The authors' configuration (as_trained, the default for a budget), or the paper's text
    (as_written). By default a recipe is not changed."""
    format: Literal["table", "json"] = "table"
    """Output format."""
    given: tuple[str, ...] = ()
    """Names of the options that the user gave."""

    def __post_init__(self) -> None:
        ranges: dict[str, Range] = {name: RANGES[field] for name, field in _FIELDS.items()}
        ranges |= dict.fromkeys(("budget", "tokens", "batch_tokens"), (1, LARGEST))
        ranges |= dict.fromkeys(("gpus", "shard_size", "micro_batch"), (1, 10**9))
        check_ranges(self, ranges | {"tflops": (1e-6, 1e9)})
        _ = self.by_layer  # raises
        if self.plan:
            idle = ("table", "tokens", "tflops", "decode")
            self._refuse(idle, "--plan shows the memory of one model in training")
        else:
            self._refuse(_PLAN, "only --plan shows how GPUs share a step")
        if self.config:
            self._refuse((*_SOLVER, "table"), "--config describes the recipe's own model")
        elif self.budget is None:
            example = "such as --budget 80M --alpha 50 --k 4"
            raise UserError(f"nothing to describe; give --budget ({example}), or --config RECIPE")
        if self.table:
            swept = ("block", "alpha") if self.match == "total" else ("block", "alpha", "loops")
            self._refuse(swept, "--table goes through every block, alpha and K")

    def _refuse(self, refused: Sequence[str], because: str) -> None:
        if both := [flag(name) for name in self.given if name in refused]:
            raise UserError(f"{because}; drop {', '.join(both)}")

    @property
    def sustained(self) -> float:
        """FLOP/s of a GPU."""
        return 1e12 * (SUSTAINED[self.tflops] if isinstance(self.tflops, str) else self.tflops)

    @cached_property
    def by_layer(self) -> list[tuple[BlockKind, int]]:
        """Kind and K of each layer, or one of each for all layers."""
        lists = (self.block, self.loops)
        kinds, counts = ([item.strip() for item in text.split(",")] for text in lists)
        for kind in kinds:
            if kind not in (known := get_args(BlockKind)):
                near = did_you_mean(kind, known)
                raise ValueError(f"block must be one of {', '.join(known)}, not '{kind:.60}'{near}")
        if not all(re.fullmatch(r"\d{1,18}", count) for count in counts):
            raise ValueError(
                "loops must be a whole number, or one for each layer such as 1,4,1,1, not "
                f"'{self.loops:.60}'"
            )
        for count in counts:
            check_range("loops", int(count), RANGES["loops"])
        longest = max(len(kinds), len(counts))
        if longest == 1:
            return [(cast(BlockKind, kinds[0]), int(counts[0]))]
        if self.match == "total":
            raise UserError("--match total takes one kind of block and one K, not a list")
        layers = self.layers or longest
        for name, items in (("block", kinds), ("loops", counts)):
            if len(items) not in (1, layers):
                raise ValueError(f"{name} lists {len(items)} layers, and the model has {layers}")
        kinds, counts = (items * (layers // len(items)) for items in (kinds, counts))
        return list(zip(cast(list[BlockKind], kinds), map(int, counts), strict=True))


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")
