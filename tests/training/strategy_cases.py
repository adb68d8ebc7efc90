"""Twenty steps on fixed batches by any strategy, on as many ranks as a test starts.

Rank r of R takes every R-th sequence of a global batch, in equal micro-batches, so that
all cases see the same batch in the same step.
"""

import gc
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partialmethod
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from dualpath_cli.recipe.schedule import StepLoops
from dualpath_cli.recipe.settings import OptimSettings, RunSettings
from dualpath_cli.run.checkpoint_folder import SafetensorsIO
from dualpath_cli.spec.config import Checkpointing, ModelConfig
from dualpath_cli.spec.own_checks import import_classes
from dualpath_cli.training.data_module import TokenBatch
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.parallel import build_strategy, sharding_mesh

STEPS, SEQUENCES, LENGTH = 20, 8, 12
VOCABULARY = 53  # which no number of ranks divides
MODEL = ModelConfig(
    vocab_size=VOCABULARY,
    n_layers=2,
    block=["dual", "wide"],
    d_model=16,
    n_heads=2,
    n_kv_heads=1,
    max_seq_len=LENGTH,
    loops=2,
    d_ffn=24,
    d_ffn_wide=40,
    ffn_multiple_of=8,
    gain_init=-1.0,
)
OWN = {
    "gate": "tests.spec.custom_classes.TwoGates",
    "combination": "tests.spec.custom_classes.Router",
}
OPTIM = OptimSettings(lr=1e-2, lr_start=1e-3, lr_end=1e-3, warmup_steps=4, clip=0.5)
UNEVEN: dict[str, Any] = {
    "tie_embeddings": True,
    "block": "dual",
    "loops": [3, 2],
    "d_ffn": [24, 16],
    "d_ffn_wide": [40, 24],
    "n_experts": [3, 0],
    "step_conditioning": "film",
}
CORE: dict[str, Any] = {
    "n_layers": 3,
    "block": ["wide", "dual", "wide"],
    "core": [1, 1],
    "core_loops": 2,
    "injection": "linear",
    "core_combination": "router",
    "n_experts": [0, 3, 0],
}
"""A core of one layer with experts; its earlier repetition has a loss, too."""
FEW_ROWS = {"n_heads": 8, "n_kv_heads": 1, "n_experts": 3}
"""Keys and values of two rows, and biases of three, leave some of four ranks without
one."""


@dataclass(frozen=True)
class Case:
    """A way to train MODEL."""

    name: str
    strategy: str = "single"
    accumulate: int = 1
    tied: bool = False  # whether the model is UNEVEN
    # whether gate and router are copies of the built-in ones, by class path
    own: bool = False
    muon: bool = False  # whether by Muon, and with matrices of FEW_ROWS
    compiled: bool = False
    """By graphs that are run as they are: inductor's kernels take minutes, and send
    nothing."""
    checkpointing: Checkpointing = "none"
    precision: Any = "32-true"
    run: RunSettings = field(default_factory=RunSettings)
    steps: int = STEPS  # of the schedule's STEPS; the rest is left out
    loops: Literal["scheduled", "drawn"] | None = None
    """Whether steps run one or two loops, and have a FiLM each."""
    core: bool = False
    """Whether the model is CORE, with losses of its loops; `loops` are then R."""

    @property
    def reference(self) -> str:
        """The case of one process that trains the same."""
        plain = "muon" if self.muon else "tied" if self.tied else "untied"
        if self.core:
            plain = "core"
            return f"core, {self.loops}" if self.loops else plain
        return self.loops or plain

    @property
    def config(self) -> ModelConfig:
        config = replace(
            MODEL, **(UNEVEN if self.tied else FEW_ROWS if self.muon else {})
        )
        if self.core:
            return replace(config, **CORE)
        if self.loops is not None:
            config = replace(config, step_conditioning="film")
        if self.own:
            config = replace(config, **OWN)
            import_classes(config, allowed=True)
        return config

    @property
    def optim(self) -> OptimSettings:
        return replace(OPTIM, name="muon" if self.muon else "adamw")


