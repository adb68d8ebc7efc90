"""The sections of a recipe, a checked dataclass each. Torch-free, so that mistakes show
at once.

`key(...)` states the facts of a key at its field (`spec/keys.py`):

    free        a continued run may change it, as it decides no number
    in_sweep    a sweep decides or scales it
    only_with   the key without which it has no effect
    matters_in  the parts of a model that it has an effect on
"""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
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
from dualpath_cli.spec.keys import OnlyWith, key, ranges_of

_SEED = (0, 2**32 - 1)
_PEAK_RATE = (1e-30, 1e9)
_MUON = OnlyWith("optim.name", "muon")
_SOME_DRAWN = OnlyWith(
    "data.val_tokens",
    otherwise="without data.val_tokens: no text is drawn; leave it out, or set "
    "data.val_tokens",
)
_SOME_KEPT = OnlyWith(
    "run.keep",
    otherwise="under run.keep=0, which keeps all checkpoints; leave one of them out",
)


def _check_named(mapping: str, what: str, name: str, known: Collection[str]) -> None:
    """Raises ValueError for an entry of a mapping that has none of the known names."""
    if name not in known:
        hint = did_you_mean(name, known) or f"; there are {', '.join(known)}"
        raise ValueError(f"{mapping} has no {what} '{name:.60}'{hint}")


@dataclass(frozen=True)
class OptimSettings:
    """The optimizer and its learning rate. The defaults are the paper's (appendix
    A)."""

    name: Literal["adamw", "muon"] = "adamw"
    """adamw; or muon: Muon for the matrices of attention, FFNs and a core's injection,
    AdamW for all other weights."""

    # Learning rate, by optimizer step; Muon's own
    lr: float = key(5e-4, range=_PEAK_RATE, in_sweep="scaled")
    """Peak learning rate."""
    lr_start: float = key(5e-6, range=(0, 1e9), in_sweep="scaled")
    """Learning rate of the first warm-up step."""
    lr_end: float = key(5e-5, range=(0, 1e9), in_sweep="scaled")
    """Learning rate reached after the last step."""
    warmup_steps: int = key(184, range=(0, 10**12))
    """Optimizer steps from lr_start to lr."""
    schedule: Literal["cosine", "wsd"] = "cosine"
    """After the warm-up, half a cosine to lr_end; or wsd: constant, then linear over
    `cooldown`."""
    cooldown: float = key(
        0.2, range=(0, 1), only_with=OnlyWith("optim.schedule", "wsd")
    )
    """Fraction of the steps, at the end, in which schedule wsd lowers the learning
    rate."""
    muon_lr: float | None = key(
        None, range=_PEAK_RATE, in_sweep="scaled", only_with=_MUON
    )
    """Peak learning rate of Muon's matrices, on the schedule of lr; null is lr. All
    muon keys need name muon."""
    muon_momentum: float = key(0.95, range=(0, 0.999999), only_with=_MUON)
    """Decay rate of Muon's momentum, which is Nesterov's."""
    muon_adjust: Literal["match_rms_adamw", "original"] = key(
        "match_rms_adamw", only_with=_MUON
    )
    """Factor on Muon's rate by a matrix's shape: match_rms_adamw is 0.2 sqrt(max(rows,
    columns)), so that rates and decay for AdamW also suit Muon (arXiv 2502.16982);
    original is Keller Jordan's sqrt(max(1, rows / columns)), for a muon_lr of about
    0.02."""

    # Learning rates by kind of parameter and by width
    lr_scale: dict[str, float] = key(
        factory=dict,
        entries_matter_in={
            "gate": ("dual_gate",),
            "router": ("loops", "core", "experts"),  # steps, repetitions, experts
            "conditioning": ("deep_path",),
        },
    )
    """Factors of the learning rate by kind of parameter: hidden (projections of
    attention, FFNs, a core's injection), embedding (also as a tied head), head, router,
    gate (their matrices), norms, gains, biases, conditioning. The default is 1; 0
    freezes a kind, which then does not decay either."""
    base_width: int | None = key(None, range=RANGES["d_model"])
    """Width transfer: the model.d_model that lr and model.init_std were tuned at; null
    scales nothing. With r = base_width / d_model, r multiplies the rates of hidden,
    head, router and gate, and sqrt(r) (hidden) or r their initial standard deviations
    (arXiv 2203.03466, table 3). Muon's rate gets sqrt(r) under match_rms_adamw, else 1
    (arXiv 2310.17813). Keep the head size and d_ffn / d_model."""

    # AdamW, weight decay and gradients
    betas: tuple[float, float] = key((0.9, 0.95), range=(0, 0.999999))
    """AdamW's decay rates of the two moments."""
    eps: float = key(1e-8, range=(0, 1e9))
    """Epsilon in AdamW's denominator."""
    weight_decay: float = key(0.3, range=(0, 1e9))
    """Decoupled weight decay of the groups in `decay`: a step shrinks weights by
    weight_decay times the learning rate of their kind."""
    decay_sum: float | None = key(None, range=(0, 1e6))
    """Sum of learning rate times weight decay over all steps, in place of weight_decay.
    Weights then shrink alike in runs of any length and peak rate, for any lr_scale (but
    0) and base_width. The paper's is 1.51."""
    decay: list[ParameterGroup] = key(
        factory=lambda: ["matrices", "norms", "gains", "biases"]
    )
    """Groups that decay: matrices, embeddings (with the head when tied), norms, gains,
    biases, conditioning (scales and shifts of steps)."""
    clip: float = key(1.0, range=(0, 1e12))
    """Global L2 norm that gradients are clipped to; 0 switches clipping off."""
    skip_sigma: float | None = key(None, range=(0.1, 1000))
    """Skip steps whose gradient norm is more than this many standard deviations above
    the mean (of the norm's logarithm, exponential over about 100 steps); null skips
    none. 6 is a good value."""

    def __post_init__(self) -> None:
        check_ranges(self, ranges_of(OptimSettings))
        for kind, factor in self.lr_scale.items():
            _check_named("lr_scale", "kind", kind, GROUP_OF)
            check_range(f"lr_scale.{kind}", factor, (0, 1000))


