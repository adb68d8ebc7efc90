"""What an optimizer step reads and changes, as a part of Lightning's module.

The rest of the module, with losses of validation and checkpoints, is in `module.py`.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from lightning.pytorch import LightningModule
from torch import nn

from dualpath_cli.base.errors import UserError
from dualpath_cli.data.losses import LanguageModelLoss
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.recipe.schedule import StepLoops
from dualpath_cli.recipe.settings import OptimSettings
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.training.balance import ExpertLoads
from dualpath_cli.training.graphs import Losses, MicroBatchGraph
from dualpath_cli.training.guard import (
    PATIENCE,
    BadStep,
    StepGuard,
    joined_names,
    without_gradient,
)
from dualpath_cli.training.loop_weights import freeze_later_loops


class StepState(LightningModule):
    """The model in training, and all that lasts from step to step."""

    model: DualPathLM  # built for the strategy by `DualPathModule.configure_model`

    def __init__(
        self,
        config: ModelConfig,
        optim: OptimSettings,
        train_loss: LanguageModelLoss,
        *,
        compile_blocks: bool,
        step_loops: StepLoops | None,
        micro_batch: int,
        backprop_loops: int | None,
        loop_losses: float,
    ) -> None:
        """See `DualPathModule`; `train_loss` collects the losses of steps."""
        super().__init__()
        self.automatic_optimization = False
        self.config = config
        self.optim_settings = optim
        self.compile_blocks = compile_blocks
        self.step_loops = step_loops
        self.micro_batch = micro_batch
        self.backprop_loops = backprop_loops
        self.loop_losses = loop_losses
        self.model = None  # type: ignore[assignment]

        self.train_loss = train_loss
        self.expert_loads = ExpertLoads()
        self.guard = StepGuard(optim.skip_sigma)

        self.grad_norm = torch.zeros(())
        """The norm of the last step's gradient, before clipping."""
        self.bad_step: BadStep | None = None
        """The last step, if it was skipped."""
        self.without_gradient_yet: dict[str, torch.Tensor] = {}
        """Matrices that had no gradient up to now."""
        self.graph: MicroBatchGraph | None = None
        """The CUDA graph of a micro-batch, if micro-batches run as graphs."""
        self.all_parameters: list[nn.Parameter] = []
        """Kept, as finding them takes 0.4 ms of a step."""

    @property
    def forced_loops(self) -> int | None:
        """The loops forced in the trainer's optimizer step; None: the model's loops."""
        if self.step_loops is None:
            return None

        loops = self.step_loops.at(self.trainer.global_step)
        trained = getattr(self.config, self.config.varied_loops)
        return None if loops == trained else loops

    @property
    def most_loops_so_far(self) -> int:
        """The most loops that steps up to this one can have run, of `step_loops`."""
        assert self.step_loops is not None
        return max(self.step_loops.choices(self.trainer.global_step))

    def keeping_unreached(self) -> AbstractContextManager[None]:
        """Within it, weights of loops that no step so far has run do not move."""
        if self.step_loops is None:
            return nullcontext()
        return freeze_later_loops(self.model, self.config, self.most_loops_so_far)

    def record(self, losses: Losses, targets: torch.Tensor) -> None:
        """Adds a micro-batch to the rows of metrics.csv; `targets` are (B, T).

        Auxiliary losses and non-finite losses are not logged.
        """
        self.expert_loads.add(losses.loads)

        finite = losses.nll.isfinite().all()
        nll = torch.where(finite, losses.nll, 0.0)
        self.train_loss.update(nll, torch.where(finite, targets, IGNORE))

    def check_gradients(self) -> None:
        """Raises UserError if a matrix got no gradient in the first steps."""
        if not self.without_gradient_yet:
            return

        self.without_gradient_yet = without_gradient(self.without_gradient_yet)
        if not self.without_gradient_yet or self.trainer.global_step + 1 < PATIENCE:
            return

        way_out = "other values of model.init_std and model.gain_init"
        if self.compile_blocks:
            way_out = f"--run.compile false, or another torch than {torch.__version__}"
        names = joined_names(self.without_gradient_yet)
        text = f"{names} do not train: their gradients are exactly zero; try {way_out}"
        # the first rank reports
        raise UserError(text if self.trainer.is_global_zero else "")
