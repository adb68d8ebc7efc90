"""jsonargparse with mistakes of one line, and checked dataclasses from plain values. Torch-free.

One parser reads recipes, the command line and, as LightningCLI's, the classes of the trainer.
"""

import dataclasses
import os
import re
import typing
from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, NoReturn, TypeVar

from jsonargparse import ArgumentParser
from jsonargparse.typing import register_type

from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.ranges import Size, parse_size
from dualpath_cli.recipe.recipes import names

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

DECIDED_ELSEWHERE = {
    "max_steps": "run.max_tokens",
    "max_epochs": "run.max_tokens and data.max_epochs",
    "limit_train_batches": "run.max_tokens",
    "overfit_batches": "run.max_tokens",
    "fast_dev_run": "run.max_tokens",
    "accumulate_grad_batches": "run.batch_tokens and run.micro_batch",
    "gradient_clip_val": "optim.clip",
    "gradient_clip_algorithm": "optim.clip",
    "val_check_interval": "run.validate_every",
    "check_val_every_n_epoch": "run.validate_every",
    "num_sanity_val_steps": "run.validate_every",
    "limit_val_batches": "data.val_tokens",
    "log_every_n_steps": "run.log_every",
    "default_root_dir": "run.dir",
    "enable_checkpointing": "run.save_every",
}
"""Arguments of lightning.Trainer that other sections of a recipe decide."""


def _size(value: Any) -> Size:
    try:
        return Size(parse_size(str(value), "", most=None))
    except UserError:
        raise ValueError(f"Got value: {value}") from None


register_type(Size, serializer=int, deserializer=_size, type_check=lambda v, _: type(v) is Size)


class OneLine:
    """Mixin of a jsonargparse parser, whose mistakes become UserErrors of one line."""

    _actions: Any
    words: Sequence[str] | None = None
    """The user's, by which an option of two names is called in messages. Without any, what is wrong
    are keys."""
    prefix = ""
    """Goes before keys in messages."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raises a UserError that names the key or option, its value, and the way out."""
        raise UserError(self._explain(" ".join(message.split()))) from ex

    def _explain(self, text: str) -> str:
        if found := re.match(r"unrecognized arguments: (\S*)", text):
            return self._unknown_word(found[1])
        if found := re.match(r"(?:Parser key .*?: )?(?:Group|Option|Key) '([\w.]+)' (.*)", text):
            inner = re.search(r"does not accept option '(.*)'", found[2])
            return self.unknown_key(f"{found[1]}.{inner[1]}" if inner else found[1])
        if found := re.match(r"argument (--[\w.-]+)\S*: expected", text):
            return f"{found[1]} needs a value"
        if found := re.search(r"following arguments are required: ([\w.-]+)", text):
            return f"{self.prefix}{found[1]} is missing"
        if found := re.match(r'(?:Parser )?key "([\w.]+)": ?(.*)', text, re.IGNORECASE):
            values = re.findall(r"(?:Got|Given) value: ?(.*?)(?= - |$)", found[2])
            given = values[-1] if values else found[2]
            given = {"True": "true", "False": "false", "None": "null"}.get(given, given)
            if "Unable to load config" in found[2]:
                value = re.findall(r"config ['\"](.*?)['\"]", found[2])[0]
                key = found[1]
                return f"{key} must be a mapping, not '{value:.60}'; set --{key}.KEY VALUE instead"
            return self._wrong(found[1], given, found[2])
        return text

    def _wrong(self, key: str, given: str, text: str) -> str:
        """Says what a key or option must be; of a class that is built, what jsonargparse says."""
        (action,) = [a for a in self._actions if a.dest == key][:1] or [None]
        annotation = getattr(action, "_typehint", None) or getattr(action, "type", None)
        name = self.name_of(key)
        if given in ("nan", "inf", "-inf", ".nan", ".inf", "-.inf") and _takes(annotation, float):
            return f"{name} must be a finite number, not '{given}'"
        must = describe(annotation)
        if name.startswith("--"):
            must = must.removesuffix(" or null")  # which stands for an option that is left out
        if "<class" in must:
            # The types of a union come in any order; those of another kind say nothing.
            errors = text.rpartition("Errors:")[2]
            reasons = re.findall(r" - (?!Expected a <class)(.*?)(?= - | Given value|$)", errors)
            return f"{name}: '{given:.60}' cannot be built: {(reasons or [text])[0]}"
        choices = _choices(annotation)
        near = "" if given in choices else did_you_mean(given, choices)
        return f"{name} must be {must}, not '{given:.60}'{near}"

    def name_of(self, key: str) -> str:
        """A key of a recipe as it is, an option as the user wrote it."""
        for action in self._actions:
            if (
                action.dest == key
                and action.option_strings
                and "." not in key
                and self.words is not None
            ):
                given = {word.partition("=")[0] for word in self.words}
                return next((o for o in action.option_strings if o in given),
                            action.option_strings[0])  # fmt: skip
        return self.prefix + key

    def options(self) -> dict[str, str]:
        """Every option, by what it is called without hyphens before it.

        argparse lists them nowhere in public: `tests/cli/options.txt` tells if this changes.
        """
        shown = [action for action in self._actions if action.help != SUPPRESS]
        found = [option for action in shown for option in action.option_strings]
        return {option.lstrip("-"): option for option in found if not option.endswith("+")}

    def unknown_key(self, key: str) -> str:
        """Says that a recipe has no such key, which others call otherwise or have elsewhere."""
        section, _, name = key.rpartition(".")
        if section == "trainer" and name in DECIDED_ELSEWHERE:
            return f"{key} is not used; set {DECIDED_ELSEWHERE[name]} instead"
        keys = [option for option in self.options() if option.startswith(section and f"{section}.")]
        last = {k.rpartition(".")[2]: k for k in self.options() if "." in k}
        last |= {other: k for other, k in OTHER_NAMES.items() if k in self.options()}
        own = {k.removeprefix(f"{section}."): k for k in keys}
        near = did_you_mean(name, own | last, last | own)
        listed = [k for k in own if "." not in k]
        return f"unknown key '{self.prefix}{key}'{near or '; there are ' + ', '.join(listed)}"

    def _unknown_word(self, word: str) -> str:
        """Says that a word means nothing, with the option that it is likely for.

        Of `--model.loop` the last part alone is compared: a key is more often put into the wrong
        section than mistyped.
        """
        option, options = word.partition("=")[0], self.options()
        if not option.startswith("-"):
            way_out = "every value follows its option: see --help"
            packaged = names("" if "ckpt-path" in options else "data")
            if "config" in options and (word.endswith(".yaml") or word in packaged):
                way_out = f"did you mean '--config {word}'?"
            elif "ckpt-path" in options and os.path.isdir(word):
                way_out = f"did you mean '--ckpt-path {word}'?"
            return f"unexpected argument '{word}'; {way_out}"
        section, _, name = option.lstrip("-").rpartition(".")
        if section == "trainer" and name in DECIDED_ELSEWHERE:
            return f"trainer.{name} is not used; set {DECIDED_ELSEWHERE[name]} instead"
        called = {key.replace("_", "-"): shown for key, shown in options.items()}
        keys = [key for key in options if "." in key]
        called |= {k.rpartition(".")[2].replace("_", "-"): f"--{k}" for k in reversed(keys)}
        if keys:
            called |= {k.replace("_", "-"): f"--{key}" for k, key in OTHER_NAMES.items()}
        # A command's own option goes before a key of the recipe.
        called |= {k.replace("_", "-"): o for k, o in options.items() if "." not in k}
        help_ = "--help-recipe" if section and keys else "--help"
        hint = did_you_mean(name.replace("_", "-"), called, called)
        return f"unknown option '{option}'{hint or f'; {help_} lists what there is'}"