@dataclass(frozen=True)
class RunSettings:
    """Length, batches and output of a run."""

    # Name and folder
    recipe: str = key("custom", in_sweep="decided")
    """Name of the recipe, and of the folder for its runs; set by --config."""
    name: str = key("default", free=True, in_sweep="decided")
    """Name of the run folder, inside the recipe's folder."""
    dir: Place = key("runs", free=True, in_sweep="decided")
    """Folder that holds all runs."""

    # Length, beginning and batches
    budget: Size | None = key(None, range=(1, LARGEST), in_sweep="decided")
    """Nominal FLOPs per token and layer that the model was solved for; fit prints the
    ratio."""
    max_tokens: Size = key(Size(38_503_710_720), range=(1, LARGEST))
    """Training budget in tokens, rounded down to whole optimizer steps."""
    init_from: Place | None = None
    """RUN whose weights replace the random initial weights; schedule, optimizer and
    counts start from 0. The model must be the RUN's, except for max_seq_len and
    document_start."""
    branch_from: Place | None = key(None, free=True, in_sweep="decided")
    """Run folder to branch from, at its last checkpoint before either run's cool-down
    (optim.schedule wsd) or second phase (run.loop_schedule). Of the keys that decide
    numbers only run.max_tokens may differ."""
    batch_tokens: Size = key(Size(2_097_152), range=(1, LARGEST))
    """Tokens of one optimizer step, over all devices and accumulation."""
    micro_batch: int = key(2, range=(1, 10**6), free=True)
    """Sequences in one forward pass of one device. If a single GPU has no room for the
    first steps, the number is halved."""

    # Loops
    train_loops: list[int] | None = key(
        None, range=RANGES["loops"], matters_in=("loops", "core")
    )
    """Numbers of loops; each optimizer step draws one: R of a model with a core, else
    K. Each K has a separate compiled graph. Validation always uses the model's."""
    loop_schedule: list[tuple[float, int]] | None = key(
        None, matters_in=("loops", "core")
    )
    """[[0, 1], [0.35, 4]] trains with one loop, and after 35 % of the steps with four.
    Numbers, R of a model with a core, else K, must not fall and must end with the
    model's, used in validation."""
    backprop_loops: int | None = key(
        None, range=(1, 10**4), matters_in=("loops", "core")
    )
    """Steps of each deep path, and repetitions of the core, that get gradients: the
    last n. The states before them are constants. null: all."""
    loop_losses: float = key(0.0, range=(0, 100), matters_in=("core",))
    """Factor of an auxiliary loss: the mean loss of the states of all repetitions of
    the core but the last, each read out through coda, norm and head."""

    # Compilation and memory
    compile: bool = key(True, free=True)
    """Whether each block is compiled; without a C++ compiler the run says so and runs
    eagerly."""
    activation_checkpointing: Literal["auto", "none", "selective", "full"] = key(
        "auto", free=True
    )
    """The part of each block that the backward pass computes again: none; selective,
    all but matrix products and attention; or full, all. auto is selective if blocks are
    compiled, else none."""

    # Rows of tables, validations and checkpoints
    log_every: int = key(10, range=(1, 10**12), free=True)
    """Optimizer steps between two rows of metrics."""
    gates_every: int = key(100, range=(0, 10**12), free=True)
    """Optimizer steps between two read-outs of gates, gains and expected loops per
    layer."""
    validate_every: int = key(1000, range=(0, 10**12), free=True)
    """Optimizer steps between two validations; 0 validates only at step 0 and at the
    end."""
    save_every: int = key(1000, range=(1, 10**12), free=True)
    """Optimizer steps between two checkpoints; one is always written at the end."""
    keep: int = key(3, range=(0, 10**12), free=True)
    """The number of newest checkpoints that are kept; 0 keeps all. --ckpt-path, which
    goes back to a checkpoint, drops the later ones in any case."""
    keep_every: int = key(0, range=(0, 10**12), free=True, only_with=_SOME_KEPT)
    """Checkpoints whose step is a multiple of this are kept as well; 0 keeps only the
    newest."""

    # Loggers, devices, and the end of a run that goes wrong
    tensorboard: bool = key(True, free=True)
    """Whether to log to TensorBoard too, where it is installed."""
    wandb: str | None = key(None, free=True)
    """Weights & Biases project to log to as well."""
    shard_size: int | None = key(
        None,
        range=(2, 10**5),
        free=True,
        only_with=OnlyWith("trainer.strategy", "hsdp"),
    )
    """Under hsdp, the number of devices that share one set of weights; null is all of a
    node."""
    reduce_dtype: Literal["bfloat16"] | None = None
    """Type of gradients in transit between devices: null is the weights' type. Under
    fsdp and hsdp gradients are also summed in this type."""
    rank_timeout: float = key(30.0, range=(0.01, 1e6), free=True)
    """The most minutes that ranks wait for one another before the run ends."""
    peak_tflops: float | None = key(None, range=(1e-6, 1e9), free=True)
    """The device's dense peak in TFLOP/s, for MFU; known GPUs need none."""
    max_bad_steps: int = key(10, range=(1, 10**12), free=True)
    """Consecutive bad steps (no finite loss or gradient, or optim.skip_sigma) that end
    the run."""

    def __post_init__(self) -> None:
        for name in ("recipe", "name", "wandb"):
            value = getattr(self, name)
            if value is not None:
                check_name(name, value, f"; --run.{name} NAME gives another")
        for name in ("dir", "branch_from", "init_from"):
            path = getattr(self, name)
            if path is not None:
                check_path(name, path)

        check_ranges(self, ranges_of(RunSettings))
        self._check_loops()

        # Else the first row after a continuation would lack the tokens before the
        # checkpoint.
        if self.save_every % self.log_every:
            raise ValueError(
                f"save_every={self.save_every} must be a multiple of "
                f"log_every={self.log_every}"
            )

    def _check_loops(self) -> None:
        """Raises ValueError for wrong numbers to draw from, a wrong schedule, and for
        both at once."""
        drawn = self.train_loops
        if drawn is not None and self.loop_schedule is not None:
            raise ValueError(
                f"loop_schedule and train_loops={drawn} exclude each other; leave one "
                "out"
            )
        if drawn is not None:
            some = 1 <= len(drawn) <= MOST_TRAIN_LOOPS
            different = len(set(drawn)) == len(drawn)
            if not (some and different):
                raise ValueError(
                    f"train_loops must be one to {MOST_TRAIN_LOOPS} different numbers, "
                    f"not {drawn!s:.60}"
                )
        if self.loop_schedule is not None:
            fault = _fault_of_schedule(self.loop_schedule)
            if fault:
                raise ValueError(
                    f"loop_schedule {fault}, not {self.loop_schedule!s:.60}; give such "
                    "as [[0, 1], [0.35, 4]]"
                )

    @property
    def steps(self) -> int:
        """Whole optimizer steps in the token budget."""
        return self.max_tokens // self.batch_tokens

    @property
    def trained_tokens(self) -> int:
        """Tokens of whole optimizer steps."""
        return self.steps * self.batch_tokens


