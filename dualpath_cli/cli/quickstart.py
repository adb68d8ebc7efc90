"""`dualpath quickstart`: a corpus, a model, its ablation and the page of its routing.

In one process: each command by itself would take some seconds to import PyTorch and Lightning.
"""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from dualpath_cli.cli.main import main
from dualpath_cli.errors import Stopped

RUN = "runs/quickstart/default"
ABLATION, ROUTING = f"{RUN}/ablations/step-00000150", f"{RUN}/routing/step-00000150"
STEPS = {
    "prepare --source sample --out data/sample": "data/sample/manifest.json",
    "fit --config quickstart": f"{RUN}/curve.png",
    f"ablate --ckpt-path {RUN} --max-tokens 3000": f"{ABLATION}/forced_loops.pdf",
    f"routing --ckpt-path {RUN} --max-tokens 3000 --tagger none": f"{ROUTING}/summary.json",
}
"""Commands, and the last file that each of them writes."""
NEXT = (
    "fit --config quickstart --run.name wide --model.block wide --model.d_ffn_wide 1920",
    f"compare {RUN} runs/quickstart/wide",
    "flops --budget 80M --alpha 50 --k 4",
)


@dataclass(frozen=True)
class Quickstart:
    """Runs four commands, each shown as it can be typed, in the current folder: the sample corpus,
    a model of 1.6M parameters in some 80 seconds on two cores, its ablation, and the page of its
    routing. Interrupted, the same command continues.
    """


def run(_: Quickstart) -> str:
    """Shows and runs the commands that are left to do; returns what to look at and try then.

    Raises:
        Stopped: where a command ends with another exit code than 0; it has said why.
    """
    dualpath = _as_called()
    for words, made in STEPS.items():
        print(f"{dualpath} {words}", flush=True)
        if Path(made).exists():
            print(f"nothing to do: {made} is there\n")
        elif code := main(words.split()):
            again = "" if code == 2 else "; the same command continues"  # not a mistake here
            raise Stopped(f"ended at {words.split()[0]}{again}", code, False)
        else:
            print()
    tries = "\n      ".join(f"{dualpath} {words}" for words in NEXT)
    return f"look: {ROUTING}/index.html\ntry:  {tries}"


def _as_called() -> str:
    """The command `dualpath` as it can be typed here: with its path where the shell needs one."""
    script, known = Path(sys.argv[0]), shutil.which("dualpath")
    if script.name != "dualpath":
        return "python -m dualpath_cli"
    return "dualpath" if known and script.samefile(known) else os.path.relpath(script)
