"""One optimizer step, from its micro-batches to the next learning rate.

A batch of the loader is this rank's share of a step, and `train_step` is all that
happens to it. Lightning calls it (manual optimization), and counts a call as a step.
`StepState`, a part of Lightning's module, is what lasts from step to step.

A step's number of loops (run.train_loops, run.loop_schedule) is forced as in `ablate`.
Weights of loops that the schedule has not reached yet do not move: their gradient is
zero, and `freeze_later_loops` undoes decay.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import ParallelStrategy, Strategy
from torch import nn

from dualpath_cli.base.errors import UserError
from dualpath_cli.data.losses import LanguageModelLoss
from dualpath_cli.model import AuxiliaryLoss, DualPathLM
from dualpath_cli.model.layer_pass import ModelPass
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.recipe.schedule import StepLoops
from dualpath_cli.recipe.settings import OptimSettings, RunSettings
from dualpath_cli.run.weights import whole
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.training.balance import ExpertLoads
from dualpath_cli.training.data_module import TokenBatch
from dualpath_cli.training.graphs import Losses, MicroBatchGraph
from dualpath_cli.training.guard import (
    PATIENCE,
    BadStep,
    StepGuard,
    joined_names,
    without_gradient,
)
from dualpath_cli.training.loop_weights import (
    freeze_later_loops,
    reset_unused_gradients,
    unused_weights,
)


class StepState(LightningModule):
    """The model in training, and all that lasts from step to step."""

    model: DualPathLM  # built for the strategy by `DualPathModule.configure_model`

    def __init__(
        self,
        config: ModelConfig,
        optim: OptimSettings,
        run: RunSettings,
        train_loss: LanguageModelLoss,
        *,
        compile_blocks: bool,
        step_loops: StepLoops | None,
    ) -> None:
        """See `DualPathModule`; `train_loss` collects the losses of steps."""
        super().__init__()
        self.automatic_optimization = False
        self.config = config
        self.optim_settings = optim
        self.run_settings = run
        self.compile_blocks = compile_blocks
        self.step_loops = step_loops
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


def train_step(module: StepState, batch: TokenBatch) -> torch.Tensor:
    """Trains on tokens and targets, (N, T) each; returns the mean loss, ().

    The loss is in nats per token. A step that the guard skips changes neither weights
    nor moments; schedule, step count and data go on. Raises UserError if a matrix gets
    no gradient in the first steps.
    """
    optimizer: Any = module.optimizers()
    schedule: Any = module.lr_schedulers()
    model = module.model
    micro_batches = split_batch(batch, module.run_settings.micro_batch)
    losses = []

    add_gradients_of: Callable[[torch.Tensor, torch.Tensor], Losses]
    if module.graph is not None and module.graph.begin_step():
        add_gradients_of = module.graph  # sets its gradients to zero, where they are
    else:
        add_gradients_of = partial(add_gradients, module, parts=len(micro_batches))
        optimizer.zero_grad()

    for number, (tokens, targets) in enumerate(micro_batches, start=1):
        # Ranks sum the gradients of a step once, with its last micro-batch.
        last = number == len(micro_batches)
        with nullcontext() if last else no_gradient_sync(module.trainer.strategy):
            batch_losses = add_gradients_of(tokens, targets)

        losses.append(batch_losses.loss)
        module.record(batch_losses, targets)

    if module.forced_loops is not None:
        most_loops = module.most_loops_so_far
        reset_unused_gradients(model, module.config, module.forced_loops, most_loops)

    module.grad_norm = clip_gradients(module)
    # The only wait for the device in an optimizer step: 0.2 ms on a CPU with 9M
    # parameters.
    reason = module.guard.judge(module.grad_norm.item())

    if reason is None:
        module.bad_step = None
        module.check_gradients()
    else:
        module.bad_step = BadStep(reason, torch.stack(losses).float().mean())
        # Without gradients the optimizer moves nothing; Lightning counts its step.
        optimizer.zero_grad()

    with module.keeping_unreached():
        optimizer.step()

    module.expert_loads.end_step(model, moves=module.bad_step is None)
    schedule.step()
    return torch.stack(losses).mean()


def split_batch(batch: TokenBatch, size: int) -> list[TokenBatch]:
    """Micro-batches of `size` sequences."""
    tokens, targets = batch
    return list(zip(tokens.split(size), targets.split(size), strict=True))


def add_gradients(
    module: StepState,
    tokens: torch.Tensor,
    targets: torch.Tensor,
    *,
    parts: int,
    backward: Callable[[torch.Tensor], None] | None = None,
) -> Losses:
    """Adds the gradients of one of a step's `parts` micro-batches, (B, T) each.

    `backward` may replace Lightning's, which also calls hooks.
    """
    with module.trainer.precision_plugin.forward_context():
        made = losses_of(module, tokens, targets)

    backward = backward or module.manual_backward
    backward(made.loss / parts)
    return Losses(made.loss.detach(), made.nll.detach(), made.loads)


def losses_of(module: StepState, tokens: torch.Tensor, targets: torch.Tensor) -> Losses:
    """The losses of a micro-batch, (B, T) each, with the step's loops."""
    loops = module.forced_loops
    forced = None
    if loops is not None:
        forced = Intervention.of_loops(module.config, loops)

    auxiliary = AuxiliaryLoss(module.run_settings.loop_losses)
    nll = module.model(
        tokens,
        targets,
        auxiliary=auxiliary,
        intervention=forced,
        model_pass=ModelPass(module.run_settings.backprop_loops),
    )
    loss = nll.mean() + auxiliary.total

    # Adds nothing; DDP waits for gradients of all weights.
    if loops is not None and module.device_mesh is None:
        unused = unused_weights(module.model, module.config, loops).values()
        loss = loss + 0 * sum(parameter.sum() for parameter in unused)

    return Losses(loss, nll, auxiliary.loads)


def graph_of(module: StepState, parts: int) -> MicroBatchGraph:
    """A CUDA graph of one of a step's `parts` micro-batches; it runs no hooks."""
    work = partial(add_gradients, module, parts=parts, backward=torch.Tensor.backward)
    return MicroBatchGraph(work, module)


@contextmanager
def no_gradient_sync(strategy: Strategy) -> Iterator[None]:
    """Within it, backward passes leave gradients on their rank."""
    if isinstance(strategy, ParallelStrategy):
        with strategy.block_backward_sync():
            yield
    else:
        yield


def clip_gradients(module: StepState) -> torch.Tensor:
    """Clips by the global L2 norm, `optim.clip`; returns the norm before, ().

    The norm is the same on all ranks, bit for bit.
    """
    parameters = module.all_parameters
    gradients = [each.grad for each in parameters if each.grad is not None]
    norm = whole(nn.utils.get_total_norm(gradients))

    # Each replica of hsdp sums it in a group of its own, perhaps in another order.
    if module.device_mesh is not None:
        dist.broadcast(norm, src=0)

    clip = module.optim_settings.clip
    limit = clip if clip > 0 else float("inf")
    nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm
