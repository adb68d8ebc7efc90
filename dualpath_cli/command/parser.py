"""argparse for a command's options, with mistakes of one line; imports nothing slow."""

import argparse
import difflib
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from dualpath_cli.command.records import Command, resolve
from dualpath_cli.errors import UserError
from dualpath_cli.own_classes import consent


class OneLineParser(argparse.ArgumentParser):
    """argparse whose errors are UserErrors."""

    def error(self, message: str) -> NoReturn:
        """Raises what argparse found."""
        raise UserError(message.removeprefix("argument "))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuses `--option=--` first, which argparse takes for no value at all."""
        for word in args:
            option, _, value = word.partition("=")
            if value == "--" and option.startswith("--"):
                raise UserError(f"{option} needs a value")
        return super().parse_known_args(args, namespace)


def parser_of(command: Command) -> OneLineParser:
    """Returns a parser of a command's options; the keys of a recipe are not among them."""
    width = shutil.get_terminal_size().columns - 2  # argparse's
    parser = OneLineParser(
        prog=f"dualpath {command.name}",
        usage=f"dualpath {command.name} {command.usage}",
        description=textwrap.fill(command.description or command.purpose, width),
        epilog="\n  ".join(["examples:", *command.examples]) if command.examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,  # an example is one line
        allow_abbrev=False,  # a mistyped option must not pass for another one
    )
    add_options(command, parser)
    if command.needs == "nothing":
        return parser
    parser.add_argument(
        "--config", "-c", action="append", default=[], metavar="RECIPE",
        help="Recipe: a path or the bare name of a packaged one. Repeated, later ones win.",
    )  # fmt: skip
    one = (
        "Another run, or a checkpoint of one, whose weights to start from; or an older checkpoint "
        "of this run to go back to."
    )
    several = (
        "Run folder or checkpoint to score; its recipe, tokenizer and model are read from there."
    )
    parser.add_argument(
        "--ckpt_path", nargs="+", action="extend", default=[], metavar="RUN",
        help=one if command.needs == "recipe" else several,
    )  # fmt: skip
    parser.add_argument(
        "--print_config", action="store_true", help="Print the resolved recipe and do nothing else."
    )
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


def parse(parser: OneLineParser, words: Sequence[str]) -> argparse.Namespace:
    """Parses words that are all a command's own; a UserError for another names the nearest."""
    namespace, unknown = parser.parse_known_args(words)
    if unknown:
        raise UserError(unknown_word(unknown[0], options_of(parser)))
    return namespace


def options_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Every option of a parser, by its name without hyphens before it.

    argparse lists them nowhere in public: `tests/command/options.txt` tells if this changes.
    """
    options = [option for action in parser._actions for option in action.option_strings]
    return {option.lstrip("-"): option for option in options}


def unknown_word(word: str, options: Mapping[str, str]) -> str:
    """Says that a word means nothing; `options` are those there are, by what they are called.

    Of `--model.loop` the last part alone is compared: a key is more often put into the wrong
    section than mistyped.
    """
    option = word.partition("=")[0]
    if not option.startswith("-"):
        return f"unexpected argument '{word}'; every value follows its option: see --help"
    near = difflib.get_close_matches(option.lstrip("-").rpartition(".")[2], options, n=1)
    hint = f"; did you mean '{options[near[0]]}'?" if near else "; --help lists what there is"
    return f"unknown option '{option}'{hint}"
