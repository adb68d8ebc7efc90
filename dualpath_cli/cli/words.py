"""The words after a command: its own options, and keys of a recipe.

Each command has one parser, of jsonargparse: the fields of its dataclass are its options, and where
it has a recipe, `--SECTION.KEY VALUE` sets a key of that. LightningCLI's parser gets the same.
"""

import json
import re
import typing
from argparse import SUPPRESS, Action
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from functools import cache
from inspect import get_annotations, getdoc
from pkgutil import resolve_name
from typing import Any

from jsonargparse import DefaultHelpFormatter, Namespace, set_parsing_settings

from dualpath_cli.cli.commands import Command
from dualpath_cli.errors import UserError
from dualpath_cli.ranges import PLACES, Place, Size, at_home
from dualpath_cli.recipe.parser import OneLine, Parser
from dualpath_cli.recipe.recipes import Recipe, load_recipes
from dualpath_cli.recipe.settings import Settings, check_sections

_OF_A_CLASS = re.compile(
    r"--trainer\.((callbacks|plugins|profiler|logger|strategy)(\+|\.[\w.]+\+?)"
    r"|(callbacks|plugins|logger)(?==(?!null$)[^\[{])"
    r"|(profiler|strategy)(?==[\w.]+\.))"
)
"""Words about Lightning's own classes, which its parser alone can read."""

_METAVARS = {"ckpt_path": "RUN", "config": "RECIPE", "folder": "DIR", "vocab_size": "N"}
GIVEN = "given"  # A field with this name is no option: it holds the names of those that were given


@dataclass(frozen=True)
class Line:
    """A command line, parsed; a recipe's keys are checked where there is a recipe."""

    command: Command
    words: tuple[str, ...]
    options: Any = None  # the command's dataclass

    def recipe(self) -> Recipe:
        """The recipes of --config, and what the words make of them."""
        return self.changed(load_recipes(self.options.config))

    def changed(self, recipe: Recipe) -> Recipe:
        """Returns a recipe, in plain values, with the keys that the words set. Sections merge."""
        check_sections(recipe)
        found = upon(parser_of(self.command), recipe, self.light, defaults=False).as_dict()
        keys = [field.name for field in fields(Settings) if field.name in found]
        changed: Recipe = json.loads(json.dumps({key: found[key] for key in keys}))
        return changed

    @property
    def light(self) -> list[str]:
        """The words without those about Lightning's own classes."""
        return [word for word in self.words if not _OF_A_CLASS.match(word)]


def upon(parser: Any, recipe: Recipe, words: Sequence[str], defaults: bool) -> Namespace:
    """Returns what the words make of a recipe, with or without what neither says."""
    below = parser.parse_object(recipe, defaults=defaults)
    found: Namespace = parser.parse_args(list(words), namespace=below, defaults=defaults)
    return found


def read(command: Command, words: Sequence[str]) -> Line:
    """Parses a command's words; raises UserError for the first that means nothing.

    Raises SystemExit after --help and --help-recipe.
    """
    if {"-h", "--help", "--help-recipe", "--help_recipe"} & set(words):
        print(help_of(command, recipe="--help" not in words and "-h" not in words), end="")
        raise SystemExit(0)
    parser = parser_of(command)
    parser.words = joined = _joined(words, parser)
    line = Line(command, tuple(joined))
    return replace(line, options=_options(parser, command, parser.parse_args(line.light)))


