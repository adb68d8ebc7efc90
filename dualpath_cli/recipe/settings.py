"""The sections of a recipe, a checked dataclass each. Torch-free, so that mistakes show
at once."""

import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import Any, Literal, get_type_hints

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.base.ranges import (
    LARGEST,
    Place,
    Size,
    check_name,
    check_path,
    check_range,
    check_ranges,
)
from dualpath_cli.recipe.parser import CLASSES, build, reader_of
from dualpath_cli.recipe.recipes import Recipe
from dualpath_cli.spec.config import GROUP_OF, RANGES, ModelConfig, ParameterGroup

_SEED = (0, 2**32 - 1)


@dataclass(frozen=True)
class OptimSettings:
    """The optimizer and its learning rate. The defaults are the paper's (appendix
    A)."""

    name: Literal["adamw", "muon"] = "adamw"
    """adamw; or muon: Muon for the matrices of attention and FFNs, AdamW for all other
    weights."""
    lr: float = 5e-4
    """Peak learning rate."""
    lr_start: float = 5e-6
    """Learning rate of the first warm-up step."""
    lr_end: float = 5e-5
    """Learning rate at the last token."""
    warmup_steps: int = 184
    """Optimizer steps from lr_start to lr."""
    schedule: Literal["cosine", "wsd"] = "cosine"
    """After the warm-up, half a cosine to lr_end; or wsd: constant, then linear over
    `cooldown`."""
    cooldown: float = 0.2
    """The last part of all steps, in which the rate of schedule wsd falls."""
    muon_lr: float | None = None
    """Peak learning rate of Muon's matrices, on the schedule of lr; null is lr. All
    muon keys need name muon."""
    muon_momentum: float = 0.95
    """Decay rate of Muon's momentum, which is Nesterov's."""
    muon_adjust: Literal["match_rms_adamw", "original"] = "match_rms_adamw"
    """Factor on Muon's rate by a matrix's shape: match_rms_adamw is 0.2 sqrt(max(rows,
    columns)), so that rates and decay for AdamW also suit Muon (arXiv 2502.16982);
    original is Keller Jordan's sqrt(max(1, rows / columns)), for a muon_lr of about
    0.02."""
    lr_scale: dict[str, float] = field(default_factory=dict)
    """Factors of the learning rate by kind of parameter: hidden (projections of
    attention, FFNs), embedding (also as a tied head), head, router, gate (their
    matrices), norms, gains, biases, conditioning. The default is 1; 0 freezes a kind,
    which then does not decay either."""
    base_width: int | None = None
    """Width transfer: the model.d_model that lr and model.init_std were tuned at; null
    scales nothing. With r = base_width / d_model, r multiplies the rates of hidden,
    head, router and gate, and sqrt(r) (hidden) or r their initial standard deviations
    (arXiv 2203.03466, table 3). Muon's rate gets sqrt(r) under match_rms_adamw, else 1
    (arXiv 2310.17813). Keep the head size and d_ffn / d_model."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates of the two moments."""
    eps: float = 1e-8
    """Epsilon in AdamW's denominator."""
    weight_decay: float = 0.3
    """Decoupled weight decay of the groups in `decay`: a step shrinks weights by
    weight_decay times the learning rate of their kind."""
    decay_sum: float | None = None
    """Sum of learning rate times weight decay over all steps, in place of weight_decay.
    Weights then shrink alike in runs of any length and peak rate, for any lr_scale (but
    0) and base_width. The paper's is 1.51."""
    decay: list[ParameterGroup] = field(
        default_factory=lambda: ["matrices", "norms", "gains", "biases"]
    )
    """Groups that decay: matrices, embeddings (with the head when tied), norms, gains,
    biases, conditioning (scales and shifts of steps)."""
    clip: float = 1.0
    """Global L2 norm that gradients are clipped to; 0 switches clipping off."""
    skip_sigma: float | None = None
    """Skip steps whose gradient norm is this many standard deviations above the mean
    (of the norm's logarithm, over the last 100 steps); null skips none. 6 is a good
    value."""

    def __post_init__(self) -> None:
        ranges: dict[str, tuple[float, float]] = dict.fromkeys(
            ("lr", "muon_lr"), (1e-30, 1e9)
        )
        ranges |= dict.fromkeys(("lr_start", "lr_end", "eps", "weight_decay"), (0, 1e9))
        ranges |= dict.fromkeys(("betas", "muon_momentum"), (0, 0.999999))
        ranges |= {
            "warmup_steps": (0, 10**12),
            "clip": (0, 1e12),
            "skip_sigma": (0.1, 1000),
        }
        ranges |= {
            "cooldown": (0, 1),
            "decay_sum": (0, 1e6),
            "base_width": RANGES["d_model"],
        }
        check_ranges(self, ranges)
        for kind, factor in self.lr_scale.items():
            if kind not in GROUP_OF:
                hint = (
                    did_you_mean(kind, GROUP_OF) or f"; there are {', '.join(GROUP_OF)}"
                )
                raise ValueError(f"lr_scale has no kind '{kind:.60}'{hint}")
            check_range(f"lr_scale.{kind}", factor, (0, 1000))


