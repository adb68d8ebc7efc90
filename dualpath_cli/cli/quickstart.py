"""`dualpath quickstart`: a corpus, a model, its ablation and the page of its routing.

All in one process: separate commands would each import PyTorch and Lightning for some seconds.
"""

from dataclasses import dataclass

from dualpath_cli.base.errors import Stopped
from dualpath_cli.cli.main import main

RUN = "runs/quickstart/default"
STEPS = (
    "prepare --source sample --out data/sample",
    "fit --config quickstart",
    f"ablate --ckpt-path {RUN} --data.val_tokens 3000",
    f"routing --ckpt-path {RUN} --data.val_tokens 3000 --tagger none",
)
NEXT = f"""look: {RUN}/routing/step-00000150/index.html
try:  dualpath fit --config quickstart --run.name wide --model.block wide --model.d_ffn_wide 1824
      dualpath compare {RUN} runs/quickstart/wide
      dualpath flops --budget 80M --alpha 50 --k 4"""


@dataclass(frozen=True)
class Quickstart:
    """Runs and shows four commands in the current folder: the sample corpus, a model of 1.6M
    parameters in some 80 seconds on two cores, its ablation, and the page of its routing. After an
    interruption the same command continues.
    """


def run(_: Quickstart) -> str:
    """Shows and runs the commands, up to the first failure; returns the next things to try."""
    for words in STEPS:
        print(f"dualpath {words}", flush=True)
        if code := main(words.split()):
            again = "" if code == 2 else "; the same command continues"  # not for a mistake
            raise Stopped(f"ended at {words.split()[0]}{again}", code, False)
        print()
    return NEXT
