"""What the benchmarks of studies share: their text, and timing them beside what they consist of."""

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import torch

from benchmarks.tables import median_and_rounds, show
from dualpath_cli.command.launch import Launch
from dualpath_cli.text.documents import parse_source, read_documents
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training.data.windows import Tokens, document_windows


def argument_parser(description: str) -> argparse.ArgumentParser:
    """Returns a parser of a study's run and text, and of how often it is timed."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--run", required=True, help="Run folder.")
    parser.add_argument("--source", required=True, help="Text to read, NAME=PATH.")
    parser.add_argument("--tokens", default="100K", help="Of the text.")
    parser.add_argument("--rounds", type=int, default=3)
    return parser


def cut(prepared: Launch, source: str) -> tuple[list[Tokens], Tokenizer]:
    """Returns the sequences that a study reads, and what cut them."""
    tokenizer = Tokenizer.load(prepared.run_folder / "tokenizer.json")
    length, data = prepared.settings.model.max_seq_len, prepared.settings.data
    documents = read_documents(parse_source(source))
    windows, _ = document_windows(documents, tokenizer, length, data.val_tokens, data.val_seed)
    return windows, tokenizer


def compare(
    options: argparse.Namespace,
    prepare: Callable[[str], Mapping[str, Callable[[], object]]],
    warm_up: int = 0,
) -> None:
    """Times a study by turns with what it consists of, and prints the ratio to their sum.

    Args:
        options: of an `argument_parser`.
        prepare: returns the works of a round by name, the study last; it gets a new folder for the
            study's files. Its own time does not count.
        warm_up: first rounds that do not count.
    """
    rounds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(warm_up + options.rounds):
            works = prepare(str(Path(folder, str(number))))
            rounds.append({name: seconds(work) for name, work in works.items()})
    times = {name: [timed[name] for timed in rounds[warm_up:]] for name in rounds[0]}
    *others, study = times.values()
    ratios = [whole / sum(parts) for whole, *parts in zip(study, *others, strict=True)]
    rows = [[name, f"{median(spent):.1f}", "", ""] for name, spent in times.items()]
    rows[-1][2:] = median_and_rounds(ratios)
    show(["", "seconds", "ratio, median", "each round"], rows)
    print(f"{options.tokens} tokens, {torch.get_num_threads()} threads, torch {torch.__version__}")


def seconds(work: Callable[[], object]) -> float:
    """How long a work takes; what it prints is thrown away."""
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        work()
    return time.perf_counter() - start