@dataclass(frozen=True)
class RunSettings:
    """Length, batches and output of a run."""

    recipe: str = "custom"
    """Name of the recipe, and of the folder for its runs; set by --config."""
    name: str = "default"
    """Name of the run folder, inside the recipe's folder."""
    dir: Place = "runs"
    """Folder that holds all runs."""
    budget: Size | None = None
    """Nominal FLOPs per token and layer that the model was solved for; fit prints the
    ratio."""
    max_tokens: Size = Size(38_503_710_720)
    """Training budget in tokens, rounded down to whole optimizer steps."""
    init_from: Place | None = None
    """RUN whose weights replace the random initial weights; schedule, optimizer and
    counts start from 0. The model must be the RUN's, except for max_seq_len and
    document_start."""
    branch_from: Place | None = None
    """Run folder to branch from, at its last checkpoint before the cool-down
    (optim.schedule wsd) or second phase of either run. All keys but run.max_tokens must
    agree."""
    batch_tokens: Size = Size(2_097_152)
    """Tokens of one optimizer step, over all devices and accumulation."""
    micro_batch: int = 2
    """Sequences in one forward pass of one device. If a single GPU has no room for the
    first steps, the number is halved."""
    train_loops: list[int] | None = None
    """Numbers of loops; each optimizer step draws one. Each number has a separate
    compiled graph. Validation always uses model.loops."""
    loop_schedule: list[tuple[float, int]] | None = None
    """[[0, 1], [0.35, 4]] trains with one loop, and after 35 % of the steps with four.
    Numbers must not fall and must end with model.loops, used in validation."""
    compile: bool = True
    """Whether each block is compiled; without a C++ compiler the run says so and runs
    eagerly."""
    activation_checkpointing: Literal["auto", "none", "selective", "full"] = "auto"
    """The part of each block that the backward pass computes again: none; selective,
    all but matrix products and attention; or full, all. auto is selective if blocks are
    compiled, else none."""
    log_every: int = 10
    """Optimizer steps between two rows of metrics."""
    gates_every: int = 100
    """Optimizer steps between two read-outs of gates, gains and expected loops per
    layer."""
    validate_every: int = 1000
    """Optimizer steps between two validations; 0 validates only at the end."""
    save_every: int = 1000
    """Optimizer steps between two checkpoints; one is always written at the end."""
    keep: int = 3
    """The number of newest checkpoints that are kept; 0 keeps all, but for those of a
    part that --ckpt-path went back from."""
    keep_every: int = 0
    """Checkpoints whose step is a multiple of this are kept as well; 0 keeps only the
    newest."""
    tensorboard: bool = True
    """Whether to log to TensorBoard too, where it is installed."""
    wandb: str | None = None
    """Weights & Biases project to log to as well."""
    shard_size: int | None = None
    """Under hsdp, the number of devices that share one set of weights; null is all of a
    node."""
    reduce_dtype: Literal["bfloat16"] | None = None
    """Type of gradients in transit between devices: null is the weights' type. Under
    fsdp and hsdp gradients are also summed in this type."""
    rank_timeout: float = 30.0
    """The most minutes that ranks wait for one another before the run ends."""
    peak_tflops: float | None = None
    """The device's dense peak in TFLOP/s, for MFU; known GPUs need none."""
    max_bad_steps: int = 10
    """Consecutive bad steps (no finite loss or gradient, or optim.skip_sigma) that end
    the run."""

    def __post_init__(self) -> None:
        for name in ("recipe", "name", "wandb"):
            if (value := getattr(self, name)) is not None:
                check_name(name, value, f"; --run.{name} NAME gives another")
        check_path("dir", self.dir)
        for name in ("branch_from", "init_from"):
            if (value := getattr(self, name)) is not None:
                check_path(name, value)
        every = dict.fromkeys(
            ("gates_every", "validate_every", "keep", "keep_every"), (0, 10**12)
        )
        ranges: dict[str, tuple[float, float]] = {
            **dict.fromkeys(("log_every", "save_every", "max_bad_steps"), (1, 10**12)),
            **dict.fromkeys(("budget", "max_tokens", "batch_tokens"), (1, LARGEST)),
            "peak_tflops": (1e-6, 1e9),
            "rank_timeout": (0.01, 1e6),
            "shard_size": (2, 10**5),
            "micro_batch": (1, 10**6),
            **every,
        }
        check_ranges(self, ranges)
        _check_loops(self.train_loops, self.loop_schedule)
        if self.save_every % self.log_every:
            # Else the first row after a continuation would lack the tokens before the
            # checkpoint.
            raise ValueError(
                f"save_every={self.save_every} must be a multiple of "
                f"log_every={self.log_every}"
            )

    @property
    def steps(self) -> int:
        """Whole optimizer steps in the token budget."""
        return self.max_tokens // self.batch_tokens


MOST_TRAIN_LOOPS = 8
"""Most numbers of loops in a run: each is a graph to compile, as long as the whole
run's."""


def _check_loops(
    drawn: list[int] | None, pairs: list[tuple[float, int]] | None
) -> None:
    """Raises ValueError for wrong numbers to draw from, a wrong schedule, and for both
    at once."""
    if drawn is not None and pairs is not None:
        both = f"loop_schedule and train_loops={drawn}"
        raise ValueError(f"{both} exclude each other; leave one out")
    most = f"one to {MOST_TRAIN_LOOPS}"
    if drawn is not None and (
        not 0 < len(drawn) == len(set(drawn)) <= MOST_TRAIN_LOOPS or min(drawn) < 1
    ):
        raise ValueError(
            f"train_loops must be {most} different numbers from 1 on, not {drawn!s:.60}"
        )
    parts, loops = (
        [part for part, _ in pairs or ()],
        [number for _, number in pairs or ()],
    )
    if pairs is not None and not (
        0 < len(parts) <= MOST_TRAIN_LOOPS
        and (parts[0], parts, loops) == (0, sorted(set(parts)), sorted(loops))
        and (parts[-1] < 1 <= loops[0])
    ):
        raise ValueError(
            f"loop_schedule must be {most} pairs [part, loops], such as [[0, 1], "
            "[0.35, 4]]; parts begin at 0 and rise, below 1, and loops do not fall; "
            f"not {pairs!s:.60}"
        )


MOST_WORKERS = 64
"""Most loader processes per device: each takes some 300 MB, and one is enough for most
GPUs."""


@dataclass(frozen=True)
class ValidationSet:
    """A prepared data folder, or the text of files."""

    path: Place
    # of a row, that holds the text where the set's name chooses no format
    field: str = "text"

    @property
    def public_name(self) -> str:
        """The name of its file or folder, and the field unless that is `text`."""
        name = PurePath(self.path).name
        return name if self.field == "text" else f"{name}, field {self.field}"


@dataclass(frozen=True)
class DataSettings:
    """Where tokens come from."""

    path: Place = "data/nemotron-cc"
    """Prepared data folder to train on (dualpath prepare); a path or s3://."""
    val: dict[str, dict[str, Any] | Place] = field(default_factory=dict)
    """Validation sets by name: prepared data folders or text, JSONL, Parquet files;
    also s3://. {path: FILE, field: KEY} reads the text of rows from another field than
    `text`."""
    val_tokens: Size | None = None
    """The most tokens of each validation set, from documents drawn at random."""
    val_seed: int = 0
    """Seed of that draw."""
    max_epochs: float | None = 1.0
    """The most passes of the token budget over the training data; null sets no
    limit."""
    workers: int = 1
    """Loader processes per device: 0 or 1 for local disks, 1 or 2 for S3."""
    verify: Literal["never", "first", "always"] = "first"
    """When chunks are compared with the manifest's sha256: `first` is the first use on
    this machine and after a change, `always` every start."""

    def __post_init__(self) -> None:
        check_path("path", self.path, remote=True)
        for name in self.val:
            check_name("the name of a validation set in val", name)
        for name, of_set in self.validation_sets.items():
            check_path(f"val.{name}", of_set.path, remote=True)
        ranges: dict[str, tuple[float, float]] = {
            "val_seed": _SEED,
            "val_tokens": (1, LARGEST),
        }
        check_ranges(
            self, ranges | {"workers": (0, MOST_WORKERS), "max_epochs": (1e-9, 1e9)}
        )

    @cached_property
    def validation_sets(self) -> dict[str, ValidationSet]:
        """The sets of `val` by name; a plain path is a set whose text is in the field
        `text`."""
        return {
            name: ValidationSet(value)
            if isinstance(value, str)
            else build(ValidationSet, value, f"data.val.{name}.")
            for name, value in self.val.items()
        }


