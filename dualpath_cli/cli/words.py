"""The words after a command: its own options, and keys of a recipe.

A command has one parser, of jsonargparse. The fields of its dataclass are its options,
and `--SECTION.KEY VALUE` sets a key of the recipe, if the command has one. Each word is
parsed once, over the recipe.
"""

import json
import os
import re
import sys
import typing
from argparse import SUPPRESS, Action
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache, reduce
from inspect import get_annotations, getdoc
from os.path import isfile
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from jsonargparse import ArgumentParser, DefaultHelpFormatter, set_parsing_settings

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.output import say
from dualpath_cli.base.processes import is_first_rank
from dualpath_cli.base.ranges import Place, Size, expand_home
from dualpath_cli.cli.commands import COMMANDS, Command
from dualpath_cli.recipe.parser import A_CLASS, CLASSES, Parser, choices_of
from dualpath_cli.recipe.recipes import Recipe, load, merge, parse
from dualpath_cli.recipe.recipes import names as recipe_names
from dualpath_cli.recipe.recipes import read as recipe_file
from dualpath_cli.recipe.settings import SECTIONS, Settings, check_sections

_METAVARS = {"ckpt_path": "RUN", "config": "RECIPE", "folder": "DIR", "vocab_size": "N"}
_BELOW_A_CLASS = re.compile(rf"--(trainer\.({'|'.join(CLASSES)}))\.")
_BELOW_A_SET = re.compile(r"--(data\.val\..+)\.(path|field)")
# A field with this name is no option: it holds the names of the given options
GIVEN = "given"


@dataclass(frozen=True)
class Line:
    """A parsed command line: the command's own options, and the resulting recipe."""

    options: Any  # the command's dataclass
    recipe: Recipe  # recipes with words over them; each key has the type in its section


@dataclass(frozen=True)
class Words:
    """The words after a command, with each option by its name in the parser."""

    command: Command
    words: tuple[str, ...]

    def places(self, *options: str) -> list[str]:
        """The paths given to an option, in order, before the words are parsed."""
        parts = (word.partition("=") for word in self.words)
        return [_place(name, value) for name, _, value in parts if name in options]

    @property
    def recipes(self) -> Recipe:
        """The recipes of --config, merged; later recipes win."""
        return reduce(merge, map(load, self.places("--config", "-c")), {})

    def upon(self, base: Recipe) -> Line:
        """Parses the words, once, over a recipe; raises UserError for the first
        mistake."""
        parser, command = parser_of(self.command), self.command
        if command.launch and len(self.places("--ckpt-path")) > 1:
            raise UserError(
                f"{command.name} takes one RUN; give the command for each of them"
            )
        check_sections(base)
        for name, _, value in (word.partition("=") for word in self.words):
            if key := _BELOW_A_CLASS.match(name):
                raise UserError(
                    f"{name}={value}: give --{key[1]} as a whole; {A_CLASS}"
                )
            if key := _BELOW_A_SET.fullmatch(name):
                form = "'{path: FILE, field: KEY}'"
                raise UserError(
                    f"{name}={value}: give the set as a whole: --{key[1]} {form}"
                )
        parser.words = self.words
        self._note_repeated(parser)
        found = parser.read(base, self.words).as_dict()
        recipe = {
            key: found[key] for key in (*SECTIONS, "seed_everything") if key in found
        }
        return Line(_options(parser, command, found), recipe)

    def _note_repeated(self, parser: Parser) -> None:
        """Says which value is taken where an option of one value is given another,
        too."""
        # A list takes each value, and mappings of a section are merged.
        one = [
            a
            for a in parser._actions
            if a.nargs is None and a.default not in ([], SUPPRESS)
        ]
        single = {option for action in one for option in action.option_strings}
        last: dict[str, str] = {}
        for name, _, value in (word.partition("=") for word in self.words):
            if (
                name in single
                and last.setdefault(name, value) != value
                and is_first_rank()
            ):
                text = f"note: {name} is given again: {value} replaces {last[name]}"
                say(text)
            last[name] = value

    def given(self, place: str, recipe: Recipe) -> set[str]:
        """The keys named by a recipe or the words, in a section or in a mapping inside
        one."""
        names: set[str] = set()
        for name, _, value in (word.partition("=") for word in self.words):
            if name.startswith(f"--{place}."):
                names.add(name.removeprefix(f"--{place}.").partition(".")[0])
            elif f"--{place}.".startswith(f"{name}."):  # the mapping, or its section
                keys = reversed(name[2:].split("."))
                own = reduce(lambda inner, key: {key: inner}, keys, parse(value, name))
                recipe = merge(recipe, own)
        for key in place.split("."):
            recipe = recipe.get(key) or {}
        return names | recipe.keys()


