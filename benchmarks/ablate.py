"""What a suite of `dualpath ablate` costs beside the forward passes that it consists of.

python -m benchmarks.ablate --run RUN --source NAME=PATH

By turns, in one process: the bare model on the same batches under the same interventions, nothing
kept, with texts tokenised and weights loaded before the clock starts; and the whole command, from
the checked recipe to the written tables and figures.
"""

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from dualpath_cli.command import launch, lightning_cli
from dualpath_cli.command.records import COMMANDS
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.study.ablation.suites import applicable
from dualpath_cli.text.documents import parse_source, read_documents
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training.weights import load_weights
from dualpath_cli.training.windows import Windows, collate, document_windows


def bare_passes(prepared: launch.Launch, source: str) -> tuple[float, int]:
    """Returns the seconds of the forward passes alone, and how many passes over the source."""
    assert prepared.checkpoint is not None
    settings = prepared.settings
    model = DualPathLM(settings.model)
    load_weights(model, prepared.checkpoint)
    tokenizer = Tokenizer.load(prepared.run_folder / "tokenizer.json")
    texts = read_documents(parse_source(source))
    length, limit = settings.model.max_seq_len, settings.data.val_tokens
    windows = Windows(document_windows(texts, tokenizer, length, limit)).windows
    size = settings.run.micro_batch
    batches = [collate(windows[n : n + size]) for n in range(0, len(windows), size)]
    chosen, _ = applicable(prepared.options.selection.rows(settings.model), settings.model)
    start = time.perf_counter()
    with torch.no_grad():
        for row in chosen:
            for tokens, targets in batches:
                model(tokens, targets, intervention=row.intervention, token_mask=targets != IGNORE)
    return time.perf_counter() - start, len(chosen)


def whole_command(prepared: launch.Launch) -> float:
    """Returns the seconds of the command."""
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        lightning_cli.run(prepared)
    return time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", required=True, help="Run folder.")
    parser.add_argument("--source", required=True, help="Text to score, NAME=PATH.")
    parser.add_argument("--tokens", default="100K", help="Of the text.")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    words = ["--ckpt_path", options.run, "--sources", options.source]
    words += ["--max_tokens", options.tokens, "--out"]
    bare, whole, passes = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            out = Path(folder) / str(number)
            prepared = launch.read(COMMANDS["ablate"], [*words, str(out)])
            seconds, passes = bare_passes(prepared, options.source)
            bare.append(seconds)
            whole.append(whole_command(prepared))
    ratios = [b / a for a, b in zip(bare, whole, strict=True)]
    table = Table("", "seconds", "ratio, median", "each round")
    table.add_row(f"{passes} forward passes", f"{median(bare):.1f}", "1.00", "")
    rounds = " ".join(f"{ratio:.2f}" for ratio in ratios)
    table.add_row("dualpath ablate", f"{median(whole):.1f}", f"{median(ratios):.2f}", rounds)
    Console(width=100).print(table)
    print(f"{options.tokens} tokens, {torch.get_num_threads()} threads, torch {torch.__version__}")


if __name__ == "__main__":
    main()
