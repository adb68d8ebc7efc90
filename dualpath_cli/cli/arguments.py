"""The arguments after a command: its own options, and keys of a recipe.

Arguments are first written in one form, each option by its name in the parser, without
types (`read_arguments`). This names the recipes of --config. Then all arguments are
parsed over the recipe, once (`Arguments.over`).
"""

import json
import re
import sys
from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from os.path import isfile
from pathlib import Path
from typing import Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.output import say
from dualpath_cli.base.processes import is_first_rank
from dualpath_cli.cli.commands import Command
from dualpath_cli.cli.help import help_of
from dualpath_cli.cli.options import build_options, parser_of, path_at_home
from dualpath_cli.recipe.internals import actions_of
from dualpath_cli.recipe.parser import A_CLASS, CLASSES, Parser
from dualpath_cli.recipe.recipes import (
    Recipe,
    load_recipe,
    merge,
    nested,
    parse_recipe,
    read_recipe_file,
)
from dualpath_cli.recipe.settings import SECTIONS, check_sections

_BELOW_A_CLASS = re.compile(rf"--(trainer\.({'|'.join(CLASSES)}))\.")
_BELOW_A_SET = re.compile(r"--(data\.val\..+)\.(path|field)")


@dataclass(frozen=True)
class CommandLine:
    """A parsed command line: the command's own options, and the resulting recipe."""

    options: Any  # the command's dataclass
    # recipes with arguments over them; each key has the type in its section
    recipe: Recipe


