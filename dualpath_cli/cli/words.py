"""The words after a command: its own options, and keys of a recipe.

Each command has one parser, of jsonargparse: the fields of its dataclass are its options, and where
it has a recipe, `--SECTION.KEY VALUE` sets a key of that. LightningCLI's parser gets the same.
"""

import json
import re
import shutil
import typing
from argparse import SUPPRESS, Action
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from inspect import get_annotations
from textwrap import fill, wrap
from typing import Any

from jsonargparse import DefaultHelpFormatter, Namespace, set_parsing_settings

from dualpath_cli.cli.commands import SECTIONS, Command, resolve
from dualpath_cli.errors import UserError
from dualpath_cli.ranges import Size
from dualpath_cli.recipe.parser import OneLine, Parser
from dualpath_cli.recipe.recipes import Recipe, load_recipes
from dualpath_cli.recipe.settings import SECTIONS as KEYS
from dualpath_cli.recipe.settings import add_sections

_OF_A_CLASS = re.compile(
    r"--trainer\.((callbacks|plugins|profiler|logger|strategy)(\+|\.[\w.]+\+?)"
    r"|(callbacks|plugins|logger)(?==(?!null$)[^\[{])"
    r"|(profiler|strategy)(?==[\w.]+\.))"
)
"""Words about Lightning's own classes, which its parser alone can read."""

GIVEN = "given"  # A field with this name is no option: it holds the names of those that were given


@dataclass(frozen=True)
class Line:
    """A command line, parsed; a recipe's keys are checked where there is a recipe."""

    command: Command
    words: tuple[str, ...]
    options: Any  # the command's dataclass
    configs: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()  # after --ckpt-path
    print_config: bool = False

    def changed(self, recipe: Recipe) -> Recipe:
        """Returns a recipe, in plain values, with the keys that the words set. Sections merge."""
        found = upon(parser_of(self.command), recipe, self.light, defaults=False).as_dict()
        recipe = {key: found[key] for key in found if key in (*KEYS, "seed_everything")}
        changed: Recipe = json.loads(json.dumps(recipe))
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
    words = _joined(words, parser)
    parser.words = words
    line = Line(command, tuple(words), None)
    found = parser.parse_args(line.light)
    if any(field.name == GIVEN for field in fields(resolve(command.options))):
        found[GIVEN] = list(parser.parse_args(line.light, defaults=False).keys())
    options = options_of(command, found)
    if command.needs in ("nothing", "recipes"):
        return Line(command, tuple(words), options)
    configs, runs = tuple(found.config), tuple(found.ckpt_path)
    if command.needs == "recipe" and not configs and not any("--model." in w for w in words):
        raise UserError(
            f"{command.name} needs --config RECIPE: a path or a packaged name such as quickstart"
        )
    if command.needs == "run" and not runs:
        raise UserError(
            f"{command.name} needs --ckpt-path RUN: a run folder or a checkpoint inside one"
        )
    return Line(command, tuple(words), options, configs, runs, found.print_config)


def options_of(command: Command, found: Namespace) -> Any:
    """The command's dataclass, of what was parsed; a ValueError of it becomes a UserError."""
    options = resolve(command.options)
    values = {field.name: found[field.name] for field in fields(options)}
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    try:
        return options(**values)
    except ValueError as error:  # whose first word is the field
        name, _, rest = str(error).partition(" ")
        raise UserError(f"{parser_of(command).name_of(name)} {rest}") from None


def add_words(parser: Any, command: Command, texts: Mapping[str, str] = {}) -> None:
    """Adds a command's own options to a jsonargparse parser, those of mixins last.

    The field's type says how words become its value: a flag, a list of words, or one value. Its
    metadata may say more: `option` and `also` are names of the option, `alone` is the value of one
    that is given without, `positional` words have no option. `texts` are for help.
    """
    options = resolve(command.options)
    kinds, own = typing.get_type_hints(options), get_annotations(options)
    # Beside words without an option, a list takes one value each time, or it would take those too.
    beside = any(field.metadata.get("positional") for field in fields(options))
    each = {"action": "append"} if beside else {"nargs": "+", "action": "extend"}
    for field in sorted(fields(options), key=lambda field: field.name not in own):
        kind, metadata = kinds[field.name], field.metadata
        names = [metadata.get("option", f"--{field.name.replace('_', '-')}"),
                 *metadata.get("also", ())]  # fmt: skip
        if type(None) in (parts := typing.get_args(kind)):  # said by no word, `null` is a text
            kind = typing.Union[tuple(part for part in parts if part is not type(None))]  # noqa: UP007
        default = None if field.default is MISSING else field.default
        how: dict[str, Any] = {"help": texts.get(field.name), "default": default}
        is_list = typing.get_origin(kind) is tuple
        if field.name == GIVEN:
            continue
        if metadata.get("positional"):
            names, how["nargs"] = [field.name], "*" if is_list else "?"
        elif kind is bool:
            how["action"] = "store_true"
        elif "alone" in metadata:
            how |= {"nargs": "?", "const": metadata["alone"]}
        elif is_list:
            how |= {"dest": field.name, "default": [], **each}
        else:
            numbers = {int: "N", Size: "N", float: "X"}
            shown = [numbers[k] for k in (kind, *typing.get_args(kind)) if k in numbers]
            how |= {"type": kind, "metavar": shown[0] if shown else None}
        parser.add_argument(*names, **how)
    if command.needs in ("recipe", "run"):
        text = "Recipe: a path or the bare name of a packaged one. Repeated, later ones win."
        parser.add_argument("--config", "-c", action="append", default=[], help=text)
        text = (
            "One RUN: another run, or a checkpoint of one, whose weights to start from; or an "
            "older checkpoint of this run to go back to."
            if command.needs == "recipe"
            else "Run folder or checkpoint to score; its recipe, tokenizer and model are read from "
            "there." + ("" if command.combine else " One RUN.")
        )
        parser.add_argument("--ckpt-path", nargs="+", action="extend", default=[], help=text)
        text = "Print the resolved recipe and do nothing else."
        parser.add_argument("--print-config", action="store_true", help=text)