MOST_TRAIN_LOOPS = 8
"""Most numbers of loops in a run: each is a graph to compile, as long as the whole
run's."""


def _fault_of_schedule(pairs: list[tuple[float, int]]) -> str:
    """The rule that a loop_schedule breaks; empty if it breaks none."""
    if not 1 <= len(pairs) <= MOST_TRAIN_LOOPS:
        return f"must be one to {MOST_TRAIN_LOOPS} pairs [part, loops]"

    parts = [part for part, _ in pairs]
    rise = all(before < after for before, after in pairwise(parts))  # nan does not
    if not (parts[0] == 0 and rise and parts[-1] < 1):
        return "must have parts that begin at 0 and rise, below 1"

    loops = [number for _, number in pairs]
    do_not_fall = loops == sorted(loops)
    if not (loops[0] >= 1 and do_not_fall):
        return "must have loops from 1 on that do not fall"
    return ""


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

    path: Place = key("data/nemotron-cc", free=True)
    """Prepared data folder to train on (dualpath prepare); a path or s3://."""
    val: dict[str, dict[str, Any] | Place] = key(factory=dict, free=True)
    """Validation sets by name: prepared data folders or text, JSONL, Parquet files;
    also s3://. {path: FILE, field: KEY} reads the text of rows from another field than
    `text`."""
    val_tokens: Size | None = key(None, range=(1, LARGEST), free=True)
    """The most tokens of each validation set, from documents drawn at random."""
    val_seed: int = key(0, range=_SEED, free=True, only_with=_SOME_DRAWN)
    """Seed of that draw."""
    max_epochs: float | None = key(1.0, range=(1e-9, 1e9), free=True)
    """The most passes of the token budget over the training data; null sets no
    limit."""
    workers: int = key(1, range=(0, MOST_WORKERS), free=True)
    """Loader processes per device: 0 or 1 for local disks, 1 or 2 for S3."""
    verify: Literal["never", "first", "always"] = key("first", free=True)
    """When chunks are compared with the manifest's sha256: `first` is the first use on
    this machine and after a change, `always` every start."""

    def __post_init__(self) -> None:
        check_path("path", self.path, remote=True)
        # Names first: they are part of the messages about their paths.
        for name in self.val:
            check_name("the name of a validation set in val", name)
        for name, of_set in self.validation_sets.items():
            check_path(f"val.{name}", of_set.path, remote=True)
        check_ranges(self, ranges_of(DataSettings))

    @cached_property
    def validation_sets(self) -> dict[str, ValidationSet]:
        """The sets of `val` by name; a plain path is a set whose text is in the field
        `text`."""
        sets = {}
        for name, value in self.val.items():
            if isinstance(value, str):
                sets[name] = ValidationSet(value)
            else:
                sets[name] = build(ValidationSet, value, f"data.val.{name}.")
        return sets


_UNITS_OF_TIME = (
    "weeks",
    "days",
    "hours",
    "minutes",
    "seconds",
    "milliseconds",
    "microseconds",
)
"""Arguments of timedelta, to which Lightning gives trainer.max_time."""


@dataclass(frozen=True)
class TrainerSettings:
    """The arguments of lightning.Trainer that a recipe sets; the others follow from the
    recipe."""

    accelerator: Literal["auto", "cpu", "cuda", "gpu"] = key("auto", free=True)
    """The kind of device: auto is a CUDA GPU where there is one, else the CPU."""
    devices: int | list[int] | Literal["auto"] = key("auto", range=(-1, 999), free=True)
    """The devices of a node, as a number or a list; auto and, of GPUs, -1 are all."""
    num_nodes: int = key(1, range=(1, 10**5), free=True)
    """The number of nodes."""
    strategy: Literal["auto", "single", "ddp", "fsdp", "hsdp"] = key("auto", free=True)
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
    """Precision of arithmetic. bf16-mixed rounds in matrix products; weights stay
    float32. bf16-true and transformer-engine round all weights (also gains, norms,
    routers and gates) and the residual stream, so that small updates are lost. fp16 is
    not offered: gradients would be clipped while scaled."""
    callbacks: list[dict[str, Any]] | dict[str, Any] | None = None
    """More Lightning callbacks, each by class_path and init_args."""
    plugins: list[dict[str, Any]] | dict[str, Any] | None = None
    """Lightning plugins, each by class_path and init_args."""
    logger: list[dict[str, Any]] | dict[str, Any] | None = key(None, free=True)
    """More Lightning loggers beside the run folder's tables, each by class_path and
    init_args."""
    profiler: (
        dict[str, Any] | Literal["simple", "advanced", "pytorch", "xla"] | None
    ) = key(None, free=True)
    """Lightning's profiler: simple, advanced, pytorch, xla, or a class_path with
    init_args."""
    max_time: dict[str, int] | str | None = key(None, free=True)
    """The longest time before the run stops, as days:hours:minutes:seconds or as whole
    numbers by unit such as {hours: 11, minutes: 30}; the run can be continued."""
    deterministic: bool | Literal["warn"] | None = key(None, free=True)
    """Whether PyTorch must use deterministic algorithms."""
    benchmark: bool | None = key(None, free=True)
    """Whether cuDNN tries kernels and takes the fastest."""
    detect_anomaly: bool = key(False, free=True)
    """Whether autograd finds the operation that made a nan; slow."""

    def __post_init__(self) -> None:
        check_ranges(self, ranges_of(TrainerSettings))
        if isinstance(self.max_time, dict):
            for unit, number in self.max_time.items():
                _check_named("max_time", "unit", unit, _UNITS_OF_TIME)
                check_range(f"max_time.{unit}", number, (0, 10**8))

        one_device = self.num_nodes == 1 and self.devices in ("auto", 1, -1)
        if self.strategy == "single" and not one_device:
            raise ValueError(
                f"strategy 'single' cannot use devices={self.devices} and "
                f"num_nodes={self.num_nodes}; choose auto, ddp, fsdp or hsdp"
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
        if isinstance(self.devices, list):
            return len(self.devices)
        return int(self.devices)


@dataclass(frozen=True)
class Settings:
    """A whole recipe, checked. Its fields are the recipe's sections."""

    model: ModelConfig
    optim: OptimSettings
    run: RunSettings
    data: DataSettings
    trainer: TrainerSettings
    seed_everything: int = key(0, range=_SEED, in_sweep="decided")
    """Seed of the weights and of the data order."""

    def __post_init__(self) -> None:
        check_ranges(self, ranges_of(Settings))

        needs_untied_head = ""
        if self.optim.base_width is not None:
            needs_untied_head = f"base_width={self.optim.base_width}"
        elif "head" in self.optim.lr_scale:
            needs_untied_head = f"lr_scale.head={self.optim.lr_scale['head']}"
        if needs_untied_head and self.model.tie_embeddings:
            raise ValueError(
                f"optim.{needs_untied_head} needs an untied head: one matrix cannot be "
                "scaled both as embedding and as head; set model.tie_embeddings to "
                "false, or leave it out"
            )

        precision = self.trainer.precision
        if precision == "transformer-engine" and self.model.tie_embeddings:
            raise ValueError(
                f"trainer.precision={precision} needs an untied head: its layers "
                "replace the head by one with a copy of the weight; set "
                "model.tie_embeddings to false, or choose bf16-mixed"
            )

    def as_recipe(self) -> Recipe:
        """All fields as plain values with defaults, as a run folder keeps them."""
        recipe: Recipe = json.loads(json.dumps(asdict(self), default=str))
        return recipe


SECTIONS: dict[str, type] = get_type_hints(Settings)
"""The sections of a recipe, by name; `seed_everything` is a key without a section."""
del SECTIONS["seed_everything"]


def settings_from(recipe: Recipe) -> Settings:
    """Returns the checked settings of a resolved recipe."""
    check_sections(recipe)
    return build(Settings, recipe)


def check_sections(recipe: Recipe) -> None:
    """Raises UserError unless a recipe's sections are mappings; ignores their content.

    The name of a command's option is not a section, though the command's parser accepts
    it.
    """
    for name, content in recipe.items():
        if name == "seed_everything":
            continue
        if name not in SECTIONS:
            raise UserError(reader_of(Settings).unknown(name))
        if not isinstance(content, dict):
            value = json.dumps(content)
            raise UserError(
                f"'{name}' in the recipe must be a mapping, not {value:.40}"
            )
