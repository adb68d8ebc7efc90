"""What `make quickstart` runs on the sample corpus, in one process.

Each command by itself would take some seconds to import PyTorch and Lightning.
"""

import os
import shlex
import sys

from dualpath_cli.cli import main

RUN = "runs/quickstart/default"
COMMANDS = f"""\
dualpath fit --config quickstart
dualpath ablate --ckpt-path {RUN} --max-tokens 3000
dualpath routing --ckpt-path {RUN} --max-tokens 3000 --tagger none
"""


def run() -> int:
    """Shows and runs the commands up to one that fails; returns the last exit code."""
    folder = os.path.relpath(os.path.dirname(sys.executable))
    for command in COMMANDS.splitlines():
        print(f"{folder}/{command}", flush=True)
        if code := main(shlex.split(command)[1:]):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(run())
