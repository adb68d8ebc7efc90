"""`python -m data_prep WORDS` is `dualpath prepare WORDS`."""

import sys

from dualpath_cli.cli import main as dualpath


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    return dualpath.main(["prepare", *words])


if __name__ == "__main__":
    sys.exit(main())
