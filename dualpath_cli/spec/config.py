"""ModelConfig: the description of a model, shared by recipes, flops, model and export.

Torch-free, so that the command line can check a recipe before anything slow is
imported.
"""

import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import groupby
from typing import Any, Literal

from dualpath_cli.base.errors import did_you_mean
from dualpath_cli.base.ranges import check_ranges
from dualpath_cli.spec.keys import OnlyWith, key, ranges_of

BlockKind = Literal["dual", "loop", "wide"]
Gate = Literal["two_gates", "convex", "softmax", "fixed"]
GATE_OUTPUTS: dict[str, int] = {"two_gates": 2, "convex": 1, "softmax": 2, "fixed": 0}
"""Outputs of the linear layer of each built-in gate; 0: no linear layer."""
Injection = Literal["none", "add", "linear"]
CoreCombination = Literal["final", "router"]
StepKv = Literal["own", "first"]
Combination = Literal["router", "final", "mean"]
COMBINATIONS: tuple[Combination, ...] = ("router", "final", "mean")
CLASS_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
"""A dotted path, such as my.module.Gate, of a custom class."""
ParameterGroup = Literal[
    "matrices", "embeddings", "norms", "gains", "biases", "conditioning"
]
"""Groups of parameters that weight decay may include."""
Kind = Literal[
    "hidden",
    "embedding",
    "head",
    "router",
    "gate",
    "norms",
    "gains",
    "biases",
    "conditioning",
]
"""Kinds of parameters, each with a learning rate: matrices from width to width
(`hidden`), the embedding (also as a tied head), the head, the matrices of routers and
gates, and the vectors."""
GROUP_OF: dict[Kind, ParameterGroup] = {
    "hidden": "matrices",
    "embedding": "embeddings",
    "head": "matrices",
    "router": "matrices",
    "gate": "matrices",
    "norms": "norms",
    "gains": "gains",
    "biases": "biases",
    "conditioning": "conditioning",
}
"""The group of weight decay of each kind."""
Balance = Literal["bias", "loss", "none"]
BALANCE_RATES: dict[Balance, float] = {"bias": 1e-3, "loss": 1e-2, "none": 0.0}
"""Defaults of `balance_rate`: from arXiv 2408.15664 (bias) and arXiv 2101.03961
(loss)."""
RENAMED = {"top_k": "num_experts_per_tok"}
"""Fields with another name in `config.json` of an exported folder: transformers would
read `top_k` there as the option of `generate`."""
EXPERT_MULTIPLE = 8
"""An expert's width is a multiple of this: kernels for grouped products want rows of 16
bytes."""
Checkpointing = Literal["none", "selective", "full"]
"""The operations that blocks compute again in the backward pass: none, pointwise ones,
all."""


_WIDTHS = (2, 10**9)  # of 1, floor(2 / 3) is no channel
_WITH_CORE = OnlyWith(
    "model.core",
    otherwise="without model.core, the layers to repeat; leave it out, or set "
    "model.core",
)


