"""jsonargparse with mistakes of one line, and checked dataclasses from plain values. Torch-free.

One parser reads recipes, the command line and, as LightningCLI's, the classes of the trainer.
"""

import re
import typing
from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, NoReturn, TypeVar

from jsonargparse import ArgumentParser, Namespace, _loaders_dumpers
from jsonargparse.typing import register_type

from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.ranges import PLACES, SIZES, Place, Size, at_home, parse_size
from dualpath_cli.recipe.recipes import Loader

# Values on the command line are read as those of recipes. There is no public way to say so.
_loaders_dumpers.yaml_default_loader = Loader  # type: ignore[assignment]
T = TypeVar("T")

_NAMES_ELSEWHERE = {
    "model.d_model": "hidden_size n_embd",
    "model.n_layers": "num_layers num_hidden_layers",
    "model.n_heads": "num_attention_heads",
    "model.n_kv_heads": "num_key_value_heads",
    "model.d_ffn": "intermediate_size",
    "model.max_seq_len": "max_position_embeddings seq_len",
    "model.rope_base": "rope_theta",
    "optim.lr": "learning_rate",
    "optim.lr_end": "min_lr",
    "optim.warmup_steps": "num_warmup_steps warmup_ratio",
    "optim.schedule": "lr_scheduler_type",
    "optim.clip": "max_grad_norm gradient_clip_val gradient_clip_algorithm",
    "run.batch_tokens": "batch_size gradient_accumulation_steps accumulate_grad_batches",
    "run.micro_batch": "micro_batch_size per_device_train_batch_size",
    "run.max_tokens": "max_steps max_epochs num_train_epochs limit_train_batches overfit_batches "
    "fast_dev_run",
    "run.log_every": "logging_steps log_every_n_steps",
    "run.validate_every": "eval_steps val_check_interval check_val_every_n_epoch "
    "num_sanity_val_steps",
    "run.save_every": "save_steps enable_checkpointing",
    "run.dir": "output_dir default_root_dir",
    "run.name": "run_name",
    "data.val_tokens": "limit_val_batches",
    "seed_everything": "seed",
}
OTHER_NAMES = {name: key for key, words in _NAMES_ELSEWHERE.items() for name in words.split()}
"""Keys of a recipe by the names that other trainers, and Lightning's own, have for them."""


def _size(value: Any) -> Size:
    try:
        return Size(parse_size(str(value), ""))
    except UserError:
        raise ValueError(f"Got value: {value}") from None


register_type(Size, serializer=int, deserializer=_size, type_check=lambda v, _: type(v) is Size)


# Never of its type, so each is read: what comes of it is a plain text.
register_type(Place, serializer=str, deserializer=at_home, type_check=lambda v, _: False)


