"""Lightning's view of the model: its losses, its optimizer, its checkpoints."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn

from dualpath_cli.data.losses import LanguageModelLoss
from dualpath_cli.kernels.freed_memory import keep_freed_memory
from dualpath_cli.model.parameters import kind_of
from dualpath_cli.recipe.schedule import StepLoops, std_factors
from dualpath_cli.recipe.settings import OptimSettings, RunSettings
from dualpath_cli.run.checkpoint_folder import optimizer_states, tensors_of
from dualpath_cli.run.weights import fill, load_weights
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.own_classes import own_roles
from dualpath_cli.training import internals
from dualpath_cli.training.data_module import TokenBatch
from dualpath_cli.training.loop_weights import is_unused
from dualpath_cli.training.optim import build_optimizer, build_scheduler
from dualpath_cli.training.parallel import (
    build_model,
    raise_recompile_limit,
    reduce_dtype,
    resolve_checkpointing,
    sharding_mesh,
)
from dualpath_cli.training.step import StepState, train_step


class DualPathModule(StepState):
    """Wraps a DualPathLM."""

    def __init__(
        self,
        config: ModelConfig,
        optim: OptimSettings,
        run: RunSettings,
        token_bytes: Sequence[int],
        val_names: Sequence[str],
        *,
        seed: int | None,
        compile_blocks: bool,
        weights: Path | None = None,
        step_loops: StepLoops | None = None,
    ) -> None:
        """`seed` draws the initial weights; with None they are loaded: from the folder
        `weights`, or by the Trainer, which continues a run. Without `step_loops` each
        step trains with the model's loops.
        """
        super().__init__(
            config,
            optim,
            run,
            LanguageModelLoss(token_bytes),
            compile_blocks=compile_blocks,
            step_loops=step_loops,
        )
        self.seed = seed
        self.weights = weights

        self.val_names = list(val_names)
        self.val_losses = nn.ModuleList(
            LanguageModelLoss(token_bytes) for _ in val_names
        )
        self.val_results: dict[str, dict[str, float]] = {}

    def setup(self, stage: str) -> None:
        internals.begin_steps_outside_of_autocast(self.trainer)
        if self.trainer.strategy.root_device.type == "cpu":
            keep_freed_memory()

    def configure_model(self) -> None:
        """Builds the model once, after a sharding strategy has set the device mesh."""
        if self.model is not None:
            return

        run = self.run_settings
        mesh = None if self.device_mesh is None else sharding_mesh(self.device_mesh)
        self.model = build_model(
            self.config,
            self.seed,
            self.compile_blocks,
            resolve_checkpointing(run.activation_checkpointing, self.compile_blocks),
            mesh,
            reduce_dtype(run),
            std_factors(self.optim_settings, self.config.d_model),
        )

        if self.compile_blocks and self.step_loops is not None:
            kinds_of_layers = len(set(self.config.layers))
            raise_recompile_limit(kinds_of_layers * len(self.step_loops.counts()))

        if self.weights is not None:
            begins = self.trainer.state.fn == TrainerFn.FITTING
            option = "--run.init_from" if begins else "--ckpt-path"
            load_weights(self.model, self.weights, option)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Losses in nats per position, (B, T)."""
        return self.model(tokens, targets)

    def on_train_batch_start(self, batch: TokenBatch, batch_idx: int) -> int | None:
        """Begins no step (-1) after a validation that has ended the run."""
        return -1 if self.trainer.should_stop else None

    def training_step(self, batch: TokenBatch, batch_idx: int) -> torch.Tensor:
        """One optimizer step: `training/step.py`."""
        return train_step(self, batch)

    def validation_step(
        self, batch: TokenBatch, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        tokens, targets = batch
        # Windows have many lengths, of which only the training length is worth a graph.
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
            result = {}
            for key, value in metric.compute().items():
                result[key] = value.item()
            metric.reset()
            self.val_results[name] = result

            # The metric has reduced the values over ranks.
            for key, number in result.items():
                self.log(f"val/{name}/{key}", number, logger=False)

    def on_train_batch_end(
        self, outputs: Any, batch: TokenBatch, batch_idx: int
    ) -> None:
        """Ends the run after its last step; Lightning validates then."""
        if self.trainer.global_step >= self.trainer.max_steps:
            self.trainer.should_stop = True

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Names all tensors, alike for any strategy, and adds the state of steps.

        That is the guard's, and that of the next row of metrics.csv.
        """
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
        """Loads weights in place, the optimizers' state, and the state of steps."""
        fill(self.model, Path(checkpoint["folder"]))
        # for Lightning, which loads it once more
        checkpoint["state_dict"] = self.state_dict()
        if self.trainer.state.fn == TrainerFn.FITTING:
            checkpoint["optimizer_states"] = optimizer_states(self.model, checkpoint)

        self.guard.load_state_dict(checkpoint.get("guard", {}))
        # Sums over ranks: a single rank goes on with them.
        if self.trainer.is_global_zero:
            self.train_loss.add(checkpoint.get("train_loss", {}))

        # Lightning moves the module to its device later.
        device = self.trainer.strategy.root_device
        loads = checkpoint.get("expert_loads", {})
        self.expert_loads.since_report = {
            layer: torch.tensor(load, device=device) for layer, load in loads.items()
        }

    def configure_optimizers(self) -> Any:
        self.all_parameters = list(self.parameters())
        self.without_gradient_yet = self._matrices()

        # Muon's products have the type of the model's.
        in_bf16 = str(self.trainer.precision).startswith("bf16")
        optimizer = build_optimizer(
            self.model.named_parameters(),
            self.optim_settings,
            int(self.trainer.max_steps),
            self.config,
            products=torch.bfloat16 if in_bf16 else None,
        )
        steps = self.trainer.max_steps
        scheduler = build_scheduler(optimizer, steps, self.optim_settings)
        return [optimizer], [scheduler]

    def _matrices(self) -> dict[str, torch.Tensor]:
        """The matrices that must get a gradient, by name."""
        fewest = None
        if self.step_loops is not None:
            fewest = min(self.step_loops.counts())

        kinds = {"embedding", "head", "hidden", "gate"} - set(own_roles(self.config))
        matrices: dict[str, torch.Tensor] = {}
        for name, parameter in self.model.named_parameters():
            if parameter.ndim < 2:
                continue
            sometimes = fewest is not None and is_unused(name, self.config, fewest)
            kind = kind_of(name, self.config, parameter.ndim).kind
            if kind in kinds and not sometimes:
                matrices[name] = parameter
        return matrices