@dataclass(frozen=True)
class ModelConfig:
    """A model as data. The defaults are the paper's backbone as trained
    (docs/paper.md)."""

    # Size
    vocab_size: int = key(50304, range=(1, 10**8), in_sweep="decided")
    """Rows of the embedding and of the head; at least the tokenizer's size."""
    n_layers: int = key(16, range=(1, 10**4), in_sweep="decided")
    """Number of blocks."""
    d_model: int = key(768, range=(1, 10**6), in_sweep="decided")
    """Width of the residual stream."""
    n_heads: int = key(12, range=(1, 10**6), in_sweep="decided")
    """Number of query heads; the head size is d_model / n_heads."""
    n_kv_heads: int = key(12, range=(1, 10**6), in_sweep="decided")
    """Number of key and value heads; fewer than n_heads gives grouped-query
    attention."""
    max_seq_len: int = key(4096, range=(1, 10**7), in_sweep="decided", cuts_texts=True)
    """Length in tokens of the training sequences and of evaluation windows."""

    # Blocks and loops
    block: BlockKind | list[BlockKind] = key("dual", in_sweep="decided")
    """Kind of every block, or a list by layer."""
    loops: int | list[int] = key(4, range=(1, 10**4), in_sweep="decided")
    """K, how often the deep sublayer is applied, or a list by layer."""
    untied_steps: bool | list[bool] = key(False, matters_in=("loops",))
    """Gives each of the K steps a sublayer of its own, with other weights: depth
    without sharing. Or a list by layer."""
    step_kv: StepKv | list[StepKv] = key("own", matters_in=("loops",))
    """Keys and values of the steps: own, each step computes its own; first, those of
    the first step serve all. Or a list by layer."""
    deep_ffn: bool | list[bool] = key(True, matters_in=("deep_path",))
    """Whether steps have a feed-forward; without one a step is only attention, and
    d_ffn has no effect. Or a list by layer."""

    # Core
    core: list[int] | None = key(None, range=(0, 10**4))
    """[FIRST, LAST], both included: the layers, from 0, that are applied core_loops
    times one after the other, with shared weights. Blocks of any kind; each repetition
    has its own gains."""
    core_loops: int = key(1, range=(1, 10**4), only_with=_WITH_CORE)
    """R, how often the core is applied."""
    injection: Injection = key("none", matters_in=("core",), only_with=_WITH_CORE)
    """The core's input before each repetition but the first: none, not used again; add,
    added to the state; linear, joined to the state by a learned matrix, which starts as
    the identity on the state."""
    core_combination: CoreCombination = key(
        "final", matters_in=("core",), only_with=_WITH_CORE
    )
    """Output of the core: final is the last repetition's state, router the routed
    mixture of all repetitions' states, as in a deep path."""

    # FFN widths
    d_ffn: int | list[int | None] | None = key(None, range=_WIDTHS, in_sweep="decided")
    """Configured FFN width of the deep path (dual and loop blocks), or a list by layer,
    null where a layer has no such path."""
    d_ffn_wide: int | list[int | None] | None = key(
        None, range=_WIDTHS, in_sweep="decided"
    )
    """Configured FFN width of the wide path (dual and wide blocks), or a list as for
    d_ffn."""
    ffn_multiple_of: int = key(256, range=(1, 10**9), in_sweep="decided")
    """The effective FFN width is floor(2 d_ffn / 3) rounded up to a multiple of
    this."""

    # Experts
    n_experts: int | list[int] = key(0, range=(0, 10**4), matters_in=("wide_path",))
    """Experts in the FFN of the wide path, or a list by layer; 0 is one dense FFN. A
    token's top_k experts and their router cost the FLOPs of the dense FFN of
    d_ffn_wide."""
    top_k: int = key(2, range=(1, 10**4), matters_in=("experts",))
    """Experts that a token takes. With 1 the router learns only under balance: loss."""
    balance: Balance = key("bias", matters_in=("experts",))
    """How the load of experts is balanced: bias adds a bias to their scores, updated by
    each step's load; loss adds an auxiliary loss; or none."""
    balance_rate: float | None = key(None, range=(0, 100), matters_in=("experts",))
    """Change of the bias in a step (null: 0.001), or factor of the loss (null: 0.01);
    no effect under balance: none."""

    # Attention, norms, head
    tie_embeddings: bool = False
    """Whether the head shares the embedding's weight."""
    rope_base: float = key(500000.0, range=(1, 1e15))
    """Base of the rotary frequencies."""
    qk_norm: Literal["after_rope", "before_rope", "none"] = "after_rope"
    """Where queries and keys are RMS-normalised, per head, with a learned weight."""
    norm_eps: float = key(1e-5, range=(1e-30, 1))
    """Epsilon of every RMSNorm."""

    # Gate and combination
    gate: Gate | str = key("two_gates", matters_in=("dual_gate",))
    """How a dual block weighs its paths: two_gates is two sigmoids, convex (g, 1 - g),
    softmax a softmax, fixed 0.5 each; or a custom class: my.module.Gate."""
    combination: Combination | str = key("router", matters_in=("loops",))
    """Output of the deep path: router is the routed mixture of steps, final the last
    step, mean the mean of steps; or a custom class: my.module.Combination."""
    step_index: Literal["zero_based", "one_based"] = key(
        "zero_based", matters_in=("loops", "core")
    )
    """The router's step input: (k-1)/(K-1) as trained, or k/(K-1) as in the paper's
    text."""
    step_conditioning: Literal["none", "film"] = key("none", matters_in=("deep_path",))
    """film gives each step of a loop its own learned scale and shift after the two
    norms of the shared sublayer, zero at the start; none: only gains differ."""

    # Initial values
    gain_init: float = key(-7.0, range=(-1000, 1000))
    """Initial value of the gains before the softplus."""
    init_std: float = key(0.02, range=(0, 100))
    """Standard deviation of the initial weights."""

    # Numerics
    residual_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the residual stream; bfloat16 exists to study the paper's numerics."""
    rope_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type that the rotary frequencies are rounded to; bfloat16 as in the paper's
    training."""

    # Documents
    document_start: int | None = key(None, range=(0, 10**8), cuts_texts=True)
    """Id of the token that begins documents (end of text): attention stays within each
    document, and positions count from its start. null lets tokens look into earlier
    documents."""

    def __post_init__(self) -> None:
        for name in BY_LAYER:
            value = getattr(self, name)
            if isinstance(value, tuple):
                object.__setattr__(self, name, list(value))

        check_ranges(self, RANGES)
        for problem in self._problems():
            raise ValueError(problem)

    @property
    def block_kinds(self) -> tuple[BlockKind, ...]:
        """The kind of each block, from the first layer to the last."""
        if isinstance(self.block, str):
            return (self.block,) * self.n_layers
        return tuple(self.block)

    @property
    def stretches(self) -> tuple[range, range, range]:
        """The layers before the core, of the core, and behind it.

        Without a core all layers come before it.
        """
        if self.core is None:
            end = range(self.n_layers, self.n_layers)
            return range(self.n_layers), end, end

        first, last = self.core
        return range(first), range(first, last + 1), range(last + 1, self.n_layers)

    def applications(self, core_loops: int | None = None) -> list[tuple[int, int]]:
        """Layers in the order of a forward pass, with their repetition, both from 0.

        `core_loops` forces another number of repetitions than R.
        """
        prelude, core, coda = self.stretches
        repetitions = range(self.core_loops if core_loops is None else core_loops)

        repeated = [(layer, number) for number in repetitions for layer in core]
        before = [(layer, 0) for layer in prelude]
        behind = [(layer, 0) for layer in coda]
        return [*before, *repeated, *behind]

    @cached_property
    def layers(self) -> tuple["LayerConfig", ...]:
        """Each layer's view, from the first to the last; equal layers share one
        view."""
        shared = {field.name: getattr(self, field.name) for field in fields(self)}
        shared["core"] = None
        _, core, _ = self.stretches
        views: dict[tuple[Any, ...], LayerConfig] = {}

        layers = []
        for layer in range(self.n_layers):
            own = {name: self._at(name, layer) for name in BY_LAYER}
            own["core_loops"] = self.core_loops if layer in core else 1
            values = tuple(own.values())
            if values not in views:
                views[values] = LayerConfig(**{**shared, **own})
            layers.append(views[values])
        return tuple(layers)

    @property
    def varied_loops(self) -> Literal["loops", "core_loops"]:
        """The field that a run's draws and schedules of loops vary: R with a core,
        else K."""
        return "loops" if self.core is None else "core_loops"

    @property
    def deep_layers(self) -> list["LayerConfig"]:
        """The layers with a deep path."""
        return [layer for layer in self.layers if layer.block != "wide"]

    @property
    def most_loops(self) -> int:
        """The largest K of all layers with a deep path; 1 without such a layer."""
        return max((layer.loops for layer in self.deep_layers), default=1)

    @property
    def same_loops(self) -> int | None:
        """The K of all layers with a deep path, 1 without such a layer; None where
        layers differ."""
        numbers = {layer.loops for layer in self.deep_layers} or {1}
        return min(numbers) if len(numbers) == 1 else None

    @property
    def has_experts(self) -> bool:
        """Whether a layer has several experts, of which a token uses only some."""
        return any(layer.n_experts > 1 for layer in self.layers)

    @property
    def head_dim(self) -> int:
        """N, the size of one attention head."""
        return self.d_model // self.n_heads

    def effective_width(self, d_ffn: int) -> int:
        """Hidden width of the SwiGLU for a configured width (Eq. heff, appendix B)."""
        return effective_width(d_ffn, self.ffn_multiple_of)

    def effective(self, name: str) -> int | list[int | None] | None:
        """The effective width of `d_ffn` or `d_ffn_wide`, or one by layer."""
        value: int | list[int | None] | None = getattr(self, name)
        if value is None:
            return None
        if isinstance(value, int):
            return self.effective_width(value)
        return [
            None if width is None else self.effective_width(width) for width in value
        ]

    @property
    def routes_steps(self) -> bool:
        """Whether deep paths learn to weigh their steps: not with one step, `final` or
        `mean`."""
        return self.combination not in ("final", "mean") and self.most_loops > 1

    @property
    def repeats_core(self) -> bool:
        """Whether there is a core that is applied more than once."""
        return self.core is not None and self.core_loops > 1

    @property
    def routes_core(self) -> bool:
        """Whether the core learns to weigh its repetitions."""
        return self.repeats_core and self.core_combination == "router"

    @property
    def learns_injection(self) -> bool:
        """Whether the core has a matrix that joins its input to its state."""
        return self.repeats_core and self.injection == "linear"

    def indices_of(self, trained: int, forced: int | None = None) -> list[float]:
        """A router's input for each step of a loop that was trained with so many; see
        `LayerConfig.step_indices`."""
        loops = trained if forced is None else forced
        first = 1 if self.step_index == "zero_based" else 0

        span = max(1, min(loops, trained) - 1)
        return [min(1.0, (k - first) / span) for k in range(1, loops + 1)]

    def _at(self, name: str, layer: int) -> Any:
        """A field's value for one layer, from 0."""
        value = getattr(self, name)
        return value[layer] if isinstance(value, list) else value

    def _problems(self) -> Iterator[str]:
        """Contradictions among the fields, as sentences; each assumes that none came
        before."""
        if self.d_model % self.n_heads or self.head_dim % 2:
            yield (
                f"d_model={self.d_model} / n_heads={self.n_heads}, the head size, must "
                f"be an even whole number, not {self.d_model / self.n_heads:g}"
            )
        if self.n_heads % self.n_kv_heads:
            yield f"n_kv_heads={self.n_kv_heads} must divide n_heads={self.n_heads}"

        for name, noun in BY_LAYER.items():
            value = getattr(self, name)
            if isinstance(value, list) and len(value) != self.n_layers:
                yield (
                    f"{name} lists {len(value)} {noun} for n_layers={self.n_layers} "
                    f"layers; list {self.n_layers}, or set n_layers to {len(value)}"
                )

        core = self.core
        if core is not None:
            pair = len(core) == 2
            if not pair or not core[0] <= core[1] < self.n_layers:
                yield (
                    f"core={core} must be [FIRST, LAST], two of the layers 0 to "
                    f"{self.n_layers - 1} in their order, or one twice"
                )

        start = self.document_start
        if start is not None and start >= self.vocab_size:
            yield (
                f"document_start={start} is not a token of vocab_size={self.vocab_size}"
            )

        yield from _unknown("gate", self.gate, GATE_OUTPUTS)
        yield from _unknown("combination", self.combination, COMBINATIONS)

        yield from self._missing_widths("d_ffn", {"dual", "loop"})
        yield from self._missing_widths("d_ffn_wide", {"dual", "wide"})
        for layer in range(self.n_layers):
            yield from self._problems_of_experts(layer)

    def _missing_widths(self, name: str, kinds: Set[str]) -> Iterator[str]:
        """A sentence for each layer of these kinds that has no such width."""
        way_out = "set it, or give a complete recipe as an earlier --config"
        is_list = isinstance(getattr(self, name), list)
        for layer, kind in enumerate(self.block_kinds):
            if kind not in kinds or self._at(name, layer) is not None:
                continue
            if name == "d_ffn" and not self._at("deep_ffn", layer):
                continue
            where = f" in layer {layer}" if is_list else ""
            yield f"block '{kind}' needs {name} and has none{where}; {way_out}"

    def _problems_of_experts(self, layer: int) -> Iterator[str]:
        """Why a layer, from 0, cannot have its configured experts."""
        n_experts = self._at("n_experts", layer)
        if not n_experts:
            return

        if self._at("block", layer) == "loop":
            yield (
                f"n_experts={n_experts} in layer {layer}, a 'loop' block, which has no "
                "wide path for them; list 0 for such layers, or choose dual or wide "
                "blocks"
            )
        if self.top_k > n_experts:
            yield (
                f"top_k={self.top_k} experts of n_experts={n_experts} cannot be "
                f"chosen; take {n_experts} or fewer"
            )

        d_ffn_wide = self._at("d_ffn_wide", layer)
        dense_width = self.effective_width(d_ffn_wide)
        if expert_width(dense_width, n_experts, self.top_k) < EXPERT_MULTIPLE:
            yield (
                f"n_experts={n_experts} with top_k={self.top_k} leaves an expert less "
                f"than {EXPERT_MULTIPLE} of the effective width {dense_width} of "
                f"d_ffn_wide={d_ffn_wide}; choose fewer, or a larger d_ffn_wide"
            )


RANGES = ranges_of(ModelConfig)
"""Ranges of a model's fields: far beyond any real model, and counts within them are
exact."""


def by_layer(value: int | list[int] | list[int | None]) -> str:
    """A field that may be a list by layer, as text: `4`, or `1, 4, - x 2`; None is
    `-`."""
    if isinstance(value, int):
        return f"{value:,}"

    parts = []
    for number, run in groupby(value):
        text = "-" if number is None else f"{number:,}"
        times = len(list(run))
        parts.append(text if times == 1 else f"{text} x {times}")
    return ", ".join(parts)


BY_LAYER = {
    "block": "kinds",
    "loops": "numbers",
    "untied_steps": "values",
    "step_kv": "values",
    "deep_ffn": "values",
    "d_ffn": "widths",
    "d_ffn_wide": "widths",
    "n_experts": "numbers",
}
"""The fields that may be lists by layer, and the noun for their entries."""


@dataclass(frozen=True)
class LayerConfig(ModelConfig):
    """One layer's view of a model: the configuration of a model with only such layers.

    `core_loops` is how often a forward pass applies the layer: R in the core, else 1.
    """

    block: BlockKind = "dual"
    loops: int = 4
    untied_steps: bool = False
    step_kv: StepKv = "own"
    deep_ffn: bool = True
    d_ffn: int | None = None
    d_ffn_wide: int | None = None
    n_experts: int = 0

    @property
    def expert_width(self) -> int:
        """Hidden width of each expert, see `expert_width`; 0 without experts."""
        if not self.n_experts or self.d_ffn_wide is None:
            return 0
        return expert_width(
            self.effective_width(self.d_ffn_wide), self.n_experts, self.top_k
        )

    def step_indices(self, forced: int | None = None) -> list[float]:
        """The router's input for each step k: (k - 1) / (K - 1), or k / (K - 1) for
        `one_based`.

        With fewer `forced` loops than K the index still reaches 1 in the last step;
        with more loops it stays 1 from step K on.
        """
        return self.indices_of(self.loops, forced)


