"""Lightning's view of the model: its losses, its optimizer, and a callback of optimizer steps.

A step's number of loops (run.train_loops, run.loop_schedule) is forced as in `ablate`. Weights of
loop steps that the schedule has not reached yet rest: their gradient is zero, and `_at_rest` undoes
decay.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR

from dualpath_cli.base.errors import UserError
from dualpath_cli.data.windows import LanguageModelLoss
from dualpath_cli.kernels.freed_memory import keep_freed_memory
from dualpath_cli.model import AuxiliaryLoss, DualPathLM
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.model.parameters import kind_of, matrices_in
from dualpath_cli.recipe.schedule import (
    StepLoops,
    learning_rate,
    rate_factor,
    std_factors,
    weight_decay,
)
from dualpath_cli.recipe.settings import OptimSettings
from dualpath_cli.run.checkpoint_folder import optimizer_states, tensors_of
from dualpath_cli.run.weights import fill, load_weights, own_part
from dualpath_cli.spec.config import GROUP_OF, Checkpointing, Kind, ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.spec.own_classes import own_roles
from dualpath_cli.training.balance import ExpertLoads
from dualpath_cli.training.data_module import Batch
from dualpath_cli.training.graphs import Losses, MicroBatchGraph
from dualpath_cli.training.guard import PATIENCE, BadStep, StepGuard, without_gradient
from dualpath_cli.training.muon import Muon
from dualpath_cli.training.parallel import allow_graphs, build_model, sharded_as, sharding_mesh

_ROUTER, _BY_STEP = ".deep.router.", (".deep.gains", ".deep.film")
"""Names of weights that a single loop does not use, and of weights with a row for each step."""


class DualPathModule(LightningModule):
    """Wraps a DualPathLM."""

    model: DualPathLM  # built for the strategy by `configure_model`

    def __init__(
        self,
        config: ModelConfig,
        optim: OptimSettings,
        token_bytes: Sequence[int],
        val_names: Sequence[str],
        *,
        seed: int | None,
        compile_blocks: bool,
        checkpointing: Checkpointing = "none",
        reduce_dtype: torch.dtype | None = None,
        weights: Path | None = None,
        step_loops: StepLoops | None = None,
    ) -> None:
        """`seed` draws the initial weights; with None they are loaded: from the folder `weights`,
        or by the Trainer, which continues a run. Sharded gradients are reduced in `reduce_dtype`;
        None is the gradients' type. Without `step_loops` each step trains with the model's loops.
        """
        super().__init__()
        self.config = config
        self.optim = optim
        self.seed = seed
        self.compile_blocks = compile_blocks
        self.checkpointing = checkpointing
        self.reduce_dtype = reduce_dtype
        self.weights = weights
        self.step_loops = step_loops
        self.model = None  # type: ignore[assignment]
        self.train_loss = LanguageModelLoss(token_bytes)
        self.val_names = list(val_names)
        self.val_losses = nn.ModuleList(LanguageModelLoss(token_bytes) for _ in val_names)
        self.val_results: dict[str, dict[str, float]] = {}
        self.grad_norm = torch.zeros(())
        self.guard = StepGuard(optim.skip_sigma)
        self.bad_step: BadStep | None = None  # the last step, if it was skipped
        self.resting: dict[str, torch.Tensor] = {}  # matrices without a gradient up to now
        self.expert_loads = ExpertLoads()
        self.graph: MicroBatchGraph | None = None  # of training's micro-batches, if any
        self._graphed = False  # whether the graph made the newest micro-batch's gradients
        self._losses: list[torch.Tensor] = []  # of one step's micro-batches
        self.trained: list[nn.Parameter] = []  # all; finding them takes 0.4 ms of a step

    @property
    def forced_loops(self) -> int | None:
        """The loops forced in the trainer's optimizer step; None for the model's number."""
        loops = None if self.step_loops is None else self.step_loops.at(self.trainer.global_step)
        return None if loops == self.config.loops else loops

    @property
    def most_loops(self) -> int:
        """The most loops that steps up to this one can have run."""
        choices = self.step_loops and self.step_loops.choices(self.trainer.global_step)
        return max(choices) if choices else self.config.most_loops

    def setup(self, stage: str) -> None:
        if self.trainer.strategy.root_device.type == "cpu":
            keep_freed_memory()

    def configure_model(self) -> None:
        """Builds the model once, after a sharding strategy has set the device mesh."""
        if self.model is not None:
            return
        mesh = None if self.device_mesh is None else sharding_mesh(self.device_mesh)
        factors = std_factors(self.optim, self.config.d_model)
        self.model = build_model(
            self.config, self.seed, self.compile_blocks, self.checkpointing, mesh,
            self.reduce_dtype, factors,
        )  # fmt: skip
        if self.compile_blocks and self.step_loops is not None:
            allow_graphs(len(set(self.config.layers)) * len(self.step_loops.counts()))
        if self.weights is not None:
            load_weights(self.model, self.weights)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Losses in nats per position, (B, T)."""
        return self.model(tokens, targets)

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        """Mean loss in nats per token of one micro-batch, over all positions.

        Auxiliary losses and non-finite losses are not logged.
        """
        graph, self._graphed = self.graph, False
        if graph is not None:
            first = batch_idx % self.trainer.accumulate_grad_batches == 0
            self._graphed = graph.is_due(first)
        made = graph(*batch, first) if graph and self._graphed else self.losses(*batch)
        self.expert_loads.add(made.loads)
        nll, targets = made.nll.detach(), batch[1]
        finite = nll.isfinite().all()
        self.train_loss.update(torch.where(finite, nll, 0.0), torch.where(finite, targets, IGNORE))
        self._losses.append(made.loss.detach())
        return made.loss

    def losses(self, tokens: torch.Tensor, targets: torch.Tensor) -> Losses:
        """The losses of one micro-batch in the trainer's optimizer step."""
        auxiliary, loops = AuxiliaryLoss(), self.forced_loops
        forced = None if loops is None else Intervention(loops=loops)
        nll = self.model(tokens, targets, auxiliary=auxiliary, intervention=forced)
        loss = nll.mean() + auxiliary.total
        if loops == 1 and self.device_mesh is None:
            # Adds nothing; DDP waits for gradients of all weights.
            loss = loss + 0 * sum(parameter.sum() for parameter in _router_of(self.model))
        return Losses(loss, nll, auxiliary.loads)

    def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if not self._graphed:
            super().backward(loss, *args, **kwargs)

    def optimizer_zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Keeps gradients of a graph: Lightning calls this after `training_step`."""
        if not self._graphed:
            super().optimizer_zero_grad(*args, **kwargs)

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        tokens, targets = batch
        # Windows have many lengths, of which the training length alone is worth a graph.
        compiled = tokens.shape[1] == self.config.max_seq_len
        with torch.compiler.set_stance("default" if compiled else "force_eager"):
            nll = self(tokens, targets)
        metric = self.val_losses[dataloader_idx]
        assert isinstance(metric, LanguageModelLoss)
        metric.update(nll, targets)

    def on_validation_epoch_end(self) -> None:
        """Publishes `val/<set>/loss` and `val/<set>/bits_per_byte`."""
        for name, metric in zip(self.val_names, self.val_losses, strict=True):
            assert isinstance(metric, LanguageModelLoss)
            self.val_results[name] = {k: v.item() for k, v in metric.compute().items()}
            metric.reset()
            for key, value in self.val_results[name].items():
                # The metric has reduced it over ranks.
                self.log(f"val/{name}/{key}", value, logger=False)

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Ends the run after its last step; Lightning validates then."""
        if self.trainer.global_step >= self.trainer.max_steps:
            self.trainer.should_stop = True

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.forced_loops == 1:
            _settle_router(self.model, self.most_loops)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Makes a step, and moves the biases of experts by the step's loads."""
        with nullcontext() if self.step_loops is None else _at_rest(self.model, self.most_loops):
            super().optimizer_step(*args, **kwargs)
        self.expert_loads.end_step(self.model, made=self.bad_step is None)

    def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
        """Clips by the global L2 norm, `optim.clip`, and keeps the norm before clipping.

        A step that the guard skips loses its gradients, so the optimizer changes neither weights
        nor moments. Schedule, step count and data go on.
        """
        limit = self.optim.clip if self.optim.clip > 0 else float("inf")
        norm = nn.utils.clip_grad_norm_(self.trained, limit)
        self.grad_norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        losses, self._losses = self._losses, []
        self.bad_step = None
        # The only wait for the device in an optimizer step: 0.2 ms on a CPU with 9M parameters.
        kind = self.guard.judge(self.grad_norm.item())
        if kind is not None:
            self.bad_step = BadStep(kind, torch.stack(losses).float().mean())
            self.zero_grad(set_to_none=True)
        elif self.resting:
            self.resting = without_gradient(self.resting)
            if self.resting and self.trainer.global_step + 1 >= PATIENCE:
                names = ", ".join(sorted({re.sub(r"\.\d+\.", ".*.", n) for n in self.resting}))
                way_out = "other values of model.init_std and model.gain_init"
                if self.compile_blocks:
                    way_out = f"--run.compile false, or another torch than {torch.__version__}"
                text = f"{names} do not train: their gradients are exactly zero; try {way_out}"
                raise UserError(text if self.trainer.is_global_zero else "")  # the first reports

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Names all tensors, by any strategy alike, and adds the state of the guard and of the next
        row of metrics.csv."""
        for key in ("state_dict", "optimizer_states"):
            checkpoint.pop(key, None)
        optimizers = self.trainer.optimizers
        checkpoint["tensors"], checkpoint["groups"] = tensors_of(self.model, optimizers)
        checkpoint["guard"] = self.guard.state_dict()
        checkpoint["train_loss"] = self.train_loss.sums()
        loads = self.expert_loads.since_report
        checkpoint["expert_loads"] = {layer: load.tolist() for layer, load in loads.items()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Loads weights in place, the optimizers' state, and what `on_save_checkpoint` added."""
        fill(self.model, Path(checkpoint["folder"]))
        checkpoint["state_dict"] = self.state_dict()  # for Lightning, which loads it once more
        if self.trainer.state.fn == TrainerFn.FITTING:
            checkpoint["optimizer_states"] = optimizer_states(self.model, checkpoint)
        self.guard.load_state_dict(checkpoint.get("guard", {}))
        if self.trainer.is_global_zero:
            self.train_loss.add(checkpoint.get("train_loss", {}))
        loads = checkpoint.get("expert_loads", {})
        self.expert_loads.since_report = {
            layer: torch.tensor(load, device=self.device) for layer, load in loads.items()
        }

    def configure_optimizers(self) -> Any:
        # Muon's products have the type of the model's.
        products = torch.bfloat16 if str(self.trainer.precision).startswith("bf16") else None
        self.trained = list(self.parameters())
        matrices = {"embedding", "head", "hidden", "gate"} - set(own_roles(self.config))
        self.resting = {
            name: p for name, p in self.model.named_parameters()
            if p.ndim > 1 and kind_of(name, self.config, p.ndim).kind in matrices
        }  # fmt: skip
        optimizer = build_optimizer(
            self.model.named_parameters(), self.optim, int(self.trainer.max_steps), self.config,
            products,
        )  # fmt: skip
        scheduler = build_scheduler(optimizer, self.trainer.max_steps, self.optim)
        each_step = {"scheduler": scheduler, "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": each_step}


