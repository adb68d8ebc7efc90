"""The commands of `dualpath`, one record each, for help, parser and dispatch.

A command's function is named as `module:function` and imported when the command runs,
so that this file, and with it `dualpath --help`, imports nothing slow.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A command: its name, and its classes and functions, as `module:name`."""

    name: str
    purpose: str  # a sentence for `dualpath --help`
    options: str
    """A frozen dataclass: its docstring describes the command, its fields are the
    options."""
    launch: str | None = None
    """Turns arguments into a training or a study. Without `launch` the command parses
    its arguments and runs on its options."""
    run: str = "dualpath_cli.cli.lightning:run_task"
    """Runs the launch. Without `launch` the function takes the options, and returns the
    text to print, or None."""
    # called with the Session, once trainer, module and data are built
    task: str | None = None
    module: str = "dualpath_cli.training.module:DualPathModule"
    varies: bool = False  # whether `run` also takes a recipe, changed by the arguments

    @property
    def has_recipe(self) -> bool:
        """Whether keys of a recipe are options of the command."""
        return self.varies or self.launch is not None


_ABLATION = "dualpath_cli.study.ablation"
_ROUTING = "dualpath_cli.study.routing"

_RECORDS = (
    Command(
        "quickstart",
        "Make a sample corpus, train a small model on it, ablate it, write a page of "
        "its routing.",
        options="dualpath_cli.cli.quickstart:Quickstart",
        run="dualpath_cli.cli.quickstart:quickstart",
    ),
    Command(
        "tokenizer",
        "Train a byte-level BPE on any texts.",
        options="data_prep.tokenizer:TrainTokenizer",
        run="data_prep.tokenizer:train_tokenizer",
    ),
    Command(
        "prepare",
        "Turn corpora into a data folder: cleaned, deduplicated, mixed, tokenised.",
        options="data_prep.command:Prepare",
        run="data_prep.command:prepare",
    ),
    Command(
        "prepare inspect",
        "Verify every byte of a data folder, and show what is in it.",
        options="data_prep.inspection:Inspect",
        run="data_prep.inspection:inspect",
    ),
    Command(
        "recipes",
        "List the packaged recipes, a line each.",
        options="dualpath_cli.recipe.recipes:Recipes",
        run="dualpath_cli.recipe.recipes:listing",
    ),
    Command(
        "fit",
        "Train a model from a recipe; the same command continues an interrupted run.",
        launch="dualpath_cli.cli.launch:training",
        options="dualpath_cli.training.options:Fit",
        task="dualpath_cli.training.fit:fit",
    ),
    Command(
        "validate",
        "Score a trained model on named validation sets.",
        launch="dualpath_cli.cli.launch:trained_run",
        options="dualpath_cli.training.options:Validate",
        task="dualpath_cli.training.session:validate",
    ),
    Command(
        "flops",
        "Solve FLOP-matched widths; count parameters and FLOPs.",
        options="dualpath_cli.flops.description:Flops",
        run="dualpath_cli.flops.command:describe",
    ),
    Command(
        "sweep",
        "Train configurations of equal FLOPs, with seeds, and controls beside them.",
        varies=True,
        options="dualpath_cli.compare.sweep.request:Sweep",
        run="dualpath_cli.compare.sweep.command:sweep",
    ),
    Command(
        "compare",
        "Compare runs: tables with tests over seeds, figures, a page.",
        options="dualpath_cli.compare.command:Compare",
        run="dualpath_cli.compare.command:compare",
    ),
    Command(
        "ablate",
        "Override a trained model's loops and gates, and measure what each override "
        "costs.",
        launch="dualpath_cli.cli.launch:trained_run",
        options=f"{_ABLATION}.options:Ablate",
        task=f"{_ABLATION}.study:ablate",
        module="dualpath_cli.study.bench:StudyModule",
    ),
    Command(
        "routing",
        "Read what the gates do token by token: a page to explore, figures, numbers.",
        launch="dualpath_cli.cli.launch:trained_run",
        options=f"{_ROUTING}.options:RoutingOptions",
        task=f"{_ROUTING}.study:read_routing",
        module="dualpath_cli.study.bench:StudyModule",
    ),
    Command(
        "evaluate",
        "Score a trained model on the paper's benchmarks, through "
        "lm-evaluation-harness.",
        options="dualpath_cli.evaluation.command:Evaluate",
        run="dualpath_cli.evaluation.command:evaluate",
    ),
    Command(
        "generate",
        "Generate text, optionally with fewer loops or a smaller KV cache.",
        options="dualpath_cli.decoding.options:Generate",
        run="dualpath_cli.decoding.command:generate",
    ),
    Command(
        "export",
        "Write a trained model as a folder for transformers, the hub, and all "
        "commands.",
        options="dualpath_cli.export.command:Export",
        run="dualpath_cli.export.command:export",
    ),
    Command(
        "retrofit",
        "Turn a pretrained Llama into a looped or dual-path model with "
        "(nearly) the same outputs.",
        options="dualpath_cli.export.retrofit:Retrofit",
        run="dualpath_cli.export.retrofit:retrofit",
    ),
)

COMMANDS = {command.name: command for command in _RECORDS}


def split_command(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The name of a command, which may have two words (`prepare inspect`), and the
    arguments after it."""
    first = 2 if " ".join(words[:2]) in COMMANDS else 1
    return " ".join(words[:first]), words[first:]
