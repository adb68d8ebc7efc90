"""The words of `dualpath sweep`; `request` says what they mean."""

from typing import Any

from dualpath_cli.sweep.cells import CONTROLS


def add_arguments(parser: Any) -> None:
    what = parser.add_argument_group("the configurations (lists are separated by commas)")
    text = (
        "Recipe with backbone, data, tokens and all else that they share; repeated, later ones win."
    )
    what.add_argument("--config", metavar="RECIPE", action="append", help=text)
    text = "FLOPs per token and layer that each spends, such as 4M; several make several sweeps."
    what.add_argument("--budget", metavar="FLOPS", help=text)
    text = (
        "Percents of a dual block's FLOPs that its deep path gets (default 25,50,75; none trains "
        "controls alone)."
    )
    what.add_argument("--alphas", metavar="LIST", default="25,50,75", help=text)
    text = "Numbers K of loops, of dual and loop blocks alike (default 2,4)."
    what.add_argument("--loops", metavar="LIST", default="2,4", help=text)
    text = (
        "Numbers of experts in the wide paths, of which each token takes model.top_k, at the same "
        "FLOPs; 0 is a dense one (default: the recipe's number)."
    )
    what.add_argument("--experts", metavar="LIST", help=text)
    text = (
        "Controls beside the dual ones (default wide,loop; none leaves them out): "
        + "; ".join(f"{name} is {meaning}" for name, meaning in CONTROLS.items())
        + "."
    )
    what.add_argument("--controls", metavar="LIST", default="wide,loop", help=text)
    text = (
        "Give one layer at a time a deep path, at each place in turn, beside PureWide layers of as "
        "many FLOPs: where does a loop pay? Compare draws the gain by place."
    )
    what.add_argument("--positions", action="store_true", help=text)
    text = (
        "What meets the budget: linear FLOPs (default), or linear FLOPs and attention scores "
        "together (total: the budget plus the passes of a dual block with the most loops), or both."
    )
    what.add_argument("--match", metavar="linear|total", default="linear", help=text)
    text = (
        "Also vary a key of the recipe: KEY=A,B,...; repeated, all combinations. Blocks that a key "
        "says nothing about are trained once. A list is written in brackets."
    )
    what.add_argument("--set", metavar="KEY=VALUES", action="append", default=[], help=text)
    text = (
        "Seeds of each: 3 is 0, 1 and 2 (default 3), 3-5 is 3, 4 and 5. A seed is the same data "
        "order in all."
    )
    what.add_argument("--seeds", metavar="N", default="3", help=text)
    rate = parser.add_argument_group("the learning rate of each family")
    text = (
        "Peak rates to try, as many for each family: wide, loop, dual, expanded. By default half, "
        "once and twice the recipe's where there are several families; off takes the recipe's; "
        "wide=4e-3,dual=2e-3 takes rates that are known from elsewhere, and tries none."
    )
    rate.add_argument("--tune", metavar="RATES|off", help=text)
    text = "Tokens of a trial (default: half of the recipe's run.max_tokens)."
    rate.add_argument("--tune-tokens", metavar="N", help=text)
    how = parser.add_argument_group("how it runs")
    text = "Folder of the sweep; the same words continue it, more seeds or values extend it."
    how.add_argument("--out", metavar="DIR", help=text)
    text = (
        "Runs at the same time (default 1). On CPUs they share the cores; on GPUs each takes the "
        "next one, and several share one where there are more runs than GPUs."
    )
    how.add_argument("--jobs", metavar="N", default="1", help=text)
    text = (
        "Write a SLURM array, OUT/jobs.sbatch, and run nothing; it has --jobs tasks at a time, one "
        "where that is not given."
    )
    how.add_argument("--slurm", action="store_true", help=text)
    text = (
        "Also score the mean of the weights of each run's last N checkpoints, of which it keeps as "
        "many, for `dualpath compare OUT --average N`. Rates are chosen by the last one."
    )
    how.add_argument("--average", metavar="N", help=text)
    text = (
        "TFLOP/s that a run sustains, for the hours of the plan; by default they follow from the "
        "first run of each family, once it has begun."
    )
    how.add_argument("--tflops", metavar="X", help=text)
    how.add_argument("--yes", action="store_true", help="Start without asking.")
