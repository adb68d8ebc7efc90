"""The commands of `dualpath`, a record each: all that help, parsers and dispatch know of them.

What a command runs is named `module:function` and imported when it runs, so that this file, and
with it `dualpath --help`, imports nothing slow.
"""

import pkgutil
from dataclasses import dataclass
from typing import Any, Literal

SECTION_WORDS = "[--SECTION.KEY VALUE ...]"


@dataclass(frozen=True)
class Command:
    """A command: its name, its words, and the functions behind it; these as `module:function`."""

    name: str
    purpose: str
    """A sentence for `dualpath --help`."""
    usage: str
    """The words that may follow the name."""
    needs: Literal["recipe", "run", "nothing"]
    """`recipe`: a recipe to train. `run`: a trained RUN, whose model is built from its recipe.
    `nothing`: neither, and no settings; all words are the command's own options."""
    run: str = "dualpath_cli.session.lightning_cli:run"
    """The command's function: takes the checked Launch and returns the exit code. Where the command
    needs nothing, it takes argparse's namespace and returns the text to print, or None."""
    task: str | None = None
    """Called by `lightning_cli.run` with the Session, once trainer, module and data are built."""
    module: str = "dualpath_cli.training.module:DualPathModule"
    """The LightningModule that is built for the task."""
    description: str = ""
    """For its own --help, where the purpose is not enough."""
    examples: tuple[str, ...] = ()
    """Commands that end its --help, each of 78 characters a line; the tests run them."""
    add_arguments: str | None = None
    """Adds the command's own options to an argparse parser."""
    read_options: str | None = None
    """Checks these options and returns them as one object: takes their values, the recipe, whose
    data section it may change, and the RUN."""
    check: str | None = None
    """Takes that object and the settings, and checks one against the other."""
    combine: str | None = None
    """Sets several RUNs side by side: takes the folders that the command wrote for each, the folder
    for all and the console, and returns the paths that it wrote. Without it a command takes one."""
    for_one_run: tuple[str, ...] = ()
    """Options that are refused with several RUNs."""
    reads_models: bool = False
    """Whether the model, and so its custom classes, is named by a RUN or a folder that is read, and
    not by the user."""


def resolve(name: str) -> Any:
    """Imports the function or class that a record names."""
    return pkgutil.resolve_name(name)


_ABLATION, _ROUTING = "dualpath_cli.study.ablation", "dualpath_cli.study.routing"

