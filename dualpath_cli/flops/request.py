"""The options of `dualpath flops` as solved or loaded models."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, get_args

from dualpath_cli.config import RANGES, BlockKind, ModelConfig
from dualpath_cli.errors import UserError
from dualpath_cli.flops import paper
from dualpath_cli.flops.report import Description, Hardware
from dualpath_cli.flops.widths import Target, solve_widths, solve_within
from dualpath_cli.options.values import check_choice
from dualpath_cli.ranges import Range, check_range
from dualpath_cli.sizes import format_size, parse_size

DEFAULT_TFLOPS = 68.0
"""Sustained TFLOP/s a GPU: the median that the paper's 26 training times imply for its A100s."""

_FIELDS = {
    "vocab": "vocab_size", "layers": "n_layers", "dim": "d_model", "heads": "n_heads",
    "kv_heads": "n_kv_heads", "seq_len": "max_seq_len", "loops": "loops",
    "width_multiple": "ffn_multiple_of", "experts": "n_experts", "top_k": "top_k",
}  # fmt: skip
"""Which field of a model an option sets."""

HARDWARE_OPTIONS = ("tokens", "gpus", "tflops")

Number = TypeVar("Number", int, float)

Options = Mapping[str, Any]
"""Every option by its attribute name; None where the user said nothing."""


def solved(options: Options, readings: Iterable[paper.Reading]) -> list[Description]:
    """The model that a budget buys, once for each reading."""
    targets = targets_of(options)
    return [_describe(targets, reading, options) for reading in readings]


def solved_table(
    options: Options, readings: Iterable[paper.Reading]
) -> tuple[list[list[Description]], list[str]]:
    """The paper's 13 configurations at the given budget, and the names of those without room.

    Returns one list per configuration with its readings. Under match total all 13 meet the same
    sum of linear FLOPs and attention scores, that of a dual block with the given K.
    """
    (base,) = targets_of(options)
    groups, without_room = [], []
    for row in paper.configurations("F80M"):  # the same 13 kinds at either budget
        target = replace(base, block=row.block, alpha=row.target.alpha, loops=row.loops,
                         reference_loops=base.loops)  # fmt: skip
        if target.has_room:
            groups.append([_describe([target], reading, options) for reading in readings])
        else:
            without_room.append(row.label)
    return groups, without_room


