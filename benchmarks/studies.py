"""The time of studies, from the recipe to their files, beside the passes that they consist of.

python -m benchmarks.studies ablate --run RUN --source NAME=PATH
python -m benchmarks.studies routing --run RUN --source NAME=PATH --tagger PIPELINE
python -m benchmarks.studies page --run RUN --source NAME=PATH --tokens 10K --sequences 12

In one process: `ablate` and the bare model on the same batches under the same interventions, with
texts tokenised and weights loaded before the clock starts; `routing`, two `validate`s (it reads the
untrained model as well) and tagging alone; `routing` with a page of one sequence, of all, and with
what forcing each token costs.
"""

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import torch

from benchmarks.results import show, spread
from dualpath_cli.command import launch
from dualpath_cli.command.records import COMMANDS
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.session import lightning_cli
from dualpath_cli.study.ablation.suites import applicable
from dualpath_cli.study.parts_of_speech import Tagger
from dualpath_cli.study.tags import tag
from dualpath_cli.text.documents import parse_source, read_documents
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training.data.windows import Tokens, Windows, collate, document_windows
from dualpath_cli.training.state.weights import load_weights

Works = Mapping[str, Callable[[], object]]
"""The work of a round, by name; the last is compared with the sum of those before it."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--run", required=True, help="Run folder.")
    parser.add_argument("--source", required=True, help="Text to read, NAME=PATH.")
    parser.add_argument("--tokens", default="100K", help="Of the text.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tagger", default="none", help="spaCy pipeline, by name or path.")
    parser.add_argument("--sequences", default="12", help="On the page.")
    options = parser.parse_args(arguments)
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1 + options.rounds):  # the first one warms up
            works = STUDIES[options.study](options, str(Path(folder, str(number))))
            for name, work in works.items():
                times.setdefault(name, []).append(seconds(work))
    times = {name: spent[1:] for name, spent in times.items()}
    *others, study = times.values()
    ratios = [whole / sum(parts) for whole, *parts in zip(study, *others, strict=True)]
    rows = [[name, f"{median(spent):.1f}", ""] for name, spent in times.items()]
    rows[-1][2] = spread(ratios)
    show(["", "seconds", "ratio"], rows)
    print(f"{options.tokens} tokens, {torch.get_num_threads()} threads, torch {torch.__version__}")


def seconds(work: Callable[[], object]) -> float:
    """Seconds of some work by the clock; its output is thrown away."""
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        work()
    return time.perf_counter() - start


def launched(command: str, options: argparse.Namespace, *words: str) -> launch.Launch:
    """A study of the run and the source, ready to be run."""
    given = ["--ckpt-path", options.run, "--sources", options.source]
    return launch.read(COMMANDS[command], [*given, "--max-tokens", options.tokens, *words])


def ablate(options: argparse.Namespace, out: str) -> Works:
    prepared = launched("ablate", options, "--out", out)
    settings = prepared.settings
    model = DualPathLM(settings.model)
    assert prepared.checkpoint is not None
    load_weights(model, prepared.checkpoint)
    windows = Windows(cut(prepared, options.source)[0]).windows
    size = settings.run.micro_batch
    batches = [collate(windows[n : n + size]) for n in range(0, len(windows), size)]
    chosen, _ = applicable(prepared.options.selection.rows(settings.model), settings.model)

    @torch.no_grad()
    def passes() -> None:
        for row in chosen:
            for tokens, targets in batches:
                mask = targets != IGNORE
                forward(model, tokens, targets, intervention=row.intervention, token_mask=mask)

    return {
        f"{len(chosen)} forward passes": passes,
        "dualpath ablate": partial(lightning_cli.run, prepared),
    }


def routing(options: argparse.Namespace, out: str) -> Works:
    name, _, path = options.source.partition("=")
    plain = ["--data.val", f'{{"{name}": "{path}"}}', "--data.val_tokens", options.tokens]
    validate = launch.read(COMMANDS["validate"], ["--ckpt-path", options.run, *plain])
    prepared = launched("routing", options, "--tagger", options.tagger, "--out", out)
    sequences, tokenizer = cut(prepared, options.source)
    works = {"dualpath validate, twice": lambda: [lightning_cli.run(validate) for _ in range(2)]}
    if options.tagger != "none":  # loading the pipeline counts
        works["tagging"] = lambda: tag(sequences, tokenizer, Tagger(options.tagger))
    return {**works, "dualpath routing": partial(lightning_cli.run, prepared)}


def page(options: argparse.Namespace, out: str) -> Works:
    pages = {
        "a page of 1 sequence": ["--sequences", "1", "--no-costs"],
        "of all sequences": ["--sequences", options.sequences, "--no-costs"],
        "and what forcing costs": ["--sequences", options.sequences],
    }
    works = {}
    for number, (name, words) in enumerate(pages.items()):
        words += ["--tagger", "none", "--out", f"{out}-{number}"]
        works[name] = partial(lightning_cli.run, launched("routing", options, *words))
    return works


STUDIES = {"ablate": ablate, "routing": routing, "page": page}


def cut(prepared: launch.Launch, source: str) -> tuple[list[Tokens], Tokenizer]:
    """Returns the sequences that a study reads, and the tokenizer."""
    tokenizer = Tokenizer.load(prepared.run_folder / "tokenizer.json")
    length, data = prepared.settings.model.max_seq_len, prepared.settings.data
    documents = read_documents(parse_source(source))
    windows, _ = document_windows(documents, tokenizer, length, data.val_tokens, data.val_seed)
    return windows, tokenizer


if __name__ == "__main__":
    main()