_RECORDS = (
    Command(
        "quickstart",
        "Make a sample corpus, train a small model on it, ablate it, write a page of its routing.",
        "",
        needs="nothing",
        run="dualpath_cli.quickstart:run",
        description="Runs four commands, each shown as it can be typed, in the current folder: the "
        "sample corpus, a model of 1.6M parameters in some 80 seconds on two cores, its ablation, "
        "and the page of its routing. Interrupted, the same command continues.",
    ),
    Command(
        "tokenizer",
        "Train a byte-level BPE on any texts.",
        "--source SOURCE [SOURCE ...] --vocab-size N --out DIR [--overwrite]",
        needs="nothing",
        run="data_prep.tokenizer:run",
        description="Trains a byte-level BPE with an end-of-text token, and writes it as a "
        "tokenizer.json that `dualpath prepare --tokenizer DIR` takes. Equal texts give equal "
        "bytes.",
        examples=(
            "dualpath tokenizer --source novels=texts/novels.jsonl.gz docs=folder/ \\\n"
            "      --vocab-size 8192 --out data/bpe8192",
        ),
        add_arguments="data_prep.tokenizer:add_arguments",
    ),
    Command(
        "prepare",
        "Turn corpora into a data folder: cleaned, deduplicated, mixed, tokenised.",
        "--source SOURCE ... | --config RECIPE [--tokenizer gpt2|PATH] --out DIR [options]",
        needs="nothing",
        run="data_prep.command:run",
        description="Turns corpora into shards of tokens for `dualpath fit`: downloads, cleans, "
        "removes duplicates, holds out validation documents, mixes, tokenises and writes a folder "
        "with chunks, tokenizer.json and manifest.json. Each document is followed by an "
        "end-of-text token. Interrupted, the same command continues.",
        examples=(
            "dualpath prepare --source sample --out data/sample",
            "dualpath prepare --source novels=texts/novels.jsonl.gz --tokenizer gpt2 \\\n"
            "      --out data/novels",
            "dualpath prepare --source nemotron-cc --num-files 1 --tokenizer gpt2 \\\n"
            "      --out data/nemotron-cc",
            "dualpath prepare --config recipes/data/paper.yaml --out data/nemotron-cc --yes",
        ),
        add_arguments="data_prep.options:add_arguments",
    ),
    Command(
        "prepare inspect",
        "Verify every byte of a data folder, and show what is in it.",
        "DIR [--samples N] [--seed S]",
        needs="nothing",
        run="data_prep.report.report:run",
        description="Reads every byte of a data folder, compares it with the manifest, and says "
        "what is in it: what became of each source's documents, how long documents are, and what "
        "some of them say. The exit code is 1 where anything is not as it was prepared.",
        add_arguments="data_prep.report.report:add_arguments",
    ),
    Command(
        "fit",
        "Train a model from a recipe; the same command continues an interrupted run.",
        f"--config RECIPE [--ckpt-path RUN] [--new-data] {SECTION_WORDS}",
        needs="recipe",
        task="dualpath_cli.session.fit:fit",
        add_arguments="dualpath_cli.command.continuing:add_arguments",
    ),
    Command(
        "validate",
        "Score a trained model on named validation sets.",
        f"--ckpt-path RUN [--average N] [--data.val.NAME PATH ...] {SECTION_WORDS}",
        needs="run",
        task="dualpath_cli.session.validate:validate",
        description="Scores a run's model on its validation sets, and on those that "
        "--data.val.NAME adds to them; --data.val '{NAME: PATH}' takes the place of all. Windows "
        "of a text are read after end-of-text; for evaluate's rolling_bpb, which is mostly lower, "
        "after the token before.",
        add_arguments="dualpath_cli.options.average:add_arguments",
        reads_models=True,
    ),
    Command(
        "flops",
        "Solve FLOP-matched widths; count parameters and FLOPs.",
        "--budget FLOPS | --config RECIPE [options]",
        needs="nothing",
        run="dualpath_cli.flops.command:run",
        description="Solves FFN widths for a FLOP budget, and counts a model's parameters and "
        "FLOPs, for the paper as written and as trained.",
        add_arguments="dualpath_cli.flops.command:add_arguments",
    ),
    Command(
        "sweep",
        "Train configurations of equal FLOPs, with seeds, and controls beside them.",
        "--config RECIPE --budget FLOPS --out DIR [--alphas LIST] [--loops LIST] [options]",
        needs="nothing",
        run="dualpath_cli.sweep.command:run",
        description="Solves the widths of dual-path configurations and their controls for a FLOP "
        "budget, writes a recipe for each run, says what they cost, asks, and trains them. The "
        "same command continues what was interrupted.",
        add_arguments="dualpath_cli.sweep.options:add_arguments",
    ),
    Command(
        "compare",
        "Set runs side by side: tables with tests over seeds, figures, a page.",
        "RUN [RUN ...] | SWEEP | --paper [--baseline NAMES] [--out DIR] [options]",
        needs="nothing",
        run="dualpath_cli.compare.command:run",
        description="Reads finished runs, sorts them into configurations that differ in more than "
        "their seed, and compares those of one budget: bits per byte with paired tests over seeds, "
        "parameters, FLOPs, time. It reads files only.",
        add_arguments="dualpath_cli.compare.options:add_arguments",
        reads_models=True,
    ),
    Command(
        "ablate",
        "Override a trained model's loops and gates, and measure what each override costs.",
        "--ckpt-path RUN [RUN ...] [--sources NAME=PATH ...] [--suite SUITE ...] "
        f"[--max-tokens N] [--out DIR] {SECTION_WORDS}",
        needs="run",
        task=f"{_ABLATION}.study:run",
        module="dualpath_cli.study.bench:StudyModule",
        description="Scores a run's model with forced loops and overridden gates, by layer, by "
        "class of token, with halting: each paired with the learned router on identical tokens.",
        add_arguments=f"{_ABLATION}.options:add_arguments",
        read_options=f"{_ABLATION}.options:read_options",
        check=f"{_ABLATION}.options:check_options",
        combine="dualpath_cli.study.runs:ablations",
        reads_models=True,
    ),
    Command(
        "routing",
        "Read what the gates do token by token: tables, figures, a page to explore.",
        "--ckpt-path RUN [RUN ...] [--sources NAME=PATH ...] [--max-tokens N] [--out DIR] "
        f"[--text TEXT] {SECTION_WORDS}",
        needs="run",
        run=f"{_ROUTING}.terminal:run",
        task=f"{_ROUTING}.study:run",
        module="dualpath_cli.study.bench:StudyModule",
        description="Reads what a run's gates do token by token: tables, figures and a page to "
        "look at any text; --text prints one in the terminal.",
        add_arguments=f"{_ROUTING}.options:add_arguments",
        read_options=f"{_ROUTING}.options:read_options",
        check=f"{_ROUTING}.options:check_options",
        combine="dualpath_cli.study.runs:routings",
        for_one_run=("text",),
        reads_models=True,
    ),
    Command(
        "evaluate",
        "Score a trained model on the paper's benchmarks, through lm-evaluation-harness.",
        "--ckpt-path RUN [RUN ...] | --hf DIR [--suite SUITE | --tasks TASK ...] "
        "[--data DIR] [--fewshot DIR] [--sources NAME=PATH ...] --out DIR [options]",
        needs="nothing",
        run="dualpath_cli.evaluation.command:run",
        description="Scores models on multiple choice, worked answers and texts as OLMES renders "
        "them: accuracies and bits per byte, straight from checkpoints. Needs dualpath[eval]. "
        "Texts have rolling_bpb: each window is read after the token before it, not after "
        "end-of-text as validate reads it.",
        add_arguments="dualpath_cli.evaluation.request:add_arguments",
        reads_models=True,
    ),
    Command(
        "generate",
        "Let a trained model write, with fewer loops and caches where that is wanted.",
        "--ckpt-path RUN [--prompt TEXT ... | --file FILE] [--out FILE] [options]",
        needs="nothing",
        run="dualpath_cli.generation.command:run",
        description="Writes on after prompts, or without any, with sampling as in transformers. "
        "Keys and values of every loop are kept; options leave some of them, or some compute, out.",
        add_arguments="dualpath_cli.generation.options:add_arguments",
        reads_models=True,
    ),
    Command(
        "export",
        "Write a trained model to hand on: one file, or a folder for transformers and the hub.",
        "--ckpt-path RUN --format FORMAT [--average N] [--out PATH] [--results PATH] "
        "[--license NAME] "
        "[--push USER/REPO [--public]] [--overwrite]",
        needs="nothing",
        run="dualpath_cli.export.command:run",
        description="Writes a run's model, from a checkpoint of shards or of one file, in a format "
        "to hand on. It takes one process and no GPU.",
        add_arguments="dualpath_cli.export.command:add_arguments",
        reads_models=True,
    ),
    Command(
        "import",
        "Make a run in one file of a folder that `export --format hf` wrote.",
        "--hf DIR [--out FILE] [--overwrite]",
        needs="nothing",
        run="dualpath_cli.export.hf.reading:run",
        description="Reads a folder of transformers that `export --format hf` wrote, and writes "
        "its model as one file, which all commands take as their RUN.",
        add_arguments="dualpath_cli.export.hf.reading:add_arguments",
        reads_models=True,
    ),
)

COMMANDS = {command.name: command for command in _RECORDS}
