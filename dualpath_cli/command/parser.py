"""argparse for a command's options, with mistakes of one line; imports nothing slow."""

import argparse
import os
import re
import shutil
import textwrap
from typing import Any, NoReturn

from dualpath_cli.command.records import Command, resolve
from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.own_classes import consent


class OneLineParser(argparse.ArgumentParser):
    """argparse whose errors are UserErrors.

    Options are added with hyphens, and may be written with underscores as well.
    """

    def __init__(self, **options: Any) -> None:
        # Abbreviations are none: a mistyped option must not pass for another one.
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raises what argparse found; of an option without its value, what that would be."""
        message = message.removeprefix("argument ")
        if found := re.fullmatch(r"(--[\w-]+)\S*: expected .*argument", message):
            (value,) = {a.metavar for a in self._actions if found[1] in a.option_strings}
            message = f"{found[1]} needs {value or 'a value'}; see --help"
        elif found := re.fullmatch(r"(--[\w-]+)\S*: invalid (\w+) value: (.*)", message):
            wanted = "one whole number" if found[2] == "int" else "one number"
            message = f"{found[1]} must be {wanted}, not {found[3]}"
        raise UserError(message)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses words that are all options of its own; a UserError for another."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            raise UserError(unknown_word(unknown[0], options_of(self)))
        return options

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Writes options with hyphens, and refuses `--option=--`, for argparse no value at all."""
        known, words = options_of(self).values(), []
        for word in args:
            option, equals, value = word.partition("=")
            if value == "--" and option.startswith("--"):
                raise UserError(f"{option} needs a value")
            hyphens = option.replace("_", "-")
            words.append(f"{hyphens}{equals}{value}" if hyphens in known else word)
        return super().parse_known_args(words, namespace)

    def format_help(self) -> str:
        """Breaks a given usage into lines, between brackets, as argparse does with its own."""
        given, begin = self.usage, f"usage: {self.prog} "
        if given is not None:
            whole = re.sub(r"\[[^]]*\]", lambda group: group[0].replace(" ", "\0"), given)
            room = shutil.get_terminal_size().columns - 2
            lines = textwrap.wrap(
                whole, max(room - len(begin), 20), break_long_words=False, break_on_hyphens=False
            )
            indent = "\n" + " " * len(begin)
            self.usage = f"{self.prog} {indent.join(lines)}".replace("\0", " ").rstrip()
        try:
            return super().format_help()
        finally:
            self.usage = given


def parser_of(command: Command) -> OneLineParser:
    """Returns a parser of a command's options; the keys of a recipe are not among them."""
    width = max(shutil.get_terminal_size().columns - 2, 11)  # argparse's
    parser = OneLineParser(
        prog=f"dualpath {command.name}",
        usage=command.usage,
        description=textwrap.fill(command.description or command.purpose, width),
        epilog="\n  ".join(["examples:", *command.examples]) if command.examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,  # an example is one line
    )
    add_options(command, parser)
    if command.needs == "nothing":
        return parser
    parser.add_argument(
        "--config", "-c", action="append", default=[], metavar="RECIPE",
        help="Recipe: a path or the bare name of a packaged one. Repeated, later ones win.",
    )  # fmt: skip
    one = (
        "One RUN: another run, or a checkpoint of one, whose weights to start from; or an older "
        "checkpoint of this run to go back to."
    )
    scored = (
        "Run folder or checkpoint to score; its recipe, tokenizer and model are read from there."
    )
    scored = scored if command.combine else f"One RUN: {scored[0].lower()}{scored[1:]}"
    parser.add_argument(
        "--ckpt-path", nargs="+", action="extend", default=[], metavar="RUN",
        help=one if command.needs == "recipe" else scored,
    )  # fmt: skip
    parser.add_argument(
        "--print-config", action="store_true", help="Print the resolved recipe and do nothing else."
    )
    parser.add_argument(
        "--help-recipe", action="store_true",
        help="List the keys of the recipe, which --SECTION.KEY VALUE sets.",
    )  # fmt: skip
    return parser


def add_options(command: Command, parser: Any) -> None:
    """Adds the options that are the command's own to an argparse or a jsonargparse parser."""
    if command.add_arguments is not None:
        resolve(command.add_arguments)(parser)
    if command.reads_models:
        parser.add_argument(
            consent.OPTION, action="store_true",
            help="Import the Python class that a run or folder names as its model's gate or "
            "combination. This runs the class's code: for runs that you trust.",
        )  # fmt: skip


def answer(command: Command, options: Any) -> str | None:
    """Runs a command that needs nothing; returns the text to print, if there is any."""
    consent.agree({}, to_all=not command.reads_models or options.own_classes)
    text: str | None = resolve(command.run)(options)
    return text


def options_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Every option of a parser, by its name without hyphens before it.

    argparse lists them nowhere in public: `tests/command/options.txt` tells if this changes.
    """
    options = [option for action in parser._actions for option in action.option_strings]
    return {option.lstrip("-"): option for option in options}


def unknown_word(word: str, options: dict[str, str]) -> str:
    """Says that a word means nothing; `options` are those there are, by what they are called.

    Of `--model.loop` the last part alone is compared: a key is more often put into the wrong
    section than mistyped. A word without an option gets the one that it is likely for.
    """
    option = word.partition("=")[0]
    if not option.startswith("-"):
        from dualpath_cli.recipe import recipes  # imports YAML

        kind = "" if "ckpt-path" in options else "data"
        if "config" in options and (word.endswith(".yaml") or word in recipes.names(kind)):
            way_out = f"did you mean '--config {word}'?"
        elif "ckpt-path" in options and (os.path.isdir(word) or word.endswith(".safetensors")):
            way_out = f"did you mean '--ckpt-path {word}'?"
        else:
            way_out = "every value follows its option: see --help"
        return f"unexpected argument '{word}'; {way_out}"
    # The first of a name counts: a command's own option before a key of the recipe.
    called = {name.replace("_", "-"): shown for name, shown in reversed(options.items())}
    section, _, name = option.lstrip("-").rpartition(".")
    keys = any("." in shown for shown in options.values())
    help_ = "--help-recipe" if section and keys else "--help"
    hint = did_you_mean(name.replace("_", "-"), called, called) or f"; {help_} lists what there is"
    return f"unknown option '{option}'{hint}"
