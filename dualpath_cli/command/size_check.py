"""Whether a model is of a size that this machine can build, told from its recipe alone."""

import os

from dualpath_cli.errors import UserError
from dualpath_cli.flops.count import parameters
from dualpath_cli.recipe.settings import Settings

BYTES = 4
"""Of a weight: weights are float32 wherever they are kept."""


def check_size(settings: Settings) -> None:
    """Checks that the weights alone fit into this machine's memory; a run takes a lot more.

    Where all machines share one set of them, no machine holds more than its part.

    Raises:
        UserError: if they do not.
    """
    trainer, weights = settings.trainer, parameters(settings.model)
    within_a_node = trainer.strategy == "hsdp" and settings.run.shard_size is None
    machines = trainer.num_nodes if trainer.is_sharded and not within_a_node else 1
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if weights * BYTES > memory * machines:
        raise UserError(
            f"the model has {weights / 1e6:,.0f}M parameters, {weights * BYTES / 1e9:,.0f} GB, and "
            f"this machine {memory / 1e9:,.0f} GB of memory; lower model.n_layers "
            f"({settings.model.n_layers}), d_model ({settings.model.d_model}), vocab_size or the "
            "FFN widths"
        )