def effective_width(d_ffn: int, multiple_of: int) -> int:
    """``multiple_of * ceil(floor(2 d_ffn / 3) / multiple_of)`` (Eq. heff, appendix
    B)."""
    return multiple_of * -(-(2 * d_ffn // 3) // multiple_of)


def expert_width(dense: int, n_experts: int, top_k: int) -> int:
    """Width of an expert whose FLOPs, ``k 6 d width + 2 d n``, come nearest to a dense
    FFN's 6 d h.

    The second term is the router's. `dense` is h; the width is a multiple of
    EXPERT_MULTIPLE.
    """
    # 6 k d width + 2 d n = 6 d h, so width = (3 h - n) / (3 k)
    numerator = 3 * dense - n_experts
    denominator = 3 * top_k * EXPERT_MULTIPLE
    multiples = (2 * numerator + denominator) // (2 * denominator)  # rounded
    return multiples * EXPERT_MULTIPLE


def _unknown(name: str, value: str, built_in: Iterable[str]) -> Iterator[str]:
    """The fault of a part's name, which is neither built in nor the path of a class."""
    names = list(built_in)
    if value in names or CLASS_PATH.fullmatch(value):
        return

    example = f"my.module.{name.capitalize()}"
    hint = did_you_mean(value, names)
    yield (
        f"{name} must be one of {', '.join(names)} or the path of a class such as "
        f"{example}, not '{value:.60}'{hint}"
    )
