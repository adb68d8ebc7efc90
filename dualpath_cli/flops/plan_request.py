"""The options of `dualpath flops --plan` as a cluster, and as micro-batches of a step."""

from math import gcd
from typing import Any, get_args

from dualpath_cli.errors import UserError
from dualpath_cli.flops.memory import Optimizer
from dualpath_cli.flops.plan import Cluster
from dualpath_cli.flops.report import Description
from dualpath_cli.flops.request import Options, checked, section
from dualpath_cli.options.values import check_choice
from dualpath_cli.sizes import parse_size

PLAN_OPTIONS = ("gpus_per_node", "shard_size", "micro_batch", "batch_tokens", "node_bandwidth",
                "network_bandwidth")  # fmt: skip

BATCH_TOKENS, MICRO_BATCH = 2_097_152, 2
"""As in the paper's training, where a recipe has none."""

NODE_BANDWIDTH, NETWORK_BANDWIDTH = 300.0, 25.0
"""GB/s that each GPU sends: NVLink of an A100 by its data sheet, and 200 Gb/s of network."""

COUNTS, BANDWIDTHS = (1, 10**9), (1e-6, 1e9)
"""Ranges of the options."""


def cluster_of(options: Options, description: Description) -> Cluster:
    """The cluster that is planned for.

    Raises:
        UserError: where GPUs do not make up nodes or groups, or a step does not go out evenly.
    """
    gpus = description.hardware.gpus
    gpus_per_node = checked(options, "gpus_per_node", min(8, gpus), COUNTS)
    run, optim = section(options, "run"), section(options, "optim")
    shard_size = _of_recipe(options, "shard_size", run, min(gpus_per_node, gpus))
    if gpus > gpus_per_node and gpus % gpus_per_node:
        raise UserError(
            f"--gpus {gpus} are no whole nodes of --gpus-per-node {gpus_per_node}; "
            f"{-(-gpus // gpus_per_node) * gpus_per_node} would be"
        )
    if gpus % shard_size or (shard_size % gpus_per_node and gpus_per_node % shard_size):
        raise UserError(
            f"--shard-size {shard_size} must divide --gpus {gpus}, and divide or be a multiple of "
            f"--gpus-per-node {gpus_per_node}; {gpus_per_node} would"
        )
    sequences = _sequences(
        options, run.get("batch_tokens", BATCH_TOKENS), description.seq_len, gpus
    )
    micro_batch = gcd(sequences // gpus, _of_recipe(options, "micro_batch", run, MICRO_BATCH))
    return Cluster(
        gpus=gpus,
        gpus_per_node=gpus_per_node,
        shard_size=shard_size,
        micro_batch=micro_batch,
        accumulate=sequences // gpus // micro_batch,
        tflops=description.hardware.tflops,
        node_bandwidth=checked(options, "node_bandwidth", NODE_BANDWIDTH, BANDWIDTHS),
        network_bandwidth=checked(options, "network_bandwidth", NETWORK_BANDWIDTH, BANDWIDTHS),
        reduce_bytes=2 if run.get("reduce_dtype") == "bfloat16" else 4,
        optimizer=check_choice("optim.name", str(optim.get("name", "adamw")), get_args(Optimizer)),
    )


def _sequences(options: Options, of_recipe: object, seq_len: int, gpus: int) -> int:
    """Sequences of a step, which all GPUs get equally many of. Raises UserError if they cannot."""
    asked = options["batch_tokens"]
    name = "run.batch_tokens" if asked is None else "--batch-tokens"
    tokens = parse_size(str(of_recipe if asked is None else asked), name)
    sequences, rest = divmod(tokens, seq_len)
    if sequences and not rest and sequences % gpus == 0:
        return sequences
    fitting = max(1, -(-sequences // gpus)) * gpus * seq_len
    untried = ", a batch that the paper did not train with" if fitting > BATCH_TOKENS else ""
    raise UserError(
        f"a step of {tokens:,} tokens is {tokens / seq_len:,.6g} sequences of {seq_len:,}, of "
        f"which --gpus {gpus} cannot get equally many; --batch-tokens {fitting} would do{untried}"
    )


def _of_recipe(options: Options, name: str, run: dict[str, Any], default: int) -> int:
    """A number of a recipe's `run` section, where no option gives another."""
    given = run.get(name)
    return checked(options, name, given if isinstance(given, int) else default, COUNTS)