def targets_of(options: Options) -> list[Target]:
    """What widths are solved for: one target for all layers, or one for each.

    Raises UserError for an impossible backbone, and for lists that do not go together.
    """
    dim = _count(options, "dim", 768)
    heads = _count(options, "heads", max(1, dim // 64))
    if dim % heads or dim // heads % 2:
        raise UserError(
            f"--dim {dim} does not split into {heads} heads of an even size; "
            f"{_fitting_heads(dim, heads)}"
        )
    kv_heads = _count(options, "kv_heads", heads)
    if heads % kv_heads:
        raise UserError(
            f"--kv-heads {kv_heads} does not divide the {heads} query heads; "
            f"{_nearest_divisor(heads, kv_heads)} would"
        )
    blocks, loops = _layers(options)
    base = Target(
        budget=parse_size(str(options["budget"]), "--budget"),
        block=blocks[0],
        alpha=50 if options["alpha"] is None else options["alpha"],
        loops=loops[0],
        match=options["match"] or "linear",
        d_model=dim,
        n_heads=heads,
        n_kv_heads=kv_heads,
        seq_len=_count(options, "seq_len", 4096),
        multiple_of=_count(options, "width_multiple", paper.SOLVER_MULTIPLE),
    )
    return [replace(base, block=b, loops=k) for b, k in zip(blocks, loops, strict=True)]


def _layers(options: Options) -> tuple[list[BlockKind], list[int]]:
    """Kind and K of each layer, or of all.

    Raises UserError for lists of other lengths than the layers, and where one is no list of these.
    """
    kinds, counts = (
        str(default if options[name] is None else options[name]).split(",")
        for name, default in (("block", "dual"), ("loops", 4))
    )
    blocks = [check_choice("--block", kind.strip(), get_args(BlockKind)) for kind in kinds]
    if not all(count.strip().isdecimal() for count in counts):
        raise UserError(
            f"--loops must be a whole number, or one for each layer such as 1,4,1,1, not "
            f"'{options['loops']}'"
        )
    loops = [checked({"loops": int(count)}, "loops", 1, RANGES["loops"]) for count in counts]
    lists = {"--block": len(blocks), "--loops": len(loops)}
    lists = {name: length for name, length in lists.items() if length > 1}
    if not lists:
        return blocks, loops
    if options["match"] == "total":
        raise UserError("--match total goes with one kind of block and one K, not with a list")
    layers = _count(options, "layers", max(lists.values()))
    for name, length in lists.items():
        if length != layers:
            raise UserError(f"{name} lists {length} layers, and the model has {layers}")
    return blocks * (layers // len(blocks)), loops * (layers // len(loops))


def _count(options: Options, name: str, default: int) -> int:
    """A whole number above 0 that an option gives. Raises UserError for another one."""
    allowed = RANGES[_FIELDS[name]] if name in _FIELDS else (1, 10**9)
    return checked(options, name, default, allowed)


def checked(options: Options, name: str, default: Number, allowed: Range) -> Number:
    """A number that an option gives, or the default. Raises UserError for one out of range."""
    value: Number = default if options[name] is None else options[name]
    try:
        check_range(f"--{name.replace('_', '-')}", value, allowed)
    except ValueError as error:
        raise UserError(str(error)) from None
    return value


def _nearest_divisor(whole: int, wanted: int) -> int:
    divisors = [n for n in range(1, whole + 1) if whole % n == 0]
    return min(divisors, key=lambda n: abs(n - wanted))


def _fitting_heads(dim: int, wanted: int) -> str:
    if dim % 2:
        return f"an odd width has no such heads, --dim {dim + 1} would"
    return f"--heads {_nearest_divisor(dim // 2, wanted)} would"


def _hardware(options: Options, tokens_of_recipe: Any = None) -> Hardware:
    gpus = _count(options, "gpus", paper.GPUS)
    tflops = checked(options, "tflops", DEFAULT_TFLOPS, (1e-6, 1e9))
    tokens = paper.TRAINING_TOKENS
    if options["tokens"] is not None:
        tokens = parse_size(str(options["tokens"]), "--tokens")
    elif tokens_of_recipe is not None:
        tokens = parse_size(str(tokens_of_recipe), "run.max_tokens")
    asked = any(options[name] is not None for name in HARDWARE_OPTIONS)
    return Hardware(tokens, gpus, tflops, asked)


def _describe(targets: list[Target], reading: paper.Reading, options: Options) -> Description:
    chosen, given = paper.reading_fields(reading), options["width_multiple"] is not None
    target = targets[0]
    if target.match == "total" and not given:
        target, widths = solve_within(replace(target, multiple_of=chosen["ffn_multiple_of"]))
        by_layer = [(target, widths)]
    else:
        by_layer = [(target, solve_widths(target)) for target in targets]
    if target.match == "total" or given:
        chosen["ffn_multiple_of"] = target.multiple_of
    fields: dict[str, Any] = dict(
        vocab_size=_count(options, "vocab", 50304),
        n_layers=_count(options, "layers", 16 if len(targets) == 1 else len(targets)),
        d_model=target.d_model,
        n_heads=target.n_heads,
        n_kv_heads=target.n_kv_heads,
        max_seq_len=target.seq_len,
        block=_one_or_list([t.block for t, _ in by_layer]),
        loops=_one_or_list([None if t.block == "wide" else t.loops for t, _ in by_layer], 1),
        d_ffn=_one_or_list([widths.d_ffn for _, widths in by_layer]),
        d_ffn_wide=_one_or_list([widths.d_ffn_wide for _, widths in by_layer]),
        **chosen,
    )
    try:
        config = ModelConfig(**fields)
    except ValueError as error:  # a budget may buy widths beyond all measure
        raise UserError(f"a budget of {format_size(target.budget)} is too large: {error}") from None
    config = _with_experts(config, options)
    hardware = _hardware(options)
    return Description(
        config, reading, hardware, target.seq_len, target.budget, tuple(dict(by_layer).items())
    )


def _with_experts(config: ModelConfig, options: Options) -> ModelConfig:
    """The model with the experts that are asked for in its wide paths, at the same FLOPs."""
    n, top_k = (_count(options, name, default) for name, default in (("experts", 0), ("top_k", 2)))
    experts = _one_or_list([0 if kind == "loop" else n for kind in config.block_kinds])
    try:
        return replace(config, n_experts=experts, top_k=top_k)
    except ValueError as error:
        raise UserError(f"--experts {n}: {error}") from None


def _one_or_list(values: list[Any], without: Any = None) -> Any:
    """The value of all layers that have one, or a list where they differ."""
    different = {value for value in values if value is not None}
    if len(different) < 2:
        return different.pop() if different else without
    return [without if value is None else value for value in values]


def from_recipes(options: Options) -> Description:
    """The model of the recipes in ``config``, later ones over earlier ones.

    ``reading`` then sets its fields over them. Raises UserError for a recipe without a usable
    model section.
    """
    merged = _merged(options["config"])
    config = _model_config(" + ".join(options["config"]), merged["model"], options["reading"])
    seq_len = _count(options, "seq_len", config.max_seq_len)
    budget, hardware = options["budget"], _hardware(options, merged["run"].get("max_tokens"))
    return Description(
        config,
        reading=next((r for r in paper.READINGS if _reads_as(config, r)), None),
        hardware=hardware,
        seq_len=seq_len,
        budget=None if budget is None else parse_size(str(budget), "--budget"),
        step_loops=_step_loops(merged["run"], config, hardware.tokens),
    )


def _step_loops(run: dict[str, Any], config: ModelConfig, tokens: int) -> dict[int, float]:
    """Steps by their number of loops, from what a `run` section says of it."""
    from dualpath_cli.recipe.schedule import check_loops, loop_counts
    from dualpath_cli.recipe.settings import RunSettings
    from dualpath_cli.recipe.validation import build

    keys = run.keys() & {"train_loops", "loop_schedule", "batch_tokens"}
    settings = build(RunSettings, {key: run[key] for key in keys} | {"max_tokens": tokens}, "run.")
    check_loops(settings, config)
    return loop_counts(settings)


def section(options: Options, name: str) -> dict[str, Any]:
    """A section of the recipes in ``config``, `run` or `optim`; empty without any."""
    found: dict[str, Any] = _merged(options["config"] or [])[name]
    return found


def _merged(names: list[str]) -> dict[str, Any]:
    from dualpath_cli.recipe import recipes

    merged = recipes.load_recipes(names)
    for name in ("model", "run", "optim"):
        if not isinstance(merged.setdefault(name, {}), dict):
            raise UserError(f"recipe '{' + '.join(names)}': '{name}' must be a mapping")
    return merged


def _model_config(recipe: str, model: dict[str, Any], reading: paper.Reading | None) -> ModelConfig:
    from dualpath_cli.recipe.validation import build

    if not model:
        raise UserError(f"recipe '{recipe}' has no model section to describe")
    if reading is not None:
        model = model | paper.reading_fields(reading)
    try:
        return build(ModelConfig, model, "model.")
    except UserError as error:
        raise UserError(f"recipe '{recipe}': {error}") from None


def _reads_as(config: ModelConfig, reading: paper.Reading) -> bool:
    return all(getattr(config, k) == v for k, v in paper.reading_fields(reading).items())
