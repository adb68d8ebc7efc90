"""Lightning's view of the model: its losses, its optimizer, its checkpoints."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn

from dualpath_cli.base.errors import UserError
from dualpath_cli.data.windows import LanguageModelLoss
from dualpath_cli.kernels.freed_memory import keep_freed_memory
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.model.parameters import kind_of
from dualpath_cli.recipe.schedule import StepLoops, std_factors
from dualpath_cli.recipe.settings import OptimSettings
from dualpath_cli.run.checkpoint_folder import optimizer_states, tensors_of
from dualpath_cli.run.weights import fill, load_weights
from dualpath_cli.spec.config import Checkpointing, ModelConfig
from dualpath_cli.spec.own_classes import own_roles
from dualpath_cli.training import internals
from dualpath_cli.training.balance import ExpertLoads
from dualpath_cli.training.data_module import Batch
from dualpath_cli.training.graphs import Losses, MicroBatchGraph
from dualpath_cli.training.guard import PATIENCE, BadStep, StepGuard, without_gradient
from dualpath_cli.training.optim import build_optimizer, build_scheduler
from dualpath_cli.training.parallel import allow_graphs, build_model, sharding_mesh
from dualpath_cli.training.step import train_step


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
        micro_batch: int | None = None,
    ) -> None:
        """`seed` draws the initial weights; with None they are loaded: from the folder
        `weights`, or by the Trainer, which continues a run. Sharded gradients are
        reduced in `reduce_dtype`; None is the gradients' type. Without `step_loops`
        each step trains with the model's loops. A step trains on `micro_batch`
        sequences at a time; None: on all of a rank's at once.
        """
        super().__init__()
        self.automatic_optimization = False
        self.config = config
        self.optim = optim
        self.seed = seed
        self.compile_blocks = compile_blocks
        self.checkpointing = checkpointing
        self.reduce_dtype = reduce_dtype
        self.weights = weights
        self.step_loops = step_loops
        self.micro_batch = micro_batch
        self.model = None  # type: ignore[assignment]
        self.train_loss = LanguageModelLoss(token_bytes)
        self.val_names = list(val_names)
        self.val_losses = nn.ModuleList(
            LanguageModelLoss(token_bytes) for _ in val_names
        )
        self.val_results: dict[str, dict[str, float]] = {}
        self.grad_norm = torch.zeros(())
        self.guard = StepGuard(optim.skip_sigma)
        self.bad_step: BadStep | None = None  # the last step, if it was skipped
        # matrices without a gradient up to now
        self.resting: dict[str, torch.Tensor] = {}
        self.expert_loads = ExpertLoads()
        self.graph: MicroBatchGraph | None = None  # of training's micro-batches, if any
        # all; finding them takes 0.4 ms of a step
        self.trained: list[nn.Parameter] = []

    @property
    def forced_loops(self) -> int | None:
        """The loops forced in the trainer's optimizer step; None for the model's
        number."""
        loops = (
            None
            if self.step_loops is None
            else self.step_loops.at(self.trainer.global_step)
        )
        return None if loops == self.config.loops else loops

    @property
    def most_loops(self) -> int:
        """The most loops that steps up to this one can have run."""
        choices = self.step_loops and self.step_loops.choices(self.trainer.global_step)
        return max(choices) if choices else self.config.most_loops

    def setup(self, stage: str) -> None:
        internals.begin_steps_outside_of_autocast(self.trainer)
        if self.trainer.strategy.root_device.type == "cpu":
            keep_freed_memory()

    def configure_model(self) -> None:
        """Builds the model once, after a sharding strategy has set the device mesh."""
        if self.model is not None:
            return
        mesh = None if self.device_mesh is None else sharding_mesh(self.device_mesh)
        factors = std_factors(self.optim, self.config.d_model)
        self.model = build_model(
            self.config,
            self.seed,
            self.compile_blocks,
            self.checkpointing,
            mesh,
            self.reduce_dtype,
            factors,
        )
        if self.compile_blocks and self.step_loops is not None:
            allow_graphs(len(set(self.config.layers)) * len(self.step_loops.counts()))
        if self.weights is not None:
            load_weights(self.model, self.weights)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Losses in nats per position, (B, T)."""
        return self.model(tokens, targets)

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        """One optimizer step: `training/step.py`."""
        return train_step(self, batch)

    def count(self, made: Losses, targets: torch.Tensor) -> None:
        """Adds a micro-batch to the rows of metrics.csv; `targets` are (B, T).

        Auxiliary losses and non-finite losses are not logged.
        """
        self.expert_loads.add(made.loads)
        finite = made.nll.isfinite().all()
        nll = torch.where(finite, made.nll, 0.0)
        self.train_loss.update(nll, torch.where(finite, targets, IGNORE))

    def validation_step(
        self, batch: Batch, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        tokens, targets = batch
        # Windows have many lengths, of which the training length alone is worth a
        # graph.
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

    def check_gradients(self) -> None:
        """Raises UserError if a matrix got no gradient in the first steps."""
        if not self.resting:
            return
        self.resting = without_gradient(self.resting)
        if self.resting and self.trainer.global_step + 1 >= PATIENCE:
            names = ", ".join(
                sorted({re.sub(r"\.\d+\.", ".*.", n) for n in self.resting})
            )
            way_out = "other values of model.init_std and model.gain_init"
            if self.compile_blocks:
                way_out = (
                    f"--run.compile false, or another torch than {torch.__version__}"
                )
            text = (
                f"{names} do not train: their gradients are exactly zero; try {way_out}"
            )
            # the first reports
            raise UserError(text if self.trainer.is_global_zero else "")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Names all tensors, by any strategy alike, and adds the state of the guard and
        of the next row of metrics.csv."""
        for key in ("state_dict", "optimizer_states"):
            checkpoint.pop(key, None)
        optimizers = self.trainer.optimizers
        checkpoint["tensors"], checkpoint["groups"] = tensors_of(self.model, optimizers)
        checkpoint["guard"] = self.guard.state_dict()
        checkpoint["train_loss"] = self.train_loss.sums()
        loads = self.expert_loads.since_report
        checkpoint["expert_loads"] = {
            layer: load.tolist() for layer, load in loads.items()
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Loads weights in place, the optimizers' state, and what `on_save_checkpoint`
        added."""
        fill(self.model, Path(checkpoint["folder"]))
        # for Lightning, which loads it once more
        checkpoint["state_dict"] = self.state_dict()
        if self.trainer.state.fn == TrainerFn.FITTING:
            checkpoint["optimizer_states"] = optimizer_states(self.model, checkpoint)
        self.guard.load_state_dict(checkpoint.get("guard", {}))
        if self.trainer.is_global_zero:
            self.train_loss.add(checkpoint.get("train_loss", {}))
        loads = checkpoint.get("expert_loads", {})
        self.expert_loads.since_report = {
            layer: torch.tensor(load, device=self.device)
            for layer, load in loads.items()
        }

    def configure_optimizers(self) -> Any:
        # Muon's products have the type of the model's.
        products = (
            torch.bfloat16 if str(self.trainer.precision).startswith("bf16") else None
        )
        self.trained = list(self.parameters())
        matrices = {"embedding", "head", "hidden", "gate"} - set(own_roles(self.config))
        self.resting = {
            name: p
            for name, p in self.model.named_parameters()
            if p.ndim > 1 and kind_of(name, self.config, p.ndim).kind in matrices
        }
        optimizer = build_optimizer(
            self.model.named_parameters(),
            self.optim,
            int(self.trainer.max_steps),
            self.config,
            products,
        )
        scheduler = build_scheduler(optimizer, self.trainer.max_steps, self.optim)
        return [optimizer], [scheduler]