class OneLine:
    """Mixin of a jsonargparse parser, whose mistakes become UserErrors of one line."""

    _actions: Any
    words: Sequence[str] | None = None
    """The user's, by which an option of two names is called. Without, what is wrong are keys."""
    prefix = ""
    """Goes before keys in messages."""

    def __init__(self, **settings: Any) -> None:
        # A mistyped option must not pass for another one.
        ours = {"exit_on_error": False, "add_help": False, "allow_abbrev": False}
        super().__init__(**{**ours, **settings})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raises a UserError that names the key or option, its value, and the way out."""
        raise UserError(self._explain(" ".join(message.split()))) from ex

    def _explain(self, text: str) -> str:
        if found := re.match(r"unrecognized arguments: (\S*)", text):
            if found[1][:1] == "-":
                return self.unknown(found[1])
            return f"unexpected argument '{found[1]}'; a value follows its option, as --help says"
        not_accepted = (
            r"(?:Group|Option) '([\w.]+)' (?:is not accepted|does not accept option '(.*)')"
        )
        if found := re.search(not_accepted, text):
            return self.unknown(".".join(filter(None, found.groups())))
        if found := re.search(r"arguments are required: ([\w.-]+)", text):
            return f"{self.prefix}{found[1]} is missing"
        # Of a value within a mapping the last key is its own.
        *_, key, said = ["", "", *re.split(r'[Kk]ey "([\w.]+)": ?', text)[1:]]
        return self._wrong(key, said) if key else text

    def _wrong(self, key: str, said: str) -> str:
        """Says what a key or option must be; of a class that is built, what jsonargparse says."""
        (action,) = [a for a in self._actions if a.dest == key][:1] or [None]
        annotation = getattr(action, "_typehint", None) or getattr(action, "type", None)
        name, must = self.name_of(key), describe(annotation)
        given = re.findall(r"(?:Got value:|Given value:|load config) ?(.*?)(?= - |$)", said)
        value = given[-1].strip("\"'") if given else said
        value = {"True": "true", "False": "false", "None": "null"}.get(value, value)
        if "Unable to load config" in said:
            return f"{key} must be a mapping, not '{value:.60}'; set --{key}.KEY VALUE instead"
        if "<class" in must:
            # The types of a union come in any order; those of another kind say nothing.
            errors = said.rpartition("Errors:")[2]
            reasons = re.findall(r" - (?!Expected a <class)(.*?)(?= - | Given value|$)", errors)
            return f"{name}: '{value:.60}' cannot be built: {(reasons or [said])[0]}"
        if name.startswith("--"):
            must = must.removesuffix(" or null")  # which stands for an option that is left out
        choices = _choices(annotation)
        near = "" if value in choices else did_you_mean(value, choices)
        return f"{name} must be {must}, not '{value:.60}'{near}"

    def name_of(self, key: str) -> str:
        """A key of a recipe as it is, an option as the user wrote it."""
        options = [o for action in self._actions if action.dest == key
                   for o in action.option_strings]  # fmt: skip
        if self.words is None or "." in key or not options:
            return self.prefix + key
        given = {word.partition("=")[0] for word in self.words}
        return next((o for o in options if o in given), options[0])

    def options(self) -> dict[str, str]:
        """Every option, by what it is called without hyphens before it.

        argparse lists them nowhere in public: `tests/cli/options.txt` tells if this changes.
        """
        shown = [action for action in self._actions if action.help != SUPPRESS]
        found = [option for action in shown for option in action.option_strings]
        return {option.lstrip("-"): option for option in found if not option.endswith("+")}

    def unknown(self, word: str) -> str:
        """Says that there is no such key or option, and for which one it is likely meant.

        Of `--model.loop` the last part is compared: a key is more often put into the wrong section
        than mistyped. Its own section goes first, and a command's own option before all keys.
        """
        options, option = self.options(), word.partition("=")[0]
        section, _, name = option.lstrip("-").rpartition(".")
        own = [key for key in options if key.startswith(section and f"{section}.")]
        near = {other: key for other, key in OTHER_NAMES.items() if key in options}
        for keys in (reversed(options), own, [key for key in options if "." not in key]):
            near |= {key.rpartition(".")[2].replace("-", "_"): key for key in keys}
        shown = {last: options[key] for last, key in near.items()} if option[:1] == "-" else near
        hint = did_you_mean(name.replace("-", "_"), near, shown)
        if option[:1] == "-":
            help_ = "--help-recipe" if section and len(own) < len(options) else "--help"
            return f"unknown option '{option}'{hint or f'; {help_} lists what there is'}"
        there = ", ".join(key.removeprefix(f"{section}.") for key in own if key.count(".") < 2)
        return f"unknown key '{self.prefix}{option}'{hint or f'; there are {there}'}"


class Parser(OneLine, ArgumentParser):
    """The parser of every command, and of every dataclass that is read from a file."""


def build(cls: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """Returns the dataclass with these values, those of nested dataclasses being mappings.

    Types are not bent: 2.0 and `true` are no whole numbers, and 3 is no text. `prefix` goes before
    keys in messages.
    """
    parser = reader_of(cls)  # type: ignore[arg-type]
    parser.prefix = prefix
    found = parser.parse_object(dict(values), defaults=True)
    made = {name: found[name] for name in typing.get_type_hints(cls)}
    at = prefix
    try:
        for name, part in made.items():
            if isinstance(part, Namespace):
                at = f"{prefix}{name}."
                made[name] = _made(typing.get_type_hints(cls)[name], part.as_dict(), at)
        at = prefix
        return _made(cls, made, at)
    except ValueError as error:
        raise UserError(f"{at.rstrip('.')}: {error}" if at else str(error)) from None


def _made(cls: type[T], values: Mapping[str, Any], prefix: str) -> T:
    """The dataclass; UserError for a null, which jsonargparse takes for any type."""
    for name, kind in typing.get_type_hints(cls).items():
        if values.get(name, "") is None and type(None) not in typing.get_args(kind):
            raise UserError(f"{prefix}{name} must be {describe(kind)}, not 'null'")
    return cls(**values)


@cache
def reader_of(cls: type) -> Parser:
    parser = Parser()
    parser.add_class_arguments(cls, fail_untyped=False)
    return parser


_KINDS = {int: "a whole number", Size: SIZES, float: "a number", bool: "true or false",
          str: "text", Place: PLACES, type(None): "null"}  # fmt: skip


def describe(annotation: Any) -> str:
    """Says what a value of a type is, as the end of "KEY must be ..."."""
    if annotation in _KINDS:
        return _KINDS[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    parts = [describe(part) for part in arguments if part not in (..., Any)]
    if origin in (tuple, list):
        return f"a list ({'' if parts[1:] else 'each '}{' and '.join(parts)})"
    if origin is dict:
        return f"a mapping of names to values{f' (each {parts[1]})' if parts[1:] else ''}"
    return " or ".join(parts) or str(annotation)


def _choices(annotation: Any) -> list[str]:
    if typing.get_origin(annotation) is Literal:
        return [str(value) for value in typing.get_args(annotation)]
    return [choice for part in typing.get_args(annotation) for choice in _choices(part)]
