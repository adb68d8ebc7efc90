"""`dualpath flops`: its options, and which answer they ask for.

The same options serve argparse (start-up within 0.3 s) and jsonargparse (the LightningCLI), so they
keep to what both parse alike; values are checked in `run`, where both ways end.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from dualpath_cli.errors import UserError
from dualpath_cli.flops import paper
from dualpath_cli.flops.description import (
    HARDWARE_OPTIONS,
    Description,
    Options,
    cluster_of,
    from_recipes,
    solved,
    solved_table,
)
from dualpath_cli.flops.plan import STRATEGIES, plan
from dualpath_cli.flops.widths import Match
from dualpath_cli.options import check_choice, percent

CHOICES: dict[str, tuple[str, ...]] = {
    "match": get_args(Match),
    "reading": paper.READINGS,
    "format": ("table", "json"),
}
"""Options with a fixed set of values."""

SOLVER_OPTIONS = ("alpha", "loops", "block", "match", "width_multiple", "layers", "dim", "heads",
                  "kv_heads", "vocab", "experts", "top_k")  # fmt: skip
PLAN_OPTIONS = ("gpus_per_node", "shard_size", "micro_batch", "batch_tokens", "node_bandwidth",
                "network_bandwidth")  # fmt: skip
EVERY_OPTION = ("budget", *SOLVER_OPTIONS, "seq_len", "reading", "config", "table",
                *HARDWARE_OPTIONS, "decode", "plan", *PLAN_OPTIONS, "format")  # fmt: skip


def add_arguments(parser: Any) -> None:
    what = parser.add_argument_group("what is described")
    text = "Solve FFN widths for so many linear FLOPs per token and layer, such as 80M."
    what.add_argument("--budget", metavar="FLOPS", help=text)
    text = (
        "Describe a recipe's model instead (path or name); may be repeated, later ones win. With "
        "--budget the model is compared to it."
    )
    what.add_argument("--config", action="append", metavar="RECIPE", help=text)
    text = "Print the paper's 13 configurations, solved for --budget."
    what.add_argument("--table", action="store_true", help=text)
    _add_block(parser.add_argument_group("the block that spends the budget"))
    backbone = parser.add_argument_group("the backbone")
    _add_numbers(backbone, int, {
        "--layers": "Number of blocks. Default: 16.",
        "--dim": "Width of the residual stream. Default: 768.",
        "--heads": "Number of query heads. Default: one for 64 channels, so 12.",
        "--kv-heads": "Number of key and value heads. Default: as many as query heads.",
        "--vocab": "Rows of the embedding. Default: 50304.",
        "--seq-len": "Tokens a sequence, for attention scores. Default: 4096, or the recipe's.",
    })  # fmt: skip
    hours = parser.add_argument_group("training hours")
    text = "Training tokens, such as 38.5B. Default: 38503710720."
    hours.add_argument("--tokens", metavar="N", help=text)
    _add_numbers(hours, int, {"--gpus": "Number of GPUs. Default: 64."})
    text = (
        "TFLOP/s that each GPU sustains in training, not its peak. Default: 68, the median that "
        "the paper's training times imply for its A100s."
    )
    _add_numbers(hours, float, {"--tflops": text})
    _add_plan(parser.add_argument_group("many GPUs"))
    text = (
        "Say how fast texts can grow at most that are decoded side by side: texts x tokens of each "
        "@ bandwidth of the memory, such as 32x4096@3.35TB/s."
    )
    parser.add_argument_group("decoding").add_argument("--decode", metavar="BATCH", help=text)
    answer = parser.add_argument_group("the answer")
    text = (
        "as_trained (the authors' configuration) or as_written (the paper's text). Default: "
        "as_trained; a recipe as it is."
    )
    answer.add_argument("--reading", metavar="READING", help=text)
    answer.add_argument("--format", metavar="FORMAT", help="table or json. Default: table.")


def _add_numbers(group: Any, kind: type, options: Mapping[str, str]) -> None:
    for option, text in options.items():
        group.add_argument(option, type=kind, metavar="N" if kind is int else "X", help=text)


def _add_block(group: Any) -> None:
    text = (
        "Kind of block: dual, loop or wide; or one for each layer, as wide,dual,wide,wide. "
        "Default: dual."
    )
    group.add_argument("--block", metavar="KIND", help=text)
    text = "Percent of a dual block's FLOPs that its deep path gets. Default: 50."
    group.add_argument("--alpha", type=percent, metavar="PERCENT", help=text)
    text = (
        "K, passes of the deep path; or one for each layer, as 1,4,1,1. --k is the same. "
        "Default: 4."
    )
    group.add_argument("--loops", "--k", dest="loops", metavar="K", help=text)
    text = (
        "linear: linear FLOPs meet the budget, as in the paper. total: linear FLOPs and attention "
        "scores meet the budget plus the K + 1 attention passes of a dual block, to within 1 "
        "percent, so wide and loop blocks get wider FFNs. Default: linear."
    )
    group.add_argument("--match", metavar="WHAT", help=text)
    _add_numbers(group, int, {
        "--width-multiple": "Multiple that widths are solved in and that effective widths round up "
        "to, under both readings. Default: solve in 64; effective widths 64 as written, 256 as "
        "trained. Under --match total: the coarsest of 64 (256) and its halves that gets within 1 "
        "percent.",
        "--experts": "Experts in each wide path's FFN, at the same FLOPs. Default: 0, dense.",
        "--top-k": "Experts that each token takes. Default: 2.",
    })  # fmt: skip


def _add_plan(group: Any) -> None:
    text = "Print memory, traffic and time of each of --gpus under ddp, fsdp and hsdp instead."
    group.add_argument("--plan", action="store_true", help=text)
    _add_numbers(group, int, {
        "--gpus-per-node": "GPUs of a node. Default: 8.",
        "--shard-size": "GPUs that share one set of weights under hsdp. Default: a node's.",
        "--micro-batch": "Sequences at once, at most. Default: the recipe's, or 2.",
    })  # fmt: skip
    text = "Tokens of a step, such as 4194304. Default: the recipe's, or 2097152."
    group.add_argument("--batch-tokens", metavar="N", help=text)
    _add_numbers(group, float, {
        "--node-bandwidth": "GB/s that a GPU sends within its node. Default: 300.",
        "--network-bandwidth": "GB/s that a GPU sends to other nodes. Default: 25.",
    })  # fmt: skip


def run(namespace: Any) -> str:
    """Prints a table, or returns JSON; ``namespace`` has the options as attributes.

    Options without effect are named on stderr.
    """
    options = {name: getattr(namespace, name, None) for name in EVERY_OPTION}
    given = [name for name, value in options.items() if value not in (None, False, [])]
    for name, allowed in CHOICES.items():
        if options[name] is not None:
            check_choice(_flag(name), str(options[name]), allowed)
    if options["plan"]:
        _refuse(given, ("table", "tokens", "decode"), "--plan is of one training step of one model")
    else:
        _refuse(given, PLAN_OPTIONS, "only --plan asks what connects GPUs and how they share")
    if options["config"]:
        _refuse(given, (*SOLVER_OPTIONS, "table"), "--config describes the recipe's own model")
        return _model(from_recipes(options), options)
    if options["budget"] is None:
        raise UserError(
            "nothing to describe; give --budget (such as --budget 80M --alpha 50 --k 4), "
            "or --config RECIPE"
        )
    if options["table"]:
        return _table(options, given)
    _name_idle_options(options, given)
    return _model(solved(options), options)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _refuse(given: Sequence[str], refused: Sequence[str], because: str) -> None:
    both = [_flag(name) for name in given if name in refused]
    if both:
        raise UserError(f"{because}; drop {', '.join(both)}")


def _note(text: str) -> None:
    """Says something beside the answer, so that JSON stays loadable."""
    print(f"dualpath flops: note: {text}", file=sys.stderr)


def _name_idle_options(options: Options, given: Sequence[str]) -> None:
    block = options["block"] or "dual"
    idle = ["alpha"] if "dual" not in block else []
    if set(block.split(",")) == {"wide"} and options["match"] != "total":
        idle.append("loops")
    if set(block.split(",")) == {"loop"}:
        idle.append("experts")
    if not options["experts"]:
        idle.append("top_k")
    for name in idle:
        if name in given:
            dense = " without --experts" if name == "top_k" else ""
            _note(f"{_flag(name)} has no effect on block '{block}'{dense}")


def _model(description: Description, options: Options) -> str:
    """One model, or with `--plan` the GPUs that train it."""
    record = description.record()
    if options["plan"]:
        cluster = cluster_of(options, description)
        config = replace(description.config, max_seq_len=description.seq_len)
        plans = [plan(config, strategy, cluster) for strategy in STRATEGIES]
        record["plan"] = vars(cluster) | {plan.strategy: plan.record() for plan in plans}
    if options["format"] == "json":
        return json.dumps(record, indent=2)
    from dualpath_cli.flops import report  # with rich, which JSON needs none of
    from dualpath_cli.output.console import plain_console

    if options["plan"]:
        report.show_plan(plain_console(), description, cluster, plans)
    else:
        report.show_model(plain_console(), description)
    return ""


def _table(options: Options, given: Sequence[str]) -> str:
    swept = ("block", "alpha") if options["match"] == "total" else ("block", "alpha", "loops")
    _refuse(given, swept, "--table goes through every block, alpha and K")
    found, without_room = solved_table(options)
    if not found:
        solved(options)  # raises, with the budget that has room
    if without_room:
        _note(f"this budget leaves no room for an FFN in {', '.join(without_room)}")
    if options["format"] == "json":
        return json.dumps([description.record() for description in found], indent=2)
    from dualpath_cli.flops import report
    from dualpath_cli.output.console import plain_console

    report.show_configurations(plain_console(), found)
    return ""