@dataclass(frozen=True)
class TrainerSettings:
    """The arguments of lightning.Trainer that a recipe sets; the others follow from the
    recipe."""

    accelerator: Literal["auto", "cpu", "cuda", "gpu"] = "auto"
    """The kind of device: auto is a CUDA GPU where there is one, else the CPU."""
    devices: int | list[int] | Literal["auto"] = "auto"
    """The devices of a node, as a number or a list; auto and -1 are all."""
    num_nodes: int = 1
    """The number of nodes."""
    strategy: Literal["auto", "single", "ddp", "fsdp", "hsdp"] = "auto"
    """How devices share the work: auto is single on one device and ddp on several; fsdp
    is FSDP2 over all devices; hsdp is FSDP2 within each node (or run.shard_size
    devices), with nodes as replicas."""
    precision: Literal[
        "32-true",
        "bf16-mixed",
        "bf16-true",
        "64-true",
        "transformer-engine",
        "bf16",
        32,
        64,
    ] = "32-true"
    """Precision of arithmetic. fp16 is not offered: gradients would be clipped while
    scaled."""
    callbacks: list[dict[str, Any]] | dict[str, Any] | None = None
    """More Lightning callbacks, each by class_path and init_args."""
    plugins: list[dict[str, Any]] | dict[str, Any] | None = None
    """Lightning plugins, each by class_path and init_args."""
    logger: list[dict[str, Any]] | dict[str, Any] | None = None
    """More Lightning loggers beside the run folder's tables, each by class_path and
    init_args."""
    profiler: (
        dict[str, Any] | Literal["simple", "advanced", "pytorch", "xla"] | None
    ) = None
    """Lightning's profiler: simple, advanced, pytorch, xla, or a class_path with
    init_args."""
    max_time: dict[str, int] | str | None = None
    """The longest time before the run stops, as days:hours:minutes:seconds or as whole
    numbers by unit such as {hours: 11, minutes: 30}; the run can be continued."""
    deterministic: bool | Literal["warn"] | None = None
    """Whether PyTorch must use deterministic algorithms."""
    benchmark: bool | None = None
    """Whether cuDNN tries kernels and takes the fastest."""
    detect_anomaly: bool = False
    """Whether autograd finds the operation that made a nan; slow."""

    def __post_init__(self) -> None:
        check_ranges(self, {"num_nodes": (1, 10**5), "devices": (-1, 999)})
        one = self.num_nodes == 1 and self.devices in ("auto", 1, -1)
        if self.strategy == "single" and not one:
            given = f"devices={self.devices} and num_nodes={self.num_nodes}"
            raise ValueError(
                f"strategy 'single' cannot use {given}; choose ddp, fsdp or hsdp"
            )

    @property
    def names_classes(self) -> bool:
        """Whether a callback, plugin, logger or profiler is given by its class."""
        return any(isinstance(getattr(self, key), dict | list) for key in CLASSES)

    @property
    def devices_of_a_node(self) -> int | None:
        """The number of devices of a node; None is all."""
        if self.strategy == "single":
            return 1
        if self.devices in ("auto", -1):
            return None
        return (
            len(self.devices) if isinstance(self.devices, list) else int(self.devices)
        )


@dataclass(frozen=True)
class Settings:
    """A whole recipe, checked. Its fields are the recipe's sections."""

    model: ModelConfig
    optim: OptimSettings
    run: RunSettings
    data: DataSettings
    trainer: TrainerSettings
    seed_everything: int = 0
    """Seed of the weights and of the data order."""

    def __post_init__(self) -> None:
        check_ranges(self, {"seed_everything": _SEED})
        wide, head = self.optim.base_width, self.optim.lr_scale.get("head")
        if self.model.tie_embeddings and (wide, head) != (None, None):
            name = f"lr_scale.head={head}" if wide is None else f"base_width={wide}"
            raise ValueError(
                f"optim.{name} needs an untied head: one matrix cannot be scaled both "
                "as embedding and as head; set model.tie_embeddings to false, or leave "
                "it out"
            )

    def as_recipe(self) -> Recipe:
        """All fields as plain values with defaults, as a run folder keeps them."""
        recipe: Recipe = json.loads(json.dumps(asdict(self), default=str))
        return recipe


SECTIONS: dict[str, type] = get_type_hints(Settings)
del SECTIONS["seed_everything"]


def settings_from(recipe: Recipe) -> Settings:
    """Returns the checked settings of a resolved recipe."""
    check_sections(recipe)
    return build(Settings, recipe)


def check_sections(recipe: Recipe) -> None:
    """Raises UserError unless a recipe's sections are mappings; ignores their content.

    The name of a command's option is no section, though the command's parser accepts
    it.
    """
    for name in recipe:
        if name not in SECTIONS and name != "seed_everything":
            raise UserError(reader_of(Settings).unknown(name))
    for name in SECTIONS.keys() & recipe.keys():
        if not isinstance(recipe[name], dict):
            what = json.dumps(recipe[name])
            raise UserError(f"'{name}' in the recipe must be a mapping, not {what:.40}")
