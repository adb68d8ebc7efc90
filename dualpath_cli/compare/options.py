"""The words of `dualpath compare`."""

from typing import Any


def add_arguments(parser: Any) -> None:
    text = (
        "Run folders, or a folder of runs: of `dualpath sweep`, or DIR/RECIPE/NAME as fit has it."
    )
    parser.add_argument("runs", metavar="RUN", nargs="*", help=text)
    text = (
        "Folder for tables, figures and the page; by default `comparison` in the folder "
        "of runs, or here for several RUNs and --paper."
    )
    parser.add_argument("--out", metavar="DIR", help=text)
    text = (
        "Configurations that the others are tested against, separated by commas or by repeating "
        "the option; by default the PureWide of each budget."
    )
    parser.add_argument("--baseline", metavar="NAMES", action="append", default=[], help=text)
    text = (
        "One table for each budget, whatever the number of training tokens: to compare at equal "
        "time. Without it each number of tokens has a table."
    )
    parser.add_argument("--any-length", action="store_true", help=text)
    text = (
        "Test the mean of the validation sets alone, not each set, which leaves fewer tests to "
        "correct for: to be chosen before the numbers are seen."
    )
    parser.add_argument("--aggregate-only", action="store_true", help=text)
    text = (
        "Compare the mean of the weights of each run's last N checkpoints, as sweep --average N "
        "and validate --average N have scored it."
    )
    parser.add_argument("--average", metavar="N", help=text)
    text = (
        "Show the paper's own 26 configurations in the same tables and figures, as single runs; "
        "needs no RUN."
    )
    parser.add_argument("--paper", action="store_true", help=text)