class EachStep(Callback):
    """A callback with `on_step`; `step` is the newest finished optimizer step."""

    step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step != self.step:  # else still accumulating
            self.step = trainer.global_step
            self.on_step(trainer, pl_module)

    def on_step(self, trainer: Trainer, module: DualPathModule) -> None:
        """Is called after each optimizer step, also a skipped one."""
        raise NotImplementedError


def build_optimizer(
    parameters: Iterable[tuple[str, nn.Parameter]],
    settings: OptimSettings,
    total_steps: int,
    config: ModelConfig | None = None,
    products: torch.dtype | None = None,
) -> torch.optim.Optimizer:
    """Returns AdamW or Muon with a group for each kind of parameters.

    `total_steps` are the run's. `config` may be left out for a model without custom classes,
    experts and `base_width`. `products` is the type of Muon's matrix products; None is the weights'
    type. Raises ValueError for a parameter that `model.parameters` does not know.
    """
    assert config is not None or settings.base_width is None
    width = 1 if config is None else config.d_model
    members: dict[Kind, list[nn.Parameter]] = {}
    stacked: dict[nn.Parameter, int] = {}
    for name, parameter in parameters:
        if not parameter.requires_grad:  # a bias that `training.balance` moves
            continue
        stacked[parameter] = matrices_in(name, config)
        members.setdefault(kind_of(name, config, parameter.ndim).kind, []).append(parameter)
    decay = weight_decay(total_steps, settings)
    groups = []
    for kind, params in members.items():
        factor = rate_factor(kind, settings, width)
        own = decay if GROUP_OF[kind] in settings.decay else 0.0
        if settings.decay_sum is not None:  # rate times decay is the same for all kinds
            own = own / factor if factor else 0.0
        groups.append(
            {"params": params, "name": kind, "lr": settings.lr * factor, "weight_decay": own}
        )
    if settings.name == "muon":
        return Muon(groups, settings, products, stacked)
    return torch.optim.AdamW(
        groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True
    )