PARSER: dict[str, Any] = {"exit_on_error": False, "add_help": False, "allow_abbrev": False}
"""A mistyped option must not pass for another one."""


class Parser(OneLine, ArgumentParser):
    """The parser of every command, and of every dataclass that is read from a file."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**PARSER, **settings})


def build(cls: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """Returns the dataclass with these values, those of nested dataclasses being mappings.

    Types are not bent: 2.0 and `true` are no whole numbers, and 3 is no text. `prefix` goes before
    keys in messages.
    """
    parser = _parser_of(cls)  # type: ignore[arg-type]
    parser.prefix = prefix
    try:
        made: Any = parser.instantiate(parser.parse_object(dict(values), defaults=True))
        return cls(**made.as_dict())
    except ValueError as error:
        raise UserError(f"{prefix.rstrip('.')}: {error}" if prefix else str(error)) from None


@cache
def _parser_of(cls: type) -> Parser:
    parser = Parser()
    parser.add_class_arguments(cls, fail_untyped=False)
    return parser


def describe(annotation: Any) -> str:
    """Says what a value of a type is, as the end of "KEY must be ..."."""
    plain = {
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
    if origin is dict and arguments[1] is not Any:
        return f"a mapping of names to values (each {describe(arguments[1])})"
    if origin is dict or dataclasses.is_dataclass(annotation):
        return "a mapping of names to values"
    return " or ".join(map(describe, arguments)) or str(annotation)


def _takes(annotation: Any, kind: type) -> bool:
    return annotation is kind or any(_takes(part, kind) for part in typing.get_args(annotation))


def _choices(annotation: Any) -> list[str]:
    if typing.get_origin(annotation) is Literal:
        return [str(value) for value in typing.get_args(annotation)]
    return [choice for part in typing.get_args(annotation) for choice in _choices(part)]
