"""From the words after `fit` or `validate` to a checked launch, before anything slow is imported.

1. every `--config` is found, its bases resolved, and all are merged in their order;
2. for `validate --ckpt_path RUN` the run's own recipe comes first;
3. keys, types, data folder, tokenizer, validation sets and checkpoint are checked;
4. what remains, LightningCLI gets as one resolved recipe.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualpath_cli import recipes
from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.text.documents import Source, source_files
from dualpath_cli.text.manifest import MANIFEST, Manifest
from dualpath_cli.training import run_folder
from dualpath_cli.training.arguments import (
    OneLineParser,
    Settings,
    add_sections,
    check_keys,
    settings_from,
)
from dualpath_cli.training.settings import STRATEGIES

DESCRIPTIONS = {
    "fit": "Trains a model from a recipe; the same command continues an interrupted run.",
    "validate": "Scores a run's model on its validation sets, or on others given by --data.val.",
}


@dataclass(frozen=True)
class Launch:
    """What LightningCLI is started with."""

    command: str
    recipe: recipes.Recipe
    """The resolved recipe, all defaults filled in."""
    settings: Settings
    run_folder: Path
    checkpoint: Path | None
    """Where to continue from (fit), or what to score (validate)."""
    manifest: Manifest | None
    """Of the training data; None for validate."""

    @property
    def arguments(self) -> list[str]:
        """The command line for LightningCLI."""
        return [self.command, "--config", json.dumps(self.recipe)]


def build_parser(command: str) -> OneLineParser:
    """The quick parser: the recipe's own sections checked, Lightning's `trainer` passed on."""
    parser = OneLineParser(
        prog=f"dualpath {command}",
        usage=f"dualpath {command} [--config RECIPE] [--ckpt_path RUN] [--SECTION.KEY VALUE ...]",
        description=DESCRIPTIONS[command],
        allow_abbrev=False,
    )
    parser.add_argument(
        "-c",
        "--config",
        action="config",
        help="Recipe: a path or the bare name of a packaged one. Repeated, later ones win.",
    )
    what = (
        "Run folder or checkpoint to score; its recipe, tokenizer and model are read from there."
        if command == "validate"
        else "Run folder or checkpoint to start from, instead of this run's own newest one."
    )
    parser.add_argument("--ckpt_path", type=str | None, default=None, metavar="RUN", help=what)
    parser.add_argument(
        "--seed_everything", type=int, default=0, help="Seed of the weights and of the data order."
    )
    add_sections(parser)
    parser.add_argument(
        "--trainer",
        type=dict[str, Any],
        default={},
        help="Arguments of lightning.Trainer, as --trainer.KEY VALUE: devices, num_nodes, "
        "accelerator, precision, callbacks and so on; strategy is auto, single, ddp or fsdp.",
    )
    return parser


def prepare(command: str, words: list[str]) -> Launch:
    """Parses and checks the words after the command.

    Raises:
        UserError: for the first mistake found.
        SystemExit: after --help.
    """
    parser = build_parser(command)
    names, rest = _take_options(words, ("-c", "--config"))
    if {"-h", "--help"} & set(rest):
        parser.print_help()
        raise SystemExit(0)
    if command == "fit" and not names and not any(word.startswith("--model") for word in rest):
        raise UserError("fit needs --config RECIPE: a path or a packaged name such as quickstart")
    recipe: recipes.Recipe = {}
    run = None
    if command == "validate":
        run = run_folder.find_run(_run_to_score(rest))
        recipe = _on_this_machine(run_folder.read_recipe(run.folder))
    for name in names:
        recipe = recipes.merge(recipe, recipes.load(name))
    if names and command == "fit":
        stem = Path(names[0]).stem
        recipe = recipes.merge({"run": {"recipe": stem}}, recipe)
    check_keys(recipe)
    values = parser.parse_args(["--config", json.dumps(recipe), *rest]).as_dict()
    values.pop("config")
    settings = settings_from(values)
    # The dataclasses' types are JSON and YAML types but for tuples.
    values = json.loads(json.dumps(values))
    ckpt_path = values.pop("ckpt_path")
    check_strategy(values["trainer"])
    if run is not None:
        check_validation_sets(settings)
        return Launch(command, values, settings, run.folder, run.checkpoint, None)
    folder = Path(settings.run.dir) / settings.run.recipe / settings.run.name
    manifest = check_training_data(settings)
    check_validation_sets(settings)
    checkpoint = run_folder.find_run(ckpt_path).checkpoint if ckpt_path else None
    if run_folder.newest_checkpoint(folder) and not ckpt_path:
        run_folder.check_same_recipe(folder, values)
        checkpoint = run_folder.newest_checkpoint(folder)
    return Launch(command, values, settings, folder, checkpoint, manifest)


def check_training_data(settings: Settings) -> Manifest:
    """Checks that the data folder is whole, fits the model and lasts for the token budget.

    Raises:
        UserError: naming what is wrong and the way out.
    """
    folder = Path(settings.data.path)
    manifest = Manifest.read(folder)
    manifest.check_sizes(folder)
    if not (folder / run_folder.TOKENIZER).is_file():
        raise UserError(f"{folder / run_folder.TOKENIZER} is missing; prepare the folder again")
    if manifest.vocab_size > settings.model.vocab_size:
        raise UserError(
            f"data.path '{folder}' uses a tokenizer of {manifest.vocab_size} entries, more than "
            f"model.vocab_size={settings.model.vocab_size}; raise it to {manifest.vocab_size}"
        )
    if epochs(settings, manifest) > settings.data.max_epochs:
        raise UserError(
            f"run.max_tokens={settings.run.max_tokens} is {epochs(settings, manifest):.2f} epochs "
            f"of the {manifest.tokens} tokens in '{folder}'; raise data.max_epochs to allow it"
        )
    return manifest


def check_strategy(trainer: dict[str, Any]) -> None:
    """Checks the name of the strategy, where it is one of ours and not a class of Lightning's.

    Raises:
        UserError: for an unknown name.
    """
    name = trainer.get("strategy", "auto")
    if isinstance(name, str) and name not in STRATEGIES:
        hint = did_you_mean(name, STRATEGIES) or f"; choose from {', '.join(STRATEGIES)}"
        raise UserError(f"trainer.strategy '{name}' is not known{hint}")


def epochs(settings: Settings, manifest: Manifest) -> float:
    """How often the token budget passes over the training data."""
    return settings.run.max_tokens / manifest.tokens


def check_validation_sets(settings: Settings) -> None:
    """Checks that every validation set exists and is of a known kind.

    Raises:
        UserError: for the first that is not.
    """
    for name, path in settings.data.val.items():
        if not Path(path).exists():
            raise UserError(f"data.val.{name}: '{path}' does not exist")
        if not (Path(path) / MANIFEST).is_file():
            source_files(Source(name, Path(path)))


def _run_to_score(words: list[str]) -> str:
    given, _ = _take_options(words, ("--ckpt_path",))
    if not given:
        raise UserError("validate needs --ckpt_path RUN: a run folder or a checkpoint inside one")
    return given[-1]


def _on_this_machine(recipe: recipes.Recipe) -> recipes.Recipe:
    """A run's recipe without what was true only of the machine that trained it."""
    trainer = {"accelerator": "auto", "devices": 1, "num_nodes": 1, "strategy": "auto"}
    return recipes.merge(recipe, {"trainer": trainer})


def _take_options(words: list[str], names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Splits `--name VALUE` and `--name=VALUE` off: (their values, all other words)."""
    values, rest = [], []
    queue = iter(words)
    for word in queue:
        name, equals, value = word.partition("=")
        if name not in names:
            rest.append(word)
            continue
        found = value if equals else next(queue, None)
        if found is None or (not equals and found.startswith("-")):
            raise UserError(f"{name} needs a value")
        values.append(found)
    return values, rest