@dataclass(frozen=True)
class Arguments:
    """The arguments after a command, each option by its name in the parser."""

    command: Command
    texts: tuple[str, ...]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Each argument as an option and its value, which is empty without `=`."""
        parts = (text.partition("=") for text in self.texts)
        return [(option, value) for option, _, value in parts]

    def paths(self, *options: str) -> list[str]:
        """The paths given to an option, in order, before the arguments are parsed."""
        return [
            path_at_home(option, value)
            for option, value in self.pairs
            if option in options
        ]

    @property
    def recipes(self) -> Recipe:
        """The recipes of --config, merged; later recipes win. Notes a recipe that
        changes no key of the others."""
        paths = self.paths("--config", "-c")
        read = [load_recipe(path) for path in paths]
        nothing: Recipe = {}
        merged = reduce(merge, read, nothing)

        for place, path in enumerate(paths):
            others = [*read[:place], *read[place + 1 :]]
            is_idle = bool(others) and reduce(merge, others, nothing) == merged
            if is_idle and is_first_rank():
                say(
                    f"note: --config {path} changes no key: the other recipes set all "
                    "of its keys; an overlay comes after its model"
                )
        return merged

    def over(self, base: Recipe) -> CommandLine:
        """Parses the arguments, once, over a recipe; raises UserError for the first
        mistake."""
        command = self.command
        if command.launch and len(self.paths("--ckpt-path")) > 1:
            raise UserError(
                f"{command.name} takes one RUN; run the command once for each"
            )
        check_sections(base)
        parser = parser_of(command)
        for option, value in self.pairs:
            _check_whole(option, value, parser)
            # A list is appended to that of the recipe, or to the default one.
            key = option.strip("-+")
            if option.endswith("+") and key in parser.options():
                default = parser.get_default(key)
                if isinstance(default, list):
                    base = merge(nested(key, default), base)

        self._note_repeated(parser)
        parsed = parser.read(base, self.texts).as_dict()

        options = build_options(parser, command, parsed)
        recipe = {}
        for key in (*SECTIONS, "seed_everything"):
            if key in parsed:
                recipe[key] = parsed[key]
        return CommandLine(options, recipe)

    def _note_repeated(self, parser: Parser) -> None:
        """Says which value counts if an option that takes one value is given
        several."""
        # A list takes each value, and mappings of a section are merged.
        takes_one = {
            option: action.dest
            for action in actions_of(parser)
            if action.nargs is None and action.default not in ([], SUPPRESS)
            for option in action.option_strings
            if not option.endswith("+")
        }
        last: dict[str, tuple[str, str]] = {}
        for option, value in self.pairs:
            if option not in takes_one:
                continue
            key = takes_one[option]
            name, before = last.get(key, (option, value))
            if value != before and is_first_rank():
                note = f"{option} is given twice: {value} replaces {before}"
                if name != option:
                    note = f"{option} {value} replaces {name} {before}"
                say(f"note: {note}")
            last[key] = option, value

    def keys_named(self, place: str, recipe: Recipe) -> set[str]:
        """The keys that a recipe or the arguments name in a section, or in a mapping
        inside one; `place` is such as `model` or `data.val`."""
        start = f"--{place}."
        names: set[str] = set()
        for option, value in self.pairs:
            is_key = option.startswith(start)  # --data.val.NAME
            holds_place = start.startswith(f"{option}.")  # --data.val, or --data
            if is_key:
                names.add(option.removeprefix(start))
            elif holds_place:
                written = parse_recipe(value, option)
                recipe = merge(recipe, nested(option.removeprefix("--"), written))

        for key in place.split("."):
            recipe = recipe.get(key) or {}
        return names | recipe.keys()


def _check_whole(option: str, value: str, parser: Parser) -> None:
    """Refuses a part of a value that is given as a whole: of a class, of a validation
    set, of a list."""
    below_class = _BELOW_A_CLASS.match(option)
    if below_class:
        raise UserError(
            f"{option}={value}: only the complete --{below_class[1]} can be set; "
            f"{A_CLASS}"
        )
    below_set = _BELOW_A_SET.fullmatch(option)
    if below_set:
        raise UserError(
            f"{option}={value}: give path and field together: --{below_set[1]} "
            "'{path: FILE, field: KEY}'"
        )
    # jsonargparse would take `--optim.betas.0=0.8` for the list [0, 0.8].
    name = option.removeprefix("--")
    if option.startswith("--") and name not in parser.options():
        whole = parser.whole_of(name)
        if whole:
            raise UserError(f"{option}={value}: {whole}")


def read_arguments(command: Command, given: Sequence[str]) -> Arguments:
    """Reads a command's arguments, without types.

    Raises SystemExit after --help and --help-recipe.
    """
    asked = {"--help", "--help-recipe", "--help_recipe"}.intersection(given)
    if asked and "--help" not in asked and not command.has_recipe:
        raise UserError(
            f"{command.name} takes no keys of a recipe, which `dualpath fit "
            f"--help-recipe` lists; `dualpath {command.name} --help` lists the options"
        )

    # Where --help is asked for, no option lacks its value.
    texts = ["-h"] if asked else join_values(given, parser_of(command))
    if "-h" in texts:  # a value that is -h has been joined to its option
        of_recipe = "--help" not in given and "-h" not in given
        say(help_of(command, recipe=of_recipe), sys.stdout, end="")
        raise SystemExit(0)
    return Arguments(command, tuple(texts))


def join_values(given: Sequence[str], parser: Parser) -> list[str]:
    """Writes options by their names in the parser, each value as `--option=value`; an
    option with several values is written once for each.

    Dashes and underscores are the same. A value may begin with one dash, such as -80M,
    but not with two. A section is a mapping or, as in Lightning, the path of a file
    with one.
    """
    options = parser.options()
    names = {name.replace("-", "_"): option for name, option in options.items()}
    nargs = {
        option: action.nargs
        for action in actions_of(parser)
        for option in action.option_strings
    }
    joined: list[str] = []
    rest = [*reversed(given)]  # the next argument is the last one
    while rest:
        argument = rest.pop()
        short = argument[:2]
        has_value = short in nargs and argument[2:3] not in ("", "=")  # -cNAME
        is_long = _name_in_parser(argument.partition("=")[0], names) in nargs  # -config
        if has_value and not is_long:
            argument = f"{short}={argument[2:]}"
        if argument.startswith("-"):
            joined += _with_values(argument, rest, names, nargs)
        else:
            joined.append(argument)

    # argparse takes values without an option only in one row.
    has_positional = any(not action.option_strings for action in actions_of(parser))
    if has_positional:
        joined.sort(key=lambda argument: argument.startswith("-"))
    return joined


def _with_values(
    argument: str, rest: list[str], names: Mapping[str, str], nargs: Mapping[str, Any]
) -> list[str]:
    """An option with each of its values, which are taken from the arguments that
    follow; by itself if it takes none.

    `names` are the parser's, by the name with _ for - and without leading dashes;
    `nargs` are argparse's numbers of values.
    """
    written, equals, text = argument.partition("=")
    option = _name_in_parser(written, names)

    # An entry of a mapping in the recipe is no option of the parser.
    is_long = option.startswith("--")
    is_entry = is_long and "." in option
    number = nargs.get(option, 0)
    takes_many = number == "+"
    takes_value = is_entry or takes_many or number is None

    values = [text] if equals else []
    is_followed = bool(rest) and not rest[-1].startswith("--")
    if takes_value and is_followed and not equals:
        values.append(rest.pop())
        while takes_many and rest and not rest[-1].startswith("-"):
            values.append(rest.pop())

    # An unknown key is refused as such, with or without a value.
    is_known = ".".join(option.split(".")[:2]) in nargs
    lacks_value = takes_value and is_known and not values
    if lacks_value or (is_long and "--" in values):  # argparse drops `--`
        raise UserError(f"{option} needs a value")
    if not values:
        return [option]

    has_recipe = "run.name" in names
    is_section = has_recipe and option.removeprefix("--") in SECTIONS
    if is_section and isfile(values[0]):
        values = [_section_in_file(option, values[0])]
    return [f"{option}={value}" for value in values]


def _name_in_parser(written: str, names: Mapping[str, str]) -> str:
    """An option by its name in the parser, if it has one there.

    A dash is an underscore, but not in the name of a mapping's entry.
    """
    section, dot, below = written.partition(".")
    key, *entry = below.split(".")
    name = f"{section}{dot}{key}".lstrip("-").replace("-", "_")
    return ".".join([names[name], *entry]) if name in names else written


def _section_in_file(option: str, path: str) -> str:
    """A file's mapping as a value of a section's option, as Lightning's users give
    it."""
    content = read_recipe_file(Path(path))
    if SECTIONS.keys() & content.keys():
        raise UserError(
            f"{option} '{path}' holds sections of a recipe; --config {path} reads it"
        )
    return json.dumps(content)
