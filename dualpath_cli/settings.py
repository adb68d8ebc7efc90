"""What a recipe says beside the model: optimizer, run and data. Torch-free, so checked at once."""

from dataclasses import dataclass, field
from typing import Literal

from dualpath_cli.sizes import Size

STRATEGIES = ("auto", "single", "ddp", "fsdp")
"""Names for trainer.strategy: auto is single on one device and ddp on several; fsdp is FSDP2."""

ParameterGroup = Literal["matrices", "embeddings", "norms", "gains", "biases"]


@dataclass(frozen=True)
class OptimSettings:
    """AdamW with linear warm-up and cosine decay. The defaults are the paper's (appendix A)."""

    lr: float = 5e-4
    """Peak learning rate."""
    lr_start: float = 5e-6
    """Learning rate of the first warm-up step."""
    lr_end: float = 5e-5
    """Learning rate that the cosine reaches with the last token."""
    warmup_steps: int = 184
    """Optimizer steps from lr_start to lr."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates of the two moments."""
    eps: float = 1e-8
    """AdamW's epsilon."""
    weight_decay: float = 0.3
    """Decoupled weight decay of the groups in `decay`."""
    decay: list[ParameterGroup] = field(
        default_factory=lambda: ["matrices", "norms", "gains", "biases"]
    )
    """Groups that decay: matrices, embeddings (with the head when tied), norms, gains, biases."""
    clip: float = 1.0
    """Global L2 norm that gradients are clipped to; 0 switches clipping off."""

    def __post_init__(self) -> None:
        if not self.lr > 0 or min(self.lr_start, self.lr_end) < 0:
            raise ValueError(f"lr must be above 0 and its ends not below, not {self.lr}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be from 0 to below 1, not {list(self.betas)}")
        for name in ("warmup_steps", "eps", "weight_decay", "clip"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be below 0, but is {getattr(self, name)}")


@dataclass(frozen=True)
class RunSettings:
    """How long and in which portions a run trains, and what it writes down."""

    recipe: str = "custom"
    """Name of the recipe, and of the folder for its runs; --config sets it."""
    name: str = "default"
    """Name of the run folder, below the recipe's."""
    dir: str = "runs"
    """Folder that holds all runs."""
    budget: Size | None = None
    """Nominal FLOPs per token and layer that the model was solved for; fit prints the ratio."""
    max_tokens: Size = Size(38_503_710_720)
    """Training budget in tokens, rounded down to whole optimizer steps."""
    batch_tokens: Size = Size(2_097_152)
    """Tokens of one optimizer step, over all devices and accumulation."""
    micro_batch: int = 2
    """Sequences in one forward pass of one device."""
    compile: bool = True
    """Whether each block is compiled; without a C++ compiler the run says so and goes on."""
    log_every: int = 10
    """Optimizer steps between two rows of metrics."""
    gates_every: int = 100
    """Optimizer steps between two read-outs of gates, gains and expected loops per layer."""
    validate_every: int = 1000
    """Optimizer steps between two validations; 0 validates only at the end."""
    save_every: int = 1000
    """Optimizer steps between two checkpoints; one is always written at the end."""
    keep: int = 3
    """How many checkpoints are kept; 0 keeps all."""
    tensorboard: bool = True
    """Whether to log to TensorBoard too, where it is installed."""
    wandb: str | None = None
    """Weights & Biases project to log to as well."""
    peak_tflops: float | None = None
    """The device's peak in TFLOP/s that MFU is measured against; known GPUs need none."""

    def __post_init__(self) -> None:
        for name in ("micro_batch", "log_every", "save_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("gates_every", "validate_every", "keep"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be below 0, but is {getattr(self, name)}")
        if self.save_every % self.log_every:
            # Or the first row after a continuation would lack the tokens before it.
            raise ValueError(
                f"save_every={self.save_every} must be a multiple of log_every={self.log_every}"
            )


@dataclass(frozen=True)
class DataSettings:
    """Where tokens come from."""

    path: str = "data/nemotron-cc"
    """Prepared data folder to train on (make prepare-data, python -m data_prep); a path or s3://."""
    val: dict[str, str] = field(default_factory=dict)
    """Validation sets by name: prepared data folders or text, JSONL, Parquet files; also s3://."""
    val_tokens: Size | None = None
    """At most so many tokens of each validation set."""
    max_epochs: float | None = 1.0
    """How often the token budget may pass over the training data; null sets no limit."""
    workers: int = 1
    """Loader processes per device; local disks want 0 or 1, S3 1 or 2."""
