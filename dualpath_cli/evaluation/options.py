"""The words of `dualpath evaluate`; `request` says what they mean."""

from typing import Any

from dualpath_cli.evaluation.benchmarks import BENCHMARKS, PAPER_LIMIT, SUITES
from dualpath_cli.options import overrides
from dualpath_cli.options.values import add_device, add_list_option, add_precision

WINDOW = 2048
"""Tokens that a model sees at most, which is OLMES's default."""
BATCH_SIZE = 16
CACHES = ("exact", "none")
OF_THE_RECIPE = "recipe"
"""The paper's row that a run's recipe names."""


def add_arguments(parser: Any) -> None:
    """Adds the options to an argparse or a jsonargparse parser."""
    what = parser.add_argument_group("what is evaluated")
    text = "One or more: a run folder, a checkpoint inside one, or an exported file."
    add_list_option(what, "--ckpt-path", "RUN", text)
    text = "A Hugging Face directory instead."
    what.add_argument("--hf", metavar="DIR", help=text)
    text = "Run the code that is in DIR, as transformers does by the option of this name."
    what.add_argument("--trust-remote-code", action="store_true", help=text)
    text = "Folder for the scores; what it holds already is not computed again."
    what.add_argument("--out", metavar="DIR", help=text)
    _add_documents(parser.add_argument_group("on what"))
    _add_settings(parser.add_argument_group("how"))


def _add_documents(group: Any) -> None:
    sizes = ", ".join(f"{name} {len(tasks)}" for name, tasks in SUITES.items())
    text = (
        f"Benchmarks that belong together ({sizes}); by default paper, which stops at "
        f"{PAPER_LIMIT:,} documents of each, as the paper did."
    )
    group.add_argument("--suite", metavar="SUITE", help=text)
    add_list_option(group, "--tasks", "TASK", f"Benchmarks by name: {', '.join(BENCHMARKS)}.")
    text = "Texts whose rolling bits per byte are measured: .txt, .jsonl, .parquet, or a folder."
    add_list_option(group, "--sources", "NAME=PATH", text)
    text = "Folders with TASK.jsonl files; without any the Hugging Face hub is asked."
    add_list_option(group, "--data", "DIR", text)
    text = (
        "Folder with TASK.fewshot.txt, or TASK_train.jsonl to make one of; by default that of "
        "--data, or the benchmark's training split on the hub."
    )
    group.add_argument("--fewshot", metavar="DIR", help=text)
    text = "At most so many documents of each, drawn as OLMES draws them, or all."
    group.add_argument("--limit", metavar="N", help=text)
    text = "Write what models would be asked into --out, byte for byte, and ask none."
    group.add_argument("--requests", action="store_true", help=text)


def _add_settings(group: Any) -> None:
    overrides.add_arguments(group)
    text = f"Tokens that the model sees at most; by default {WINDOW:,}, or its length if smaller."
    group.add_argument("--window", metavar="T", default=str(WINDOW), help=text)
    text = f"Requests of a batch (default {BATCH_SIZE}); scores move with it."
    group.add_argument("--batch-size", metavar="N", default=str(BATCH_SIZE), help=text)
    add_precision(group)
    text = "Keys and values: exact, those of every step are kept (default), or none."
    group.add_argument("--cache", metavar="POLICY", default=CACHES[0], help=text)
    add_device(group)
    text = (
        "Set a row of the paper's tables beside the scores, such as f80m_a50_k4; by default that "
        "of the run's recipe."
    )
    group.add_argument("--compare-paper", metavar="ROW", nargs="?", const=OF_THE_RECIPE, help=text)