def build_scheduler(
    optimizer: torch.optim.Optimizer, total_steps: int, settings: OptimSettings
) -> LambdaLR:
    """The schedule `learning_rate` for all groups, stepped once an optimizer step."""
    return LambdaLR(
        optimizer, lambda step: learning_rate(step, total_steps, settings) / settings.lr
    )


def _router_of(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for name, parameter in model.named_parameters() if _ROUTER in name]


def _settle_router(model: nn.Module, most: int) -> None:
    """Replaces the gradients of routers after a backward pass through one loop, without router.

    They become None, so that the optimizer skips them. They become zero if no step so far had more
    than one loop (`most`): sharded checkpoints need the optimizer's state of all weights.
    """
    for parameter in _router_of(model):
        parameter.grad = torch.zeros_like(parameter) if most == 1 else None


@contextmanager
def _at_rest(model: nn.Module, most: int) -> Iterator[None]:
    """Keeps the weights of loop steps after the first `most` unchanged, bit by bit."""
    kept: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            part = own_part(parameter)
            if name.endswith(_BY_STEP) and most < len(parameter):
                rows = torch.arange(len(parameter), device=parameter.device)
                rests = own_part(sharded_as(parameter, rows)) >= most
                kept.append((part, part.clone(), rests.view(-1, *[1] * (part.ndim - 1))))
            elif _ROUTER in name and most == 1:
                kept.append((part, part.clone(), torch.ones_like(part, dtype=torch.bool)))
    yield
    with torch.no_grad():
        for part, before, rests in kept:
            part.copy_(torch.where(rests, before, part))
