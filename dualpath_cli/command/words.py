"""The words after a command that takes a recipe or a RUN: options, and keys of the recipe.

`--SECTION.KEY VALUE` sets a key of the recipe, and `--data.val.NAME PATH` an entry of one; all
other options are argparse's.
"""

import dataclasses
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dualpath_cli.command.parser import OneLineParser, options_of, parser_of, unknown_word
from dualpath_cli.command.records import SECTION_WORDS, Command
from dualpath_cli.errors import UserError
from dualpath_cli.recipe import recipes
from dualpath_cli.recipe.keys import documented
from dualpath_cli.recipe.recipes import Recipe
from dualpath_cli.recipe.settings import DECIDED_ELSEWHERE, SECTIONS
from dualpath_cli.recipe.validation import OTHER_NAMES

SEED = "seed_everything"
"""The one key of a recipe that is in no section."""


@dataclass(frozen=True)
class CommandLine:
    """A command line, parsed."""

    configs: list[str]
    runs: list[str]
    """After --ckpt-path."""
    keys: list[tuple[list[str], Any]]
    """Paths into the recipe, and the values to put there."""
    options: dict[str, Any]
    """The command's own."""
    print_config: bool

    def changed(self, recipe: Recipe) -> Recipe:
        """Returns a recipe with the keys that the words set."""
        recipe = recipes.merge({}, recipe)
        for path, value in self.keys:
            place = recipe
            for key in path[:-1]:
                below = place.get(key)
                place[key] = dict(below) if isinstance(below, dict) else {}
                place = place[key]
            place[path[-1]] = value
        return recipe


def read(command: Command, words: Sequence[str]) -> CommandLine:
    """Splits a command's words; raises UserError for the first that means nothing.

    Raises SystemExit after --help and --help-recipe.
    """
    parser = parser_of(command)
    if {"-h", "--help"} & set(words):
        parser.print_help()
        raise SystemExit(0)
    keys, rest = _split(words)
    namespace, unknown = parser.parse_known_args(rest)
    options = vars(namespace)
    if options.pop("help_recipe"):
        _parser_of_sections(command).print_help()
        raise SystemExit(0)
    if unknown:
        raise UserError(unknown_word(unknown[0], options_of(parser) | _keys()))
    line = CommandLine(
        options.pop("config"), options.pop("ckpt_path"), [], options, options.pop("print_config")
    )
    if command.needs == "recipe" and not line.configs and not any(k[0] == "model" for k, _ in keys):
        raise UserError(
            f"{command.name} needs --config RECIPE: a path or a packaged name such as quickstart"
        )
    if command.needs == "run" and not line.runs:
        raise UserError(
            f"{command.name} needs --ckpt-path RUN: a run folder or a checkpoint inside one"
        )
    line.keys.extend((path, _value(path, text)) for path, text in keys)
    return line


def _split(words: Sequence[str]) -> tuple[list[tuple[list[str], str]], list[str]]:
    """Takes `--SECTION.KEY VALUE` and `--seed_everything VALUE` out; the other words are left."""
    keys, rest = [], []
    queue = iter(words)
    for word in queue:
        name, equals, text = word.partition("=")
        path = name.removeprefix("--").split(".")
        path = [SEED] if path == [SEED.replace("_", "-")] else path
        if name.startswith("--") and path[0] in (*SECTIONS, SEED):
            if not equals:
                text = next(queue, "--")
                if text.startswith("--"):
                    raise UserError(f"{name} needs a value")
            keys.append((path, text))
        else:
            rest.append(word)
    return keys, rest


def _value(path: Sequence[str], text: str) -> Any:
    """A value as a recipe has it: text where the key wants text, else read as YAML.

    Raises UserError for an unknown key, and for a section that is no mapping.
    """
    section = path[0]
    if len(path) == 1 and section != SEED:
        value = recipes.parse_value(text)
        if isinstance(value, dict):
            return value
        raise UserError(
            f"{section} must be a mapping, not '{text}'; set --{section}.KEY VALUE instead"
        )
    annotation: Any = int
    if section != SEED:
        hints = typing.get_type_hints(SECTIONS[section])
        if section == "trainer" and path[1] in DECIDED_ELSEWHERE:
            return text  # refused with all other keys of the recipe
        if path[1] not in hints:
            raise UserError(unknown_word("--" + ".".join(path), _keys()))
        annotation = hints[path[1]]
    if len(path) == 3 and typing.get_origin(annotation) is dict:
        annotation = typing.get_args(annotation)[1]
    wants_text = annotation is str or (annotation == str | None and text != "null")
    return text if wants_text else recipes.parse_value(text)


def _keys() -> dict[str, str]:
    """The keys of a recipe as options, by their last part, and by other tools' names."""
    keys = {name: f"--{key}" for name, key in OTHER_NAMES.items()}
    for name, section in SECTIONS.items():
        keys |= {field.name: f"--{name}.{field.name}" for field in dataclasses.fields(section)}
    return keys


def _parser_of_sections(command: Command) -> OneLineParser:
    """The parser of --help-recipe, with all keys."""
    parser = OneLineParser(
        prog=f"dualpath {command.name}", usage=SECTION_WORDS, add_help=False,
        description="Keys of the recipe: an option sets one, as the recipe's file would.",
    )  # fmt: skip
    groups: dict[str, Any] = {"": parser}
    for key in documented():
        if key.section not in groups:
            groups[key.section] = parser.add_argument_group(f"{key.section} of the recipe")
        text = f"{key.sentence} ({key.kind}; default: {key.default})".replace("%", "%%")
        name = ".".join(filter(None, key[:2]))
        groups[key.section].add_argument(f"--{name}", metavar="VALUE", help=text)
    return parser
