"""Checked dataclasses from plain values, such as a recipe's: structure and types by pydantic."""

import dataclasses
import json
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar

import pydantic

from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.sizes import Size

T = TypeVar("T")

OTHER_NAMES = {
    "hidden_size": "model.d_model",
    "n_embd": "model.d_model",
    "num_layers": "model.n_layers",
    "num_hidden_layers": "model.n_layers",
    "num_attention_heads": "model.n_heads",
    "num_key_value_heads": "model.n_kv_heads",
    "intermediate_size": "model.d_ffn",
    "max_position_embeddings": "model.max_seq_len",
    "seq_len": "model.max_seq_len",
    "rope_theta": "model.rope_base",
    "learning_rate": "optim.lr",
    "min_lr": "optim.lr_end",
    "num_warmup_steps": "optim.warmup_steps",
    "warmup_ratio": "optim.warmup_steps",
    "lr_scheduler_type": "optim.schedule",
    "max_grad_norm": "optim.clip",
    "gradient_clip_val": "optim.clip",
    "batch_size": "run.batch_tokens",
    "gradient_accumulation_steps": "run.batch_tokens",
    "accumulate_grad_batches": "run.batch_tokens",
    "micro_batch_size": "run.micro_batch",
    "per_device_train_batch_size": "run.micro_batch",
    "max_steps": "run.max_tokens",
    "num_train_epochs": "run.max_tokens",
    "logging_steps": "run.log_every",
    "eval_steps": "run.validate_every",
    "save_steps": "run.save_every",
    "output_dir": "run.dir",
    "run_name": "run.name",
    "seed": "seed_everything",
}
"""Keys of a recipe by the names that other trainers give them, for hints."""


def build(cls: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """Returns the dataclass with these values, those of nested dataclasses being mappings.

    Types are not bent: 2.0 and `true` are no whole numbers, and 3 is no text. Lists make tuples,
    and counts of the type `Size` may be written 38.5B. `prefix` goes before keys in messages.
    """
    shape: Any = cls
    try:
        text = json.dumps({"value": values}, default=str)
    except ValueError:
        raise UserError(f"{prefix}a number has thousands of digits; give a smaller one") from None
    try:
        checked: Any = _model_of(shape).model_validate_json(text)
    except pydantic.ValidationError as error:
        raise UserError(_explain(cls, min(error.errors(), key=_rank), prefix)) from None
    result: T = checked.value
    return result


def describe(annotation: Any) -> str:
    """Says what a value of a type is, as the end of "KEY must be ..."."""
    plain = {
        dict: "a mapping",
        int: "a whole number",
        Size: "a whole number above 0 such as 80M, 38.5B, 80e6 or 80000000",
        float: "a number",
        bool: "true or false",
        str: "text",
        type(None): "null",
    }
    if annotation in plain:
        return plain[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin is tuple and arguments[-1] is not Ellipsis and len(set(arguments)) > 1:
        return f"a list of {' and '.join(map(describe, arguments))}"
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"a list of {len(arguments)} (each {describe(arguments[0])})"
    if origin in (tuple, list):
        return f"a list (each {describe(arguments[0])})"
    if origin is dict or dataclasses.is_dataclass(annotation):
        return "a mapping of names to values"
    return " or ".join(map(describe, arguments)) or str(annotation)


@cache
def _model_of(cls: type) -> type[pydantic.BaseModel]:
    """A model with one field; its strictness reaches all dataclasses below."""
    config = pydantic.ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    return pydantic.create_model(cls.__name__, __config__=config, value=(cls, ...))


def _rank(error: Any) -> tuple[int, int]:
    """Unknown keys first, then types; of a union's members the one that fits the furthest."""
    order = {"unexpected_keyword_argument": 0, "value_error": 2}
    return order.get(error["type"], 1), -len(error["loc"])


def _explain(cls: type, error: Any, prefix: str) -> str:
    loc = error["loc"][1:]
    if error["type"] == "missing" and isinstance(loc[-1], int):
        loc = loc[:-1]  # a list that is too short
        error["type"] = "too_short"
    path, annotation = _place(cls, loc)
    name = prefix + ".".join(map(str, path))
    given = error["input"]
    match error["type"]:
        case "unexpected_keyword_argument":
            keys = [field.name for field in dataclasses.fields(annotation)]
            unknown = str(error["loc"][-1])
            others = {other: key for other, key in OTHER_NAMES.items() if other not in keys}
            near = did_you_mean(unknown, [*keys, *others], others)
            hint = near or f"; there are {', '.join(keys)}"
            return f"unknown key '{name}{'.' if path else ''}{unknown}'{hint}"
        case "missing":
            return f"{name} is missing"
        case "value_error":
            place = f"{name.rstrip('.')}: " if name else ""
            return f"{place}{error['ctx']['error']}"
        case "finite_number" | "float_type" if type(given) in (float, int):
            # The second: an integer above all floats, as older versions of pydantic call it.
            return f"{name} must be a finite number, not '{given!s:.60}'"
        case "json_invalid":
            return f"{prefix}a text is no valid Unicode; give names and paths in UTF-8"
    shown = json.dumps(given) if isinstance(given, dict | list | bool | None) else str(given)
    choices = _choices(annotation)
    hint = "" if shown in choices else did_you_mean(shown, choices)  # else it is no list
    return f"{name} must be {describe(annotation)}, not '{shown:.60}'{hint}"


def _place(cls: type, loc: tuple[int | str, ...]) -> tuple[list[int | str], Any]:
    """The keys of a value that has a mistake, and its type: as far as both can be followed."""
    path: list[int | str] = []
    annotation: Any = cls
    for key in loc:
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if dataclasses.is_dataclass(annotation):
            hints = typing.get_type_hints(annotation)
            if key not in hints:
                break
            annotation = hints[str(key)]
        elif origin in (list, tuple) and isinstance(key, int):
            annotation = arguments[0]
        elif origin is dict:
            annotation = arguments[1]
        else:  # pydantic's name for one of several types
            break
        path.append(key)
    return path, annotation


def _choices(annotation: Any) -> list[str]:
    if typing.get_origin(annotation) is Literal:
        return [str(value) for value in typing.get_args(annotation)]
    return [choice for part in typing.get_args(annotation) for choice in _choices(part)]
