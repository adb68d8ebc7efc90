"""Callbacks that the programme gives to a real `dualpath fit`."""

import json
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from dualpath_cli.model import DualPathLM
from dualpath_cli.model.layer_pass import AuxiliaryLoss
from dualpath_cli.training.module import DualPathModule
from tests.model import reference


class Turn(Callback):
    """Times `steps` steps after `warm` ones, once the file `out`.gate is there.

    `out`.ready says that the warm ones are over. Unless `graphs`, all are launched.
    """

    def __init__(self, out: str, warm: int, steps: int, graphs: bool = True) -> None:
        self.out, self.warm, self.steps, self.graphs = Path(out), warm, steps, graphs

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, DualPathModule)
        if not self.graphs:
            pl_module.graph = None
        self.found: dict[str, Any] = {"graphs": pl_module.graph is not None}

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        made = trainer.global_step - self.warm
        if made in (0, self.steps) and torch.cuda.is_available():
            torch.cuda.synchronize()
        if made == 0:
            self.out.with_suffix(".ready").touch()
            while not self.out.with_suffix(".gate").exists():
                time.sleep(0.005)
            self.began = time.perf_counter()
        elif made == self.steps:
            self.found["seconds a step"] = (time.perf_counter() - self.began) / self.steps
            part = self.out.with_suffix(".part")
            part.write_text(json.dumps(self.found))
            part.replace(self.out)


class Gradients(Callback):
    """Compares each parameter's gradient in some steps with that in float64 on the CPU.

    The weights are large random ones, so that all of each equation shows.
    """

    def __init__(self, out: str, steps: list[int]) -> None:
        self.out, self.steps = Path(out), steps
        self.found: dict[str, Any] = {}
        self.batches: list[Any] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, DualPathModule)
        assert pl_module.model is not None
        reference.load(pl_module.model, reference.random_weights(pl_module.config, seed=0))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        first = batch_idx % trainer.accumulate_grad_batches == 0
        self.batches = [batch] if first else [*self.batches, batch]

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        assert isinstance(pl_module, DualPathModule)
        step, model = trainer.global_step + 1, pl_module.model
        assert model is not None
        if step not in self.steps:
            return
        exact = DualPathLM(pl_module.config).double()
        exact.load_state_dict({name: t.double().cpu() for name, t in model.state_dict().items()})
        tokens, targets = (torch.cat(parts).cpu() for parts in zip(*self.batches, strict=True))
        auxiliary = AuxiliaryLoss()
        (exact(tokens, targets, auxiliary=auxiliary).mean() + auxiliary.total).backward()
        wanted = {name: p.grad for name, p in exact.named_parameters() if p.grad is not None}
        off = {}
        for name, own in model.named_parameters():
            if name in wanted:
                got = torch.zeros_like(own) if own.grad is None else own.grad
                # A bias of one or two numbers may be a small difference of large ones.
                beside = (
                    wanted[name.replace(".bias", ".weight")] if own.numel() == 1 else wanted[name]
                )
                off[name] = float((got.double().cpu() - wanted[name]).norm() / beside.norm())
        kind = "graph" if pl_module._graphed else "launched"
        worst = max(off, key=off.__getitem__)
        self.found[kind] = {"worst": worst, "off": off[worst], "parameters": len(off), "all": off}
        self.out.write_text(json.dumps(self.found))
