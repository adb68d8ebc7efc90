"""`dualpath quickstart`: a corpus, a model, its ablation and the page of its routing.

All in one process: separate commands would each import PyTorch and Lightning for some
seconds.
"""

import os
import sys
from dataclasses import dataclass

from dualpath_cli.base.errors import Stopped
from dualpath_cli.base.output import say
from dualpath_cli.cli.main import main

RUN = "runs/quickstart/default"
LAST = f"{RUN}/checkpoints/step-00000150"
STEPS = {
    "prepare --source sample --out data/sample": "",
    "fit --config quickstart": "",
    f"ablate --ckpt-path {RUN} --data.val_tokens 3000": (
        f"{RUN}/ablations/step-00000150/forced_loops.pdf"
    ),
    f"routing --ckpt-path {RUN} --data.val_tokens 3000 --tagger none": (
        f"{RUN}/routing/step-00000150/summary.json"
    ),
}
"""The commands, and the file that each writes last. Empty: the command itself sees,
without importing PyTorch, that it is finished."""
WIDE = "--run.name wide --model.block wide --model.d_ffn_wide 1824"
NEXT = f"""look: {RUN}/routing/step-00000150/index.html
try:  dualpath fit --config quickstart {WIDE}
      dualpath compare {RUN} runs/quickstart/wide
      dualpath flops --budget 80M --alpha 50 --k 4"""


@dataclass(frozen=True)
class Quickstart:
    """Runs and shows four commands in the current folder: the sample corpus, a model of
    1.6M parameters in some 80 seconds on two cores, its ablation, and the page of its
    routing. After an interruption the same command continues; studies that are done are
    left out.
    """


def quickstart(_: Quickstart) -> str:
    """Shows and runs the commands, up to the first failure; returns the next things to
    try.

    A command whose results are there, and newer than the model, is not run again.
    """
    for words, written in STEPS.items():
        say(f"dualpath {words}", sys.stdout)
        if written and _is_newer(written, LAST):
            say(f"done before: {os.path.dirname(written)}\n", sys.stdout)
            continue

        code = main(words.split())
        if code != 0:
            # not for a mistake
            again = "" if code == 2 else "; the same command continues"
            raise Stopped(f"ended at {words.split()[0]}{again}", code, False)
        say("", sys.stdout)
    return NEXT


def _is_newer(file: str, other: str) -> bool:
    both_exist = os.path.exists(file) and os.path.exists(other)
    return both_exist and os.path.getmtime(file) >= os.path.getmtime(other)