LOOPS = {
    "scheduled": StepLoops(((0, (1,)), (12, (2,))), STEPS),
    "drawn": StepLoops(((0, (1, 2)),), STEPS),
}
"""The second number begins late, and is not the first one drawn."""


class Recorder(Callback):
    """Writes down what each optimizer step was."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.start: dict[str, torch.Tensor] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.start = {k: whole(p) for k, p in pl_module.named_parameters()}

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        assert isinstance(pl_module, DualPathModule)
        loss = pl_module.train_loss.compute()["loss"].item()
        pl_module.train_loss.reset()
        self.rows.append({"loss": loss, "norm": pl_module.grad_norm.item()})


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """A copy of a parameter, gathered where it is sharded."""
    value = parameter.detach()
    return value.full_tensor() if isinstance(value, DTensor) else value.clone()


def sequences(count: int, seed: int) -> torch.Tensor:
    """Tokens that count up from any one in steps of 1 to 3: (count, LENGTH + 1)."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(VOCABULARY, (count, 1), generator=generator)
    step = torch.randint(1, 4, (count, 1), generator=generator)
    return (first + step * torch.arange(LENGTH + 1)) % VOCABULARY


def timeouts_of(mesh: DeviceMesh) -> list[float]:
    """Minutes that the groups of a mesh wait."""
    backends = [
        group._get_backend(torch.device("cpu")) for group in mesh.get_all_groups()
    ]
    return [backend.options._timeout.total_seconds() / 60 for backend in backends]


class Stream:
    """A rank's parts of all global batches."""

    def __init__(self, tokens: torch.Tensor, rank: int, ranks: int) -> None:
        self.parts = [batch[rank::ranks] for batch in tokens.split(SEQUENCES)]

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[TokenBatch]:
        for part in self.parts:
            yield part[:, :-1], part[:, 1:]


def train(case: Case, ranks: int, folder: Path) -> None:
    """Trains a case; the first rank writes `result.json` and `weights.pt` into the
    folder."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch._dynamo.reset()
    run = replace(
        case.run,
        micro_batch=SEQUENCES // ranks // case.accumulate,
        activation_checkpointing=case.checkpointing,
        loop_losses=0.3 if case.core else 0.0,
        backprop_loops=1 if case.core and case.loops else None,
    )
    module = DualPathModule(
        case.config,
        case.optim,
        run,
        [1] * VOCABULARY,
        ["held_out"],
        seed=3,
        compile_blocks=case.compiled,
        step_loops=None if case.loops is None else LOOPS[case.loops],
    )
    recorder, meter = Recorder(), Meter(step=3, accumulate=case.accumulate)
    strategy = build_strategy(case.strategy, case.run)
    trainer = Trainer(
        strategy=strategy,
        devices=ranks,
        accelerator="cpu",
        precision=case.precision,
        max_steps=STEPS,
        max_epochs=1,
        limit_train_batches=case.steps,
        callbacks=[recorder, meter],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        inference_mode=False,
        plugins=[SafetensorsIO()] if isinstance(strategy, str) else [],
    )
    rank = trainer.global_rank
    training = Stream(sequences(STEPS * SEQUENCES, seed=1), rank, ranks)
    held_out = Stream(sequences(2 * SEQUENCES, seed=2), rank, ranks)
    trainer.fit(module, training, held_out)
    weights = {name: whole(parameter) for name, parameter in module.named_parameters()}
    dtypes = {str(parameter.dtype) for parameter in module.parameters()}
    if rank == 0:
        torch.save({"start": recorder.start, "end": weights}, folder / "weights.pt")
        mesh = module.device_mesh
        result = {
            "rows": recorder.rows,
            "sent": [[*key, calls] for key, calls in meter.sent.items()],
            "held": meter.held,
            "mesh": None if mesh is None else sharding_mesh(mesh).mesh.tolist(),
            "timeouts": [] if mesh is None else timeouts_of(mesh),
            "validation": module.val_results,
            "dtypes": sorted(dtypes),
        }
        (folder / "result.json").write_text(json.dumps(result))


def train_all(cases: list[Case], ranks: int, folder: Path) -> None:
    """Trains cases one after the other, each in a folder of its name, in processes of
    their own."""
    torch.set_num_threads(1)
    nn.Module.compile = partialmethod(nn.Module.compile, backend="aot_eager")  # type: ignore
    for case in cases:
        train(case, ranks, folder / case.name)


KINDS = {
    "c10d::_allgather_base_": "all-gather",
    "c10d::_reduce_scatter_base_": "reduce-scatter",
    "c10d::allreduce_": "all-reduce",
    "_c10d_functional::all_gather_into_tensor": "all-gather",
}
"""Those that carry weights and gradients, by PyTorch's name of the operation; the last
one is DTensor's, for Muon."""


