"""DualPathModule: Lightning's view of the model. Glue only."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.distributed.tensor import DTensor

from dualpath_cli.config import Checkpointing, ModelConfig
from dualpath_cli.model import AuxiliaryLoss, DualPathLM
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.recipe.settings import OptimSettings
from dualpath_cli.training.data.data_module import Batch
from dualpath_cli.training.guard import BadStep, StepGuard
from dualpath_cli.training.loop_sampling import LoopSampling
from dualpath_cli.training.metrics import LanguageModelLoss
from dualpath_cli.training.optim import build_optimizer, build_scheduler
from dualpath_cli.training.parallel import build_model
from dualpath_cli.training.state.weights import check_weights, load_average
from dualpath_cli.training.strategies import sharding_mesh


class DualPathModule(LightningModule):
    """Wraps a DualPathLM; `model` exists from `configure_model` on, built for the strategy."""

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
        weights: Sequence[Path] = (),
        loop_sampling: LoopSampling | None = None,
    ) -> None:
        """`seed` draws the initial weights; None draws none, as a checkpoint is loaded.

        That is the mean of `weights`, or the one that the Trainer loads to continue a run. Sharded
        gradients are reduced in `reduce_dtype`; None is their own. Without `loop_sampling` each
        step trains with the model's own number of loops.
        """
        super().__init__()
        self.config = config
        self.optim = optim
        self.seed = seed
        self.compile_blocks = compile_blocks
        self.checkpointing = checkpointing
        self.reduce_dtype = reduce_dtype
        self.weights = weights
        self.loop_sampling = loop_sampling
        self.model: DualPathLM | None = None
        self.train_loss = LanguageModelLoss(token_bytes)
        self.val_names = list(val_names)
        self.val_losses = nn.ModuleList(LanguageModelLoss(token_bytes) for _ in val_names)
        self.val_results: dict[str, dict[str, float]] = {}
        self.grad_norm = torch.zeros(())
        self.guard = StepGuard(optim.skip_sigma)
        self.bad_step: BadStep | None = None  # the last step, if it was left out
        self._micro_batches: list[tuple[Batch, torch.Tensor]] = []  # with losses, of one step

    def configure_model(self) -> None:
        """Builds the model once; a sharding strategy has set the device mesh by now."""
        if self.model is None:
            mesh = None if self.device_mesh is None else sharding_mesh(self.device_mesh)
            self.model = build_model(
                self.config,
                self.seed,
                self.compile_blocks,
                self.checkpointing,
                mesh,
                self.reduce_dtype,
            )
            if self.compile_blocks and self.loop_sampling is not None:
                self.loop_sampling.allow_graphs()
            if self.weights:
                load_average(self.model, self.weights)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Losses in nats per position, (B, T)."""
        assert self.model is not None
        return self.model(tokens, targets)

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        """Mean loss in nats per token of one micro-batch, all of whose positions are scored.

        Auxiliary losses are minimised, but not logged. Losses that are not finite are not logged
        either: one would hide all others of its row.
        """
        assert self.model is not None
        tokens, targets = batch
        auxiliary, intervention = AuxiliaryLoss(), None
        if self.loop_sampling is not None:
            intervention = self.loop_sampling.intervention(self.trainer.global_step, self.config)
        nll = self.model(tokens, targets, auxiliary=auxiliary, intervention=intervention)
        finite = nll.detach().isfinite().all()
        self.train_loss.update(
            torch.where(finite, nll.detach(), 0.0), torch.where(finite, targets, IGNORE)
        )
        loss = nll.mean() + auxiliary.total
        self._micro_batches.append((batch, loss.detach()))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Adds a batch to the loss of its validation set."""
        tokens, targets = batch
        # Windows of text come in many lengths. Only the training length is worth a graph.
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
                # Reduced over ranks by the metric, and so equal on all of them.
                self.log(f"val/{name}/{key}", value, logger=False)

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Ends the run after its last step; Lightning then validates once more."""
        if self.trainer.global_step >= self.trainer.max_steps:
            self.trainer.should_stop = True

    def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
        """Clips by the global L2 norm, `optim.clip`, and keeps the norm before clipping.

        A step that the guard skips loses its gradients: AdamW then changes neither weights nor
        moments, and nothing decays. Schedule, step count and data go on.
        """
        limit = self.optim.clip if self.optim.clip > 0 else float("inf")
        norm = nn.utils.clip_grad_norm_(self.parameters(), limit)
        self.grad_norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        micro_batches, self._micro_batches = self._micro_batches, []
        self.bad_step = None
        # The only wait for the device in an optimizer step: with the judging 1e-4 of its time on a
        # CPU with 9M parameters (0.2 ms of 2.2 s), 4e-3 with 27 thousand.
        kind = self.guard.judge(self.grad_norm.item())
        if kind is not None:
            tokens, losses = zip(*micro_batches, strict=True)
            self.bad_step = BadStep(kind, list(tokens), list(losses))
            self.zero_grad(set_to_none=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the guard's state."""
        checkpoint["guard"] = self.guard.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Checks that all weights are there, and loads the guard's state, if there is one."""
        if "state_dict" in checkpoint:  # shards are loaded and checked elsewhere
            assert self.model is not None
            saved = checkpoint["state_dict"]
            weights = {name.removeprefix("model."): value for name, value in saved.items()}
            check_weights(self.model, weights, Path(self.trainer.ckpt_path or ""))
        self.guard.load_state_dict(checkpoint.get("guard", {}))

    def configure_optimizers(self) -> Any:
        """AdamW by parameter kind and the warm-up and cosine schedule, stepped with it."""
        assert self.model is not None
        optimizer = build_optimizer(
            self.model.named_parameters(), self.optim, int(self.trainer.max_steps), self.config
        )
        scheduler = build_scheduler(optimizer, self.trainer.max_steps, self.optim)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }
