"""A warning of matrices whose gradients are below AdamW's epsilon.

AdamW moves a weight by its learning rate times ``m / (sqrt(v) + eps)``, where m and v
are running means of the gradient and of its square. A constant gradient g thus gives
g / (g + eps): about 1 for any usual g, a half if g = eps, a thousandth if g is a
thousandth of eps. The loss of such a run looks like any other. Muon has no epsilon of
this kind. `guard` finds gradients of exactly zero, which end the run.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from dualpath_cli.training.guard import PATIENCE, joined_names, largest_gradients
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.muon import HIDDEN, Muon


class FaintGradients(Callback):
    """Names these matrices once, after step PATIENCE or a continued run's first."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.judged = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, *ignored: Any
    ) -> None:
        """Judges a step's clipped gradients, by the largest entry of each matrix."""
        module: DualPathModule = pl_module
        step = trainer.global_step
        if self.judged or step < PATIENCE or module.bad_step is not None:
            return
        self.judged = True

        names: dict[torch.Tensor, str]
        names = {parameter: name for name, parameter in module.model.named_parameters()}
        matrices: dict[str, torch.Tensor] = {}
        for parameter in _moved_by_adamw(trainer.optimizers[0]):
            if parameter.ndim > 1:
                matrices[names[parameter]] = parameter

        # A router may have no gradient yet.
        eps = module.optim_settings.eps
        largest = largest_gradients(matrices)
        faint = {name: size for name, size in largest.items() if 0 < size < eps}
        if not faint:
            return

        self.say(
            f"warning: {joined_names(faint)} hardly train: gradients of step {step} "
            f"are at most {max(faint.values()):.0e}, below optim.eps={eps:g}, so "
            f"AdamW moves these {len(faint)} matrices by a fraction of their "
            "learning rate; lower optim.eps, or raise model.gain_init"
        )


def _moved_by_adamw(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """The parameters that AdamW moves; frozen ones have a rate of 0."""
    for group in optimizer.param_groups:
        by_muon = isinstance(optimizer, Muon) and group["name"] == HIDDEN
        if group["lr"] > 0 and not by_muon:
            yield from group["params"]