class Collectives(TorchDispatchMode):
    """Within it, `sent` counts the collectives of KINDS that this rank takes part in,
    by type.

    DistributedDataParallel's, FSDP2's and Muon's go by PyTorch's dispatcher, and so
    through here. The few numbers of a gradient norm are summed by DTensor, and are left
    out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if kind := KINDS.get(func.name().partition(".")[0]):
            tensor = args[0][0] if isinstance(args[0], list) else args[0]
            self.sent[kind, str(tensor.dtype).removeprefix("torch.")] += 1
        return func(*args, **(kwargs or {}))


class Meter(Callback):
    """Counts one optimizer step: what this rank sends in it, and the bytes that it
    holds.

    Bytes are those of storages, each once, however many tensors look at it.
    """

    def __init__(self, step: int, accumulate: int) -> None:
        """`step`, of `accumulate` micro-batches, counts from 1; AdamW's moments are
        there from the first one on."""
        self.step, self.accumulate = step, accumulate
        self._passes = 0  # backward passes of the step
        self.held: dict[str, int] = {}
        """Bytes of weights, gradients, moments; `unreduced` gradients before the last
        micro-batch."""
        self._sending = Collectives()
        self.sent = self._sending.sent

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Begins to count what is sent."""
        if batch_idx == self.step - 1:
            self._sending.__enter__()

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Counts what is held before the last micro-batch."""
        if trainer.global_step != self.step - 1:
            return
        self._passes += 1
        if self._passes == self.accumulate - 1:
            gc.collect()  # of what earlier models held
            self.held["unreduced"] = stored(unreduced())

    def on_before_optimizer_step(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        """Counts reduced gradients."""
        if trainer.global_step == self.step - 1:
            self.held["gradients"] = stored(
                p.grad for p in pl_module.parameters() if p.grad is not None
            )

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Counts what is held after the step."""
        if batch_idx + 1 == self.step:
            self._sending.__exit__(None, None, None)
            self.held["weights"] = stored(pl_module.parameters())
            self.held["moments"] = stored(
                value
                for state in trainer.optimizers[0].state.values()
                for name, value in state.items()
                if name != "step"
            )


def unreduced() -> list[torch.Tensor]:
    """Gradients of FSDP2's whole parameters, or what it added up of them by PyTorch's
    version."""
    parameters = [found for found in gc.get_objects() if type(found) is FSDPParam]
    whole = [getattr(parameter, "_unsharded_param", None) for parameter in parameters]
    found = [parameter.unsharded_accumulated_grad for parameter in parameters]
    found += [parameter.grad for parameter in whole if parameter is not None]
    return [gradient for gradient in found if gradient is not None]


def stored(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of this rank's storages behind tensors."""
    storages = (
        (t.to_local() if isinstance(t, DTensor) else t).untyped_storage()
        for t in (tensor.detach() for tensor in tensors)
    )
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
