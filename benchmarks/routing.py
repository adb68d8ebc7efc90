"""What `dualpath routing` costs beside a plain validation pass over the same tokens.

python -m benchmarks.routing --run RUN --source NAME=PATH --tagger PIPELINE

By turns, in one process after a first round that does not count: `dualpath validate` and `dualpath
routing`, each from the checked recipe to its end, and tagging alone, of tokens cut before the clock
starts. The aim is at most 1.3 times validation plus tagging.
"""

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from dualpath_cli.command import launch, lightning_cli
from dualpath_cli.command.records import COMMANDS
from dualpath_cli.study.parts_of_speech import Tagger
from dualpath_cli.study.tags import tag
from dualpath_cli.text.documents import parse_source, read_documents
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training.windows import Tokens, document_windows


def seconds(work: Callable[[], object]) -> float:
    """Returns how long a piece of work takes, what it prints thrown away."""
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        work()
    return time.perf_counter() - start


def tagging(windows: Sequence[Tokens], tokenizer: Tokenizer, pipeline: str) -> None:
    """Tags the tokens that routing reads."""
    tag(windows, tokenizer, Tagger(pipeline))


def cut(prepared: launch.Launch, source: str) -> tuple[list[Tokens], Tokenizer]:
    """Returns the sequences that routing reads, and what cut them."""
    tokenizer = Tokenizer.load(prepared.run_folder / "tokenizer.json")
    length, limit = prepared.settings.model.max_seq_len, prepared.settings.data.val_tokens
    documents = read_documents(parse_source(source))
    return list(document_windows(documents, tokenizer, length, limit)), tokenizer


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", required=True, help="Run folder.")
    parser.add_argument("--source", required=True, help="Text to read, NAME=PATH.")
    parser.add_argument("--tagger", required=True, help="spaCy pipeline, by name or path.")
    parser.add_argument("--tokens", default="100K", help="Of the text.")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    name, _, path = options.source.partition("=")
    run = ["--ckpt_path", options.run]
    plain = ["--data.val", f'{{"{name}": "{path}"}}', "--data.val_tokens", options.tokens]
    words = ["--sources", options.source, "--max_tokens", options.tokens]
    words += ["--tagger", options.tagger, "--out"]
    times: dict[str, list[float]] = {"dualpath validate": [], "tagging": [], "dualpath routing": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1 + options.rounds):
            validate = launch.read(COMMANDS["validate"], [*run, *plain])
            routing = launch.read(
                COMMANDS["routing"], [*run, *words, str(Path(folder) / str(number))]
            )
            for what, work in {
                "dualpath validate": partial(lightning_cli.run, validate),
                "tagging": partial(tagging, *cut(routing, options.source), options.tagger),
                "dualpath routing": partial(lightning_cli.run, routing),
            }.items():
                times[what].append(seconds(work))
            if number == 0:  # it imports and warms up
                times = {what: [] for what in times}
    table = Table("", "seconds", "ratio, median", "each round")
    for what, measured in times.items():
        if what != "dualpath routing":
            table.add_row(what, f"{median(measured):.1f}", "", "")
    ratios = [
        routing / (validate + tagged)
        for validate, tagged, routing in zip(*times.values(), strict=True)
    ]
    rounds = " ".join(f"{ratio:.2f}" for ratio in ratios)
    whole = median(times["dualpath routing"])
    table.add_row("dualpath routing", f"{whole:.1f}", f"{median(ratios):.2f}", rounds)
    Console(width=100).print(table)
    print(f"{options.tokens} tokens, {torch.get_num_threads()} threads, torch {torch.__version__}")


if __name__ == "__main__":
    main()