def read(command: Command, words: Sequence[str]) -> Words:
    """Reads a command's words, without types.

    Raises SystemExit after --help and --help-recipe.
    """
    parser, asked = (
        parser_of(command),
        {"--help", "--help-recipe", "--help_recipe"} & set(words),
    )
    if asked and "--help" not in asked and not command.has_recipe:
        raise UserError(
            f"{command.name} takes no keys of a recipe, which `dualpath fit "
            f"--help-recipe` lists; `dualpath {command.name} --help` lists the options"
        )
    joined = ["-h"] if asked else _joined(words, parser)  # here a value may be -h
    if "-h" in joined:
        text = help_of(command, recipe="--help" not in words and "-h" not in words)
        say(text, sys.stdout, end="")
        raise SystemExit(0)
    return Words(command, tuple(joined))


def complete() -> None:
    """Prints the completions of a shell's line, as argcomplete asks for them, and
    exits."""
    line = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])]
    words = line[: line.rfind(" ") + 1].split()[1:]  # without an unfinished last word
    first = 2 if " ".join(words[:2]) in COMMANDS else 1
    if command := COMMANDS.get(" ".join(words[:first])):
        # the number of words before the options
        os.environ["_ARGCOMPLETE"] = str(1 + first)
        parser = parser_of(command)
        for action in parser._actions:  # jsonargparse offers no values of a Literal
            action.choices = choices_of(getattr(action, "_typehint", None)) or None
            if action.dest == "config":
                completer = _recipes_or_files(
                    "data" if command.name == "prepare" else ""
                )
                action.completer = completer  # type: ignore[attr-defined]  # argcomplete reads it
        parser.parse_args([])
    choice = ArgumentParser()
    choice.add_argument(
        "command", choices=[name for name in COMMANDS if " " not in name]
    )
    choice.parse_args([])


def _recipes_or_files(kind: str) -> Callable[..., list[str]]:
    """argcomplete's completer of --config: packaged names of a kind, and files."""
    from argcomplete.completers import FilesCompleter

    return lambda prefix, **_: [*recipe_names(kind), *FilesCompleter()(prefix)]


