"""From the words after `fit`, `validate` or `ablate` to a checked launch; imports nothing slow.

1. every `--config` is found, its bases resolved, and all are merged in their order;
2. for `validate` and `ablate --ckpt_path RUN` the run's own recipe comes first;
3. keys, types, data folder, tokenizer, validation sets and checkpoint are checked;
4. what remains, LightningCLI gets as one resolved recipe.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualpath_cli import recipes
from dualpath_cli.checks import (
    check_checkpoint,
    check_schedule,
    check_trainer,
    check_training_data,
    check_validation_sets,
)
from dualpath_cli.errors import UserError
from dualpath_cli.sizes import parse_size
from dualpath_cli.text.documents import parse_source
from dualpath_cli.text.manifest import Manifest
from dualpath_cli.text.storage import is_remote
from dualpath_cli.training import run_folder
from dualpath_cli.training.arguments import (
    OneLineParser,
    Settings,
    add_sections,
    check_keys,
    settings_from,
)

DESCRIPTIONS = {
    "fit": "Trains a model from a recipe; the same command continues an interrupted run.",
    "validate": "Scores a run's model on its validation sets, or on others given by --data.val.",
    "ablate": "Scores a run's model with forced loops, overridden gates and shuffled gates: the 16 "
    "rows of the paper's inference-time ablations, each paired with the learned router.",
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
    """Where to continue from (fit), or what to score (validate, ablate)."""
    manifest: Manifest | None
    """Of the training data; None but for fit."""
    out: Path | None = None
    """Folder for the tables of ablate; None for the other commands."""
    weights: Path | None = None
    """A checkpoint of another run whose weights fit starts from, at step 0."""

    @property
    def arguments(self) -> list[str]:
        """The command line for LightningCLI."""
        return [self.command, "--config", json.dumps(self.recipe)]


def build_parser(command: str) -> OneLineParser:
    """The quick parser: the recipe's own sections checked, Lightning's `trainer` passed on."""
    usage = "[--config RECIPE] [--ckpt_path RUN] [--SECTION.KEY VALUE ...]"
    if command == "ablate":
        usage = "--ckpt_path RUN [--sources NAME=PATH ...] [--max_tokens N] [--out DIR] "
        usage += "[--SECTION.KEY VALUE ...]"
    parser = OneLineParser(
        prog=f"dualpath {command}",
        usage=f"dualpath {command} {usage}",
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
        if command != "fit"
        else "Another run, or a checkpoint of one, whose weights to start from; or an older "
        "checkpoint of this run to go back to."
    )
    parser.add_argument("--ckpt_path", type=str | None, default=None, metavar="RUN", help=what)
    if command == "ablate":
        _add_ablate_arguments(parser)
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
    if command != "fit":
        run = run_folder.find_run(_run_to_score(command, rest))
        recipe = _on_this_machine(run_folder.read_recipe(run.folder))
    for name in names:
        recipe = recipes.merge(recipe, recipes.load(name))
    if names and command == "fit":
        stem = Path(names[0]).stem
        recipe = recipes.merge({"run": {"recipe": stem}}, recipe)
    check_keys(recipe)
    values = parser.parse_args(["--config", json.dumps(recipe), *rest]).as_dict()
    values.pop("config")
    out = _take_ablate_values(values, run) if command == "ablate" and run is not None else None
    settings = settings_from(values)
    # The dataclasses' types are JSON and YAML types but for tuples.
    values = json.loads(json.dumps(values))
    ckpt_path = values.pop("ckpt_path")
    check_trainer(values["trainer"])
    if run is not None:
        check_validation_sets(settings, f"{run.folder}/{run_folder.TOKENIZER}")
        return Launch(command, values, settings, run.folder, run.checkpoint, None, out)
    folder = Path(settings.run.dir) / settings.run.recipe / settings.run.name
    manifest = check_training_data(settings)
    check_schedule(settings)
    check_validation_sets(settings, f"{settings.data.path}/{run_folder.TOKENIZER}")
    weights = None
    checkpoint = run_folder.newest_checkpoint(folder)
    if checkpoint is not None:
        run_folder.check_same_recipe(folder, values)
        run_folder.check_same_facts(folder, {"data_fingerprint": manifest.fingerprint})
    if ckpt_path:
        start = run_folder.find_run(ckpt_path)
        run_folder.check_same_recipe(start.folder, values, sections=("model",))
        if start.folder.resolve() == folder.resolve():
            checkpoint = start.checkpoint
        elif checkpoint is None:  # else it began there, and goes on from its own checkpoint
            weights = start.checkpoint
    if checkpoint is not None:
        check_checkpoint(checkpoint, values["trainer"])
    return Launch(command, values, settings, folder, checkpoint, manifest, weights=weights)


def _add_ablate_arguments(parser: OneLineParser) -> None:
    parser.add_argument(
        "--sources",
        type=str,
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=PATH",
        help="Texts to score, .txt, .jsonl or .parquet; by default the run's validation sets.",
    )
    parser.add_argument(
        "--max_tokens",
        type=str | None,
        default=None,
        metavar="N",
        help="At most so many tokens of each source, such as 20K; by default data.val_tokens.",
    )
    parser.add_argument(
        "--out",
        type=str | None,
        default=None,
        metavar="DIR",
        help="Folder for ablations.json and ablations.csv; by default RUN/ablations/step-N.",
    )


def _take_ablate_values(values: dict[str, Any], run: run_folder.Run) -> Path:
    """Moves the words of ablate to the recipe's data section, and returns the folder to write to.

    Raises:
        UserError: for the first mistake in them.
    """
    sources, max_tokens, out = (values.pop(key) for key in ("sources", "max_tokens", "out"))
    found = [_name_and_location(source) for source in sources]
    names = [name for name, _ in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--sources has two texts named '{name}'; give NAME=PATH")
    if found:
        values["data"]["val"] = dict(found)
    if not values["data"]["val"]:
        raise UserError("the run names no validation set; give a text: --sources NAME=PATH")
    if max_tokens is not None:
        values["data"]["val_tokens"] = parse_size(str(max_tokens), "--max_tokens")
    trainer = values["trainer"]
    devices, strategy = trainer.get("devices", 1), trainer.get("strategy", "auto")
    if strategy not in ("auto", "single") or devices not in (1, "1"):
        raise UserError("ablate runs on one device; leave out trainer.devices and trainer.strategy")
    folder = Path(out) if out else run.folder / "ablations" / run.checkpoint.name
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        raise UserError(f"--out '{folder}': '{existing}' is a file; give a folder")
    return folder


def _name_and_location(spec: str) -> tuple[str, str]:
    """Reads one of `--sources`; what lies on S3 is checked with the other validation sets."""
    if is_remote(spec):
        raise UserError(f"--sources '{spec}' has no name; give NAME={spec}")
    name, _, location = spec.partition("=")
    if is_remote(location):
        return name, location
    source = parse_source(spec)
    return source.name, str(source.path)


def _run_to_score(command: str, words: list[str]) -> str:
    given, _ = _take_options(words, ("--ckpt_path",))
    if not given:
        raise UserError(f"{command} needs --ckpt_path RUN: a run folder or a checkpoint inside one")
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
