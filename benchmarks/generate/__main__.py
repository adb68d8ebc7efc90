"""How fast a model decodes, and what each saving buys and costs.

python -m benchmarks.generate speed                       # beside a Llama of equal FLOPs
python -m benchmarks.generate savings --ckpt-path RUN --source gsm8k=test.jsonl

All variants take turns in one process. On a CPU seconds are those of the process, so that other
work on the machine counts less.
"""

import argparse
from collections.abc import Sequence

import torch

from benchmarks.generate import savings, speed


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", help="cpu or cuda.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", help="JSON file for all timings.")
    kinds = parser.add_subparsers(required=True)
    for part in (speed, savings):
        own = kinds.add_parser(part.__name__.rpartition(".")[2], help=part.__doc__)
        part.add_arguments(own)
        own.set_defaults(run=part.run)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)  # seconds of the process would count each
    torch.manual_seed(0)
    given.run(given)


if __name__ == "__main__":
    main()