def _options(parser: Parser, command: Command, found: Recipe) -> Any:
    """The command's dataclass from parsed values; its ValueError becomes a
    UserError."""
    options = resolve_name(command.options)
    given = {word.partition("=")[0] for word in parser.words or ()}
    found[GIVEN] = [
        a.dest for a in parser._actions if given.intersection(a.option_strings)
    ]
    values = {
        field.name: found[field.name]
        for field in fields(options)
        if field.name in found
    }
    for name, kind in typing.get_type_hints(options).items():
        if Place in (kind, *typing.get_args(kind)) and (value := values.get(name)):
            option, several = parser.name_of(name), isinstance(value, list)
            values[name] = (
                [_place(option, v) for v in value] if several else _place(option, value)
            )
    for field in fields(options):
        if _is_needed(field) and not values.get(field.name):
            help_ = f"dualpath {command.name} --help"
            raise UserError(f"{command.name} needs {_usage(field)}; see {help_}")
    try:
        return options(
            **{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        )
    except ValueError as error:  # the message begins with the field
        name, _, rest = str(error).partition(" ")
        raise UserError(f"{parser.name_of(name)} {rest}") from None


def _section_of(option: str, path: str) -> str:
    """A file's mapping as a value of a section's option, as Lightning's users give
    it."""
    content = recipe_file(Path(path))
    if SECTIONS.keys() & content.keys():
        raise UserError(
            f"{option} '{path}' holds sections of a recipe; --config {path} reads it"
        )
    return json.dumps(content)


def _place(option: str, value: str) -> str:
    try:
        return expand_home(value)
    except ValueError as error:
        raise UserError(f"{option} must be {error}") from None


def _is_needed(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _option(field: Field[Any]) -> str:
    return str(field.metadata.get("option", f"--{field.name.replace('_', '-')}"))


def _usage(field: Field[Any]) -> str:
    shown = _METAVARS.get(field.name, field.name.upper())
    return shown if field.metadata.get("positional") else f"{_option(field)} {shown}"


def add_words(parser: Any, command: Command, texts: Mapping[str, str] = {}) -> None:
    """Adds a command's own options to a jsonargparse parser: needed ones first, of
    mixins last.

    A field's type decides the form: a flag, a list of words, or one value. Its metadata
    may add: `option` and `also`, names of the option; `alone`, the value of an option
    given without one; `each`, for a list that takes one value each time; `positional`,
    for words without an option. `texts` are for help.
    """
    options = resolve_name(command.options)
    kinds, own = typing.get_type_hints(options), get_annotations(options)
    # Beside positional words a list takes one value each time, else it would take these
    # words, too.
    beside = any(field.metadata.get("positional") for field in fields(options))
    shown = [field for field in fields(options) if field.name != GIVEN]
    for field in sorted(
        shown, key=lambda field: (not _is_needed(field), field.name not in own)
    ):
        kind, metadata = kinds[field.name], field.metadata
        # no word means None: `null` is text
        if type(None) in (parts := typing.get_args(kind)):
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
        elif is_list:
            once = {"action": "append"}
            each = (
                once
                if beside or "each" in metadata
                else {"nargs": "+", "action": "extend"}
            )
            how |= {"dest": field.name, "default": [], "metavar": metavar, **each}
        else:
            numbers = {int: "N", Size: "N", float: "X"}
            number = [
                numbers[k] for k in (kind, *typing.get_args(kind)) if k in numbers
            ]
            how["type"] = kind
            metavar = number[0] if number else metavar
            how |= {"metavar": metavar} if metavar else {}  # else jsonargparse's
        parser.add_argument(*names, **how)


@cache
def parser_of(command: Command) -> Parser:
    parser = Parser(prog=f"dualpath {command.name}")
    add_words(parser, command)
    if command.has_recipe:
        parser.add_class_arguments(Settings, fail_untyped=False)
    parser.plain = _plain(command)
    return parser


def _plain(command: Command) -> str:
    """The option for which users give a word without an option, such as a RUN or a
    recipe."""
    own = {field.name: field for field in fields(resolve_name(command.options))}
    if any(field.metadata.get("positional") for field in own.values()):
        return ""
    usual = [
        own[n]
        for n in ("ckpt_path", "sources", "source", "config", "pretrained")
        if n in own
    ]
    usual.sort(key=lambda field: not _is_needed(field))
    return _option(usual[0]) if usual else ""


@contextmanager
def _with_docstrings() -> Iterator[None]:
    """Lets jsonargparse read the docstrings of fields, which is slow and only for
    help."""
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    try:
        yield
    finally:
        set_parsing_settings(docstring_parse_attribute_docstrings=False)


@_with_docstrings()
def help_of(command: Command, recipe: bool = False) -> str:
    """The text of --help, or, with all keys, of --help-recipe."""
    from docstring_parser import parse_from_object

    options = resolve_name(command.options)
    needed = [
        f for f in fields(options) if _is_needed(f) or f.metadata.get("positional")
    ]
    usage = " ".join(["%(prog)s", *map(_usage, needed), "[options]"])
    parser = Parser(prog=f"dualpath {command.name}", usage=usage, formatter_class=_Help)
    if recipe:
        parser.add_class_arguments(Settings, fail_untyped=False)
        return parser.format_help()
    parser.description = getdoc(options)
    bases = reversed(options.__mro__[:-1])
    found = [text for cls in bases for text in parse_from_object(cls).params]
    add_words(
        parser, command, {text.arg_name: text.description or "" for text in found}
    )
    if command.has_recipe:
        text = "List the keys of the recipe; --SECTION.KEY VALUE sets a key."
        parser.add_argument("--help-recipe", action="store_true", help=text)
    return parser.format_help()


class _Help(DefaultHelpFormatter):
    """Shows choices and defaults, but no types: the metavar has the type; keeps
    examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        paragraphs = text.split("\n\n")
        return "\n\n".join(
            p if p[:1] == " " else fill(p, width, indent) for p in paragraphs
        )

    def _format_action_invocation(self, action: Action) -> str:
        # jsonargparse adds `--NAME+`, which appends to a list, as a second name.
        shown = copy(action)
        shown.option_strings = [
            name for name in action.option_strings if name[-1] != "+"
        ]
        return super()._format_action_invocation(shown)

    def _get_help_string(self, action: Action) -> str:
        kind, said = getattr(action, "_typehint", None), []
        if typing.get_origin(kind) is not typing.Literal and len(choices_of(kind)) > 1:
            choices = dict.fromkeys(choices_of(kind))  # a Literal's are in the metavar
            said.append(f"choices: {', '.join(choices)}")
        if action.nargs != 0 and (default := action.default) not in (
            None,
            [],
            (),
            {},
            SUPPRESS,
        ):
            shown = default if isinstance(default, str) else json.dumps(default)
            said.append("default: " + shown.replace("%", "%%"))
        more = f" ({'; '.join(said)})" if said else ""
        return f"{action.help or ''}{more}"


def _joined(words: Sequence[str], parser: Parser) -> list[str]:
    """Writes options by their names in the parser, with a single value as
    `--option=value`.

    Dashes and underscores are the same. A value may begin with one dash, such as -80M,
    but not with two. A section is a mapping or, as in Lightning, the path of a file
    with one.
    """
    options = {o.lstrip("-").replace("-", "_"): o for o in parser.options().values()}
    counts = {
        o: action.nargs for action in parser._actions for o in action.option_strings
    }
    joined: list[str] = []
    queue = list(reversed(words))
    while queue:
        word = queue.pop()
        if word[:2] in counts and word[2:3] not in ("", "="):
            word = f"{word[:2]}={word[2:]}"  # -cNAME
        name, equals, value = word.partition("=")
        if name.startswith("-"):
            name = options.get(name.lstrip("-").replace("-", "_"), name)
            takes_one = counts.get(name, 0) is None or (
                name.startswith("--") and "." in name
            )
            if takes_one and not equals and queue and not queue[-1].startswith("--"):
                equals, value = "=", queue.pop()
            if (
                counts.get(name) == "+"
                and not equals
                and re.match("-[^-]", "".join(queue[-1:]))
            ):
                equals, value = "=", queue.pop()
                # for the option's values
                queue += [name] if queue and queue[-1][:1] != "-" else []
            if (takes_one and not equals) or (name.startswith("--") and value == "--"):
                raise UserError(f"{name} needs a value")
            if name[2:] in SECTIONS and "run.name" in options and isfile(value):
                value = _section_of(name, value)
        joined.append(f"{name}{equals}{value}")
    return joined
