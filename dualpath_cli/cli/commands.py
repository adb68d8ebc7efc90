"""The commands of `dualpath`, a record each: all that help, parser and dispatch know of them.

What a command runs is named `module:function` and imported when it runs, so that this file, and
with it `dualpath --help`, imports nothing slow.
"""

import pkgutil
from dataclasses import dataclass
from typing import Any, Literal

SECTIONS = "[--SECTION.KEY VALUE ...]"


@dataclass(frozen=True)
class Command:
    """A command: its words, and the classes and functions behind it, as `module:name`."""

    name: str
    purpose: str
    """A sentence for `dualpath --help`."""
    usage: str
    """The words that may follow the name."""
    options: str
    """A frozen dataclass: its docstring describes the command, its fields are the options."""
    needs: Literal["recipe", "recipes", "run", "nothing"] = "nothing"
    """`recipe`: a recipe to train. `recipes`: one to vary. `run`: a trained RUN, whose model is
    built from its recipe. `nothing`: all words are the command's own options."""
    run: str = "dualpath_cli.cli.lightning:run"
    """Takes the checked Launch and returns the exit code. Where the command needs nothing, it takes
    the options, for `recipes` the recipe too, and returns the text to print, or None."""
    task: str | None = None
    """Called by `lightning.run` with the Session, once trainer, module and data are built."""
    module: str = "dualpath_cli.training.module:DualPathModule"
    """The LightningModule that is built for the task."""
    read: str | None = None
    """Takes options, recipe and RUN, checks the one against the other, may change the recipe's data
    section, and returns what the task reads as `Launch.options`."""
    check: str | None = None
    """Takes that object and the settings, and checks one against the other."""
    combine: str | None = None
    """Sets several RUNs side by side: takes the folders that the command wrote for each, the folder
    for all and the console, and returns the paths that it wrote. Without it a command takes one."""


def resolve(name: str) -> Any:
    """Imports the function or class that a record names."""
    return pkgutil.resolve_name(name)


_ABLATION, _ROUTING = "dualpath_cli.study.ablation", "dualpath_cli.study.routing"

_RECORDS = (
    Command(
        "quickstart",
        "Make a sample corpus, train a small model on it, ablate it, write a page of its routing.",
        "",
        options="dualpath_cli.cli.quickstart:Quickstart",
        run="dualpath_cli.cli.quickstart:run",
    ),
    Command(
        "tokenizer",
        "Train a byte-level BPE on any texts.",
        "--source SOURCE [SOURCE ...] --vocab-size N --out DIR [--overwrite]",
        options="data_prep.tokenizer:TrainTokenizer",
        run="data_prep.tokenizer:run",
    ),
    Command(
        "prepare",
        "Turn corpora into a data folder: cleaned, deduplicated, mixed, tokenised.",
        "--source SOURCE ... | --config RECIPE [--tokenizer gpt2|PATH] --out DIR [options]",
        options="data_prep.command:Prepare",
        run="data_prep.command:run",
    ),
    Command(
        "prepare inspect",
        "Verify every byte of a data folder, and show what is in it.",
        "DIR [--samples N] [--seed S]",
        options="data_prep.inspection:Inspect",
        run="data_prep.inspection:run",
    ),
    Command(
        "fit",
        "Train a model from a recipe; the same command continues an interrupted run.",
        f"--config RECIPE [--ckpt-path RUN] [--new-data] {SECTIONS}",
        needs="recipe",
        options="dualpath_cli.cli.continuing:Fit",
        task="dualpath_cli.cli.fit:fit",
    ),
    Command(
        "validate",
        "Score a trained model on named validation sets.",
        f"--ckpt-path RUN [--average N] [--data.val.NAME PATH ...] {SECTIONS}",
        needs="run",
        options="dualpath_cli.recipe.options:Validate",
        task="dualpath_cli.cli.session:validate",
    ),
    Command(
        "flops",
        "Solve FLOP-matched widths; count parameters and FLOPs.",
        "--budget FLOPS | --config RECIPE [options]",
        options="dualpath_cli.flops.command:Flops",
        run="dualpath_cli.flops.command:run",
    ),
    Command(
        "sweep",
        "Train configurations of equal FLOPs, with seeds, and controls beside them.",
        "--config RECIPE --budget FLOPS --out DIR [--alphas LIST] [--loops LIST] [options] "
        f"{SECTIONS}",
        needs="recipes",
        options="dualpath_cli.sweep.request:Sweep",
        run="dualpath_cli.sweep.command:run",
    ),
    Command(
        "compare",
        "Set runs side by side: tables with tests over seeds, figures, a page.",
        "RUN [RUN ...] | SWEEP | --paper [--baseline NAMES] [--out DIR] [options]",
        options="dualpath_cli.compare.command:Compare",
        run="dualpath_cli.compare.command:run",
    ),
    Command(
        "ablate",
        "Override a trained model's loops and gates, and measure what each override costs.",
        "--ckpt-path RUN [RUN ...] [--sources NAME=PATH ...] [--suite SUITE ...] "
        f"[--max-tokens N] [--out DIR] {SECTIONS}",
        needs="run",
        options=f"{_ABLATION}.options:Ablate",
        task=f"{_ABLATION}.study:run",
        module="dualpath_cli.study.bench:StudyModule",
        read=f"{_ABLATION}.options:read_options",
        check=f"{_ABLATION}.options:check_options",
        combine=f"{_ABLATION}.runs:ablations",
    ),
    Command(
        "routing",
        "Read what the gates do token by token: a page to explore, figures, numbers.",
        "--ckpt-path RUN [--sources NAME=PATH ...] [--max-tokens N] [--out DIR] "
        f"[--text TEXT] {SECTIONS}",
        needs="run",
        run=f"{_ROUTING}.terminal:run",
        options=f"{_ROUTING}.options:Routing",
        task=f"{_ROUTING}.study:run",
        module="dualpath_cli.study.bench:StudyModule",
        read=f"{_ROUTING}.options:read_options",
        check=f"{_ROUTING}.options:check_options",
    ),
    Command(
        "evaluate",
        "Score a trained model on the paper's benchmarks, through lm-evaluation-harness.",
        "--ckpt-path RUN [RUN ...] [--suite SUITE | --tasks TASK ...] "
        "[--data DIR] [--fewshot DIR] [--sources NAME=PATH ...] --out DIR [options]",
        options="dualpath_cli.evaluation.command:Evaluate",
        run="dualpath_cli.evaluation.command:run",
    ),
    Command(
        "generate",
        "Generate text, optionally with fewer loops or a smaller KV cache.",
        "--ckpt-path RUN [--prompt TEXT ... | --file FILE] [--out FILE] [options]",
        options="dualpath_cli.decoding.request:Generate",
        run="dualpath_cli.decoding.command:run",
    ),
    Command(
        "export",
        "Write a trained model as a folder for transformers, the hub, and all commands.",
        "--ckpt-path RUN [--average N] [--out DIR] [--results PATH] [--license NAME] "
        "[--push USER/REPO [--public]] [--overwrite]",
        options="dualpath_cli.export.command:Export",
        run="dualpath_cli.export.command:run",
    ),
)

COMMANDS = {command.name: command for command in _RECORDS}
