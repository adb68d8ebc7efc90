"""From the words after a command that runs a model to a checked launch; imports nothing slow.

1. every `--config` is found, its bases resolved, and all are merged in their order;
2. for all but `fit`, which need `--ckpt_path RUN`, the run's own recipe comes first;
3. keys, types, data folder, tokenizer, validation sets and checkpoint are checked;
4. what remains, LightningCLI gets as one resolved recipe.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualpath_cli import recipes, run_folder
from dualpath_cli.command.arguments import (
    OneLineParser,
    Settings,
    add_sections,
    check_keys,
    settings_from,
)
from dualpath_cli.command.checks import (
    check_checkpoint,
    check_schedule,
    check_trainer,
    check_training_data,
    check_validation_sets,
)
from dualpath_cli.errors import UserError
from dualpath_cli.study.ablation.options import (
    AblateOptions,
    add_ablate_arguments,
    take_ablate_options,
)
from dualpath_cli.study.routing.options import (
    RoutingOptions,
    add_routing_arguments,
    check_routing,
    take_routing_options,
)
from dualpath_cli.text.manifest import Manifest

DESCRIPTIONS = {
    "fit": "Trains a model from a recipe; the same command continues an interrupted run.",
    "validate": "Scores a run's model on its validation sets, or on others given by --data.val.",
    "ablate": "Scores a run's model with forced loops and overridden gates, by layer, by class of "
    "token, with halting: each paired with the learned router on identical tokens.",
    "routing": "Reads what a run's gates do token by token: tables, figures and a page to look at "
    "any text; --text prints one in the terminal.",
}
STUDIES = {
    "ablate": "--ckpt_path RUN [RUN ...] [--sources NAME=PATH ...] [--suite SUITE ...] "
    "[--max_tokens N] [--out DIR] [--SECTION.KEY VALUE ...]",
    "routing": "--ckpt_path RUN [RUN ...] [--sources NAME=PATH ...] [--max_tokens N] [--out DIR] "
    "[--text TEXT] [--SECTION.KEY VALUE ...]",
}
"""The commands that take several RUNs, and their usage."""


@dataclass(frozen=True)
class Launch:
    """What LightningCLI is started with."""

    command: str
    recipe: recipes.Recipe
    """The resolved recipe, all defaults filled in."""
    settings: Settings
    run_folder: Path
    checkpoint: Path | None
    """Where to continue from (fit), or what to score or read (all others)."""
    manifest: Manifest | None
    """Of the training data; None but for fit."""
    ablate: AblateOptions | None = None
    """What ablate tries, and where its tables go; None for the other commands."""
    routing: RoutingOptions | None = None
    """What routing reads, and where it goes; None for the other commands."""
    weights: Path | None = None
    """A checkpoint of another run whose weights fit starts from, at step 0."""

    @property
    def arguments(self) -> list[str]:
        """The command line for LightningCLI."""
        return [self.command, "--config", json.dumps(self.recipe)]


def build_parser(command: str) -> OneLineParser:
    """The quick parser: the recipe's own sections checked, Lightning's `trainer` passed on."""
    usage = STUDIES.get(command, "[--config RECIPE] [--ckpt_path RUN] [--SECTION.KEY VALUE ...]")
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
        add_ablate_arguments(parser)
    if command == "routing":
        add_routing_arguments(parser)
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
    names, rest = _take_options([_underscored(word) for word in words], ("-c", "--config"))
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
    ablate, routing = None, None
    if command == "ablate" and run is not None:
        ablate = take_ablate_options(values, run)
    if command == "routing" and run is not None:
        routing = take_routing_options(values, run)
    settings = settings_from(values)
    # The dataclasses' types are JSON and YAML types but for tuples.
    values = json.loads(json.dumps(values))
    ckpt_path = values.pop("ckpt_path")
    check_trainer(values["trainer"])
    if run is not None:
        if routing is not None:
            check_routing(routing, settings.model)
        check_validation_sets(settings, f"{run.folder}/{run_folder.TOKENIZER}")
        return Launch(command, values, settings, run.folder, run.checkpoint, None, ablate, routing)
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


def split_runs(words: list[str]) -> tuple[list[str], list[str]]:
    """Splits the RUNs that follow `--ckpt_path`, each time it is given, from all other words."""
    runs, rest, taking = [], [], False
    for word in words:
        name, equals, value = _underscored(word).partition("=")
        if word.startswith("-"):
            taking = name == "--ckpt_path"
        if not taking:
            rest.append(word)
        elif equals or not word.startswith("-"):
            runs.append(value if equals else word)
    return runs, rest


def prepare_several(
    command: str, runs: list[str], words: list[str]
) -> tuple[list[Launch], list[Path], Path]:
    """Checked launches of a study, one a run, each with a folder of its own in `--out`.

    `words` are all but the RUNs. Returns the launches, their folders and the folder of all.

    Raises:
        UserError: for the first mistake, and for several devices or no `--out`.
    """
    if any(_underscored(word).partition("=")[0] == "--text" for word in words):
        raise UserError("--text takes one RUN; give the command for each of them")
    given, rest = _take_options(words, ("--out",))
    if not given:
        raise UserError("several RUNs need --out DIR: a folder for the files of all of them")
    out = Path(given[-1])
    found = [run_folder.find_run(run) for run in runs]
    names = [f"{run.folder.parent.name}-{run.folder.name}-{run.checkpoint.name}" for run in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--ckpt_path names two runs whose files would go to '{out / name}'")
    folders = [out / name for name in names]
    launches = [
        prepare(command, ["--ckpt_path", run, "--out", str(folder), *rest])
        for run, folder in zip(runs, folders, strict=True)
    ]
    if any(str(each.recipe["trainer"].get("devices", 1)) != "1" for each in launches):
        raise UserError("several RUNs go on one device; give them one at a time for more")
    return launches, folders, out


def _run_to_score(command: str, words: list[str]) -> str:
    given, _ = _take_options(words, ("--ckpt_path",))
    if not given:
        raise UserError(f"{command} needs --ckpt_path RUN: a run folder or a checkpoint inside one")
    return given[-1]


def _on_this_machine(recipe: recipes.Recipe) -> recipes.Recipe:
    """A run's recipe without what was true only of the machine that trained it."""
    trainer = {"accelerator": "auto", "devices": 1, "num_nodes": 1, "strategy": "auto"}
    return recipes.merge(recipe, {"trainer": trainer})


def _underscored(word: str) -> str:
    """An option as it is declared, where it was written with hyphens: --max-tokens."""
    name, equals, value = word.partition("=")
    if not word.startswith("--") or "." in name:  # a.name.with-hyphens may be a user's own
        return word
    return "--" + name[2:].replace("-", "_") + equals + value


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