def _options(parser: Parser, command: Command, found: Namespace) -> Any:
    """The command's dataclass, of what was parsed; a ValueError of it becomes a UserError."""
    options = resolve_name(command.options)
    given = {word.partition("=")[0] for word in parser.words or ()}
    found[GIVEN] = [a.dest for a in parser._actions if given.intersection(a.option_strings)]
    values = {field.name: found[field.name] for field in fields(options)}
    for name, kind in typing.get_type_hints(options).items():
        if Place in (kind, *typing.get_args(kind)) and (value := values[name]):
            try:
                values[name] = (
                    at_home(value) if isinstance(value, str) else [at_home(v) for v in value]
                )
            except ValueError as error:
                said = str(error).removeprefix("Got value: ")
                raise UserError(f"{parser.name_of(name)} must be {PLACES}, not '{said}'") from None
    for field in fields(options):
        if _is_needed(field) and not values[field.name]:
            help_ = f"dualpath {command.name} --help"
            raise UserError(f"{command.name} needs {_usage(field)}; see {help_}")
    try:
        return options(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    except ValueError as error:  # whose first word is the field
        name, _, rest = str(error).partition(" ")
        raise UserError(f"{parser.name_of(name)} {rest}") from None


def _is_needed(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _option(field: Field[Any]) -> str:
    return str(field.metadata.get("option", f"--{field.name.replace('_', '-')}"))


def _usage(field: Field[Any]) -> str:
    shown = _METAVARS.get(field.name, field.name.upper())
    return shown if field.metadata.get("positional") else f"{_option(field)} {shown}"


def add_words(parser: Any, command: Command, texts: Mapping[str, str] = {}) -> None:
    """Adds a command's own options to a jsonargparse parser, those of mixins last.

    The field's type says how words become its value: a flag, a list of words, or one value. Its
    metadata may say more: `option` and `also` are names of the option, `alone` is the value of one
    that is given without, `positional` words have no option. `texts` are for help.
    """
    options = resolve_name(command.options)
    kinds, own = typing.get_type_hints(options), get_annotations(options)
    # Beside words without an option, a list takes one value each time, or it would take those too.
    beside = any(field.metadata.get("positional") for field in fields(options))
    each = {"action": "append"} if beside else {"nargs": "+", "action": "extend"}
    shown = [field for field in fields(options) if field.name != GIVEN]
    for field in sorted(shown, key=lambda field: field.name not in own):
        kind, metadata = kinds[field.name], field.metadata
        if type(None) in (parts := typing.get_args(kind)):  # said by no word, `null` is a text
            kind = typing.Union[tuple(part for part in parts if part is not type(None))]  # noqa: UP007
        default = None if _is_needed(field) else field.default
        how: dict[str, Any] = {"help": texts.get(field.name), "default": default}
        metavar = _METAVARS.get(field.name)
        is_list = typing.get_origin(kind) is tuple
        names = [_option(field), *metadata.get("also", ())]
        if metadata.get("positional"):
            names, how["nargs"] = [field.name], "*" if is_list else "?"
        elif kind is bool:
            how["action"] = "store_true"
        elif "alone" in metadata:
            how |= {"nargs": "?", "const": metadata["alone"]}
        elif is_list:
            how |= {"dest": field.name, "default": [], "metavar": metavar, **each}
        else:
            numbers = {int: "N", Size: "N", float: "X"}
            number = [numbers[k] for k in (kind, *typing.get_args(kind)) if k in numbers]
            how |= {"type": kind, "metavar": number[0] if number else metavar}
        parser.add_argument(*names, **how)


@cache
def parser_of(command: Command) -> Parser:
    parser = Parser(prog=f"dualpath {command.name}")
    add_words(parser, command)
    if command.needs != "nothing":
        parser.add_class_arguments(Settings, fail_untyped=False)
    return parser


def help_of(command: Command, recipe: bool = False) -> str:
    """The text of --help, or that of --help-recipe with all keys."""
    from docstring_parser import parse_from_object

    set_parsing_settings(docstring_parse_attribute_docstrings=True)  # slow, and for help alone
    options = resolve_name(command.options)
    needed = [f for f in fields(options) if _is_needed(f) or f.metadata.get("positional")]
    usage = " ".join(["%(prog)s", *map(_usage, needed), "[options]"])
    parser = Parser(prog=f"dualpath {command.name}", usage=usage, formatter_class=_Help)
    if recipe:
        parser.add_class_arguments(Settings, fail_untyped=False)
        return parser.format_help()
    parser.description = getdoc(options)
    bases = reversed(options.__mro__[:-1])
    found = [text for cls in bases for text in parse_from_object(cls).params]
    add_words(parser, command, {text.arg_name: text.description or "" for text in found})
    if command.needs != "nothing":
        text = "List the keys of the recipe, which --SECTION.KEY VALUE sets."
        parser.add_argument("--help-recipe", action="store_true", help=text)
    return parser.format_help()


class _Help(DefaultHelpFormatter):
    """Says no type, which the metavar shows, and no default that is none; examples stay as is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        paragraphs = text.split("\n\n")
        return "\n\n".join(p if p[:1] == " " else fill(p, width, indent) for p in paragraphs)

    def _get_help_string(self, action: Action) -> str:
        none = action.default in (None, False, [], (), {}, SUPPRESS)
        default = "" if none else " (default: %(default)s)"
        return f"{action.help or ''}{default}"


def _joined(words: Sequence[str], parser: OneLine) -> list[str]:
    """Writes options as the parser has them, and those of one value as `--option=value`.

    Dashes and underscores are one. A value may begin with a dash, such as -80M, but not with two.
    """
    options = {o.lstrip("-").replace("-", "_"): o for o in parser.options().values()}
    single = {
        o for action in parser._actions if action.nargs is None for o in action.option_strings
    }
    joined: list[str] = []
    queue = list(reversed(words))
    while queue:
        name, equals, value = queue.pop().partition("=")
        if name.startswith("-"):
            name = options.get(name.lstrip("-").replace("-", "_"), name)
            takes_one = name in single or (name.startswith("--") and "." in name)
            if takes_one and not equals and queue and not queue[-1].startswith("--"):
                equals, value = "=", queue.pop()
            if (takes_one and not equals) or (name.startswith("--") and value == "--"):
                raise UserError(f"{name} needs a value")
        joined.append(f"{name}{equals}{value}")
    return joined