@cache
def parser_of(command: Command) -> Parser:
    parser = Parser(prog=f"dualpath {command.name}")
    add_words(parser, command)
    if command.needs != "nothing":
        add_sections(parser)
    return parser


def help_of(command: Command, recipe: bool = False) -> str:
    """The text of --help, or that of --help-recipe with all keys."""
    set_parsing_settings(docstring_parse_attribute_docstrings=True)  # slow, and for help alone
    width = max(shutil.get_terminal_size().columns - 2, 11)  # argparse's
    if recipe:
        parser = Parser(prog=f"dualpath {command.name}", usage=SECTIONS, formatter_class=_Help)
        add_sections(parser)
        return parser.format_help()
    begin = f"dualpath {command.name} "
    lines = wrap(command.usage, max(width - 7 - len(begin), 20), break_on_hyphens=False)
    options = resolve(command.options)
    parser = Parser(
        prog=f"dualpath {command.name}",
        usage=begin + ("\n" + " " * (7 + len(begin))).join(lines),
        description=_description(options, width),
        formatter_class=_Help,
    )
    add_words(parser, command, _texts(options))
    if command.needs in ("recipe", "run", "recipes"):
        text = "List the keys of the recipe, which --SECTION.KEY VALUE sets."
        parser.add_argument("--help-recipe", action="store_true", help=text)
    return parser.format_help()


class _Help(DefaultHelpFormatter):
    """Says no type, which the metavar shows, and no default that is none. Descriptions are raw."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text

    def _get_help_string(self, action: Action) -> str:
        none = action.default in (None, False, [], (), {}, SUPPRESS)
        default = "" if none else " (default: %(default)s)"
        return f"{action.help or ''}{default}"


def _description(options: type, width: int) -> str:
    """A class's docstring: paragraphs are filled, indented examples are not."""
    paragraphs = (options.__doc__ or "").replace("\n    ", "\n").strip().split("\n\n")
    return "\n\n".join(
        text
        if text.startswith("  ")
        else fill(text.replace("\n", " "), width, break_on_hyphens=False)
        for text in paragraphs
    )


def _texts(options: type) -> dict[str, str]:
    """The text under each field of a dataclass and of those that it inherits from."""
    from docstring_parser import parse_from_object  # slow, and only help needs it

    texts = {}
    for cls in reversed(options.__mro__[:-1]):
        for text in parse_from_object(cls).params:
            texts[text.arg_name] = " ".join((text.description or "").split())
    return texts


def _joined(words: Sequence[str], parser: OneLine) -> list[str]:
    """Writes options as the parser has them, and those of one value as `--option=value`.

    Dashes and underscores are one. A value may begin with a dash, such as -80M, but not with two.
    """
    options = {o.lstrip("-").replace("-", "_"): o for o in parser.options().values()}
    actions = {o: action for action in parser._actions for o in action.option_strings}
    joined: list[str] = []
    queue = list(reversed(words))
    while queue:
        word = queue.pop()
        name, equals, value = word.partition("=")
        option = options.get(name.lstrip("-").replace("-", "_")) if name.startswith("-") else None
        if option is None and not word.startswith("--"):
            joined.append(word)
            continue
        option = option or name
        nargs = getattr(actions.get(option), "nargs", None)
        takes_one = (option in actions and nargs is None) or "." in option
        if takes_one and not equals:
            if not queue or queue[-1].startswith("--"):
                raise UserError(f"{option} needs a value")
            equals, value = "=", queue.pop()
        if equals and value == "--":
            raise UserError(f"{option} needs a value")
        joined.append(f"{option}{equals}{value}")
    return joined


def recipe_of(line: Line) -> Recipe:
    """The recipes of --config, and what the words make of them."""
    return line.changed(load_recipes(line.configs or line.options.config))
