"""What the page of `dualpath routing` costs beside reading, and how large it is.

python -m benchmarks.routing_page --run RUN --source NAME=PATH --tokens 10K --sequences 12

By turns, in one process after a first round that does not count: reading with a page of one
sequence and no costs, with the page of all sequences without costs, and with them; each from the
checked recipe to its end, without parts of speech.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch

from benchmarks.studies import argument_parser, seconds
from benchmarks.tables import show
from dualpath_cli.command import launch, lightning_cli
from dualpath_cli.command.records import COMMANDS


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--sequences", default="12", help="On the page.")
    options = parser.parse_args(arguments)
    words = ["--ckpt_path", options.run, "--sources", options.source]
    words += ["--max_tokens", options.tokens, "--tagger", "none"]
    pages = {
        "reading, a page of 1 sequence": ["--sequences", "1", "--no_costs"],
        "and what is read early": ["--sequences", options.sequences, "--no_costs"],
        "and what forcing costs": ["--sequences", options.sequences],
    }
    times: dict[str, list[float]] = {name: [] for name in pages}
    sizes: dict[str, int] = {}
    for round_ in range(1 + options.rounds):
        for name, more in pages.items():
            with tempfile.TemporaryDirectory() as folder:
                read = launch.read(COMMANDS["routing"], [*words, *more, "--out", folder])
                spent = seconds(lambda read=read: lightning_cli.run(read))
                sizes[name] = Path(folder, "index.html").stat().st_size
            if round_:
                times[name].append(spent)
    rows = [
        [name, f"{median(spent):.1f}", " ".join(f"{each:.1f}" for each in spent),
         f"{sizes[name] / 1e6:.2f}"] for name, spent in times.items()
    ]  # fmt: skip
    show(["", "seconds", "each round", "page, MB"], rows)
    print(f"{options.tokens} tokens, {torch.get_num_threads()} threads, torch {torch.__version__}")


if __name__ == "__main__":
    main()
