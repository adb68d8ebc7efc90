"""A trace of a few optimizer steps, and on CUDA the history of the device's memory over them.

The trace is for https://ui.perfetto.dev or chrome://tracing, the snapshot for
https://pytorch.org/memory_viz. Recording slows these steps down, and no others.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.profiler import ProfilerActivity, profile

from dualpath_cli.training.logs.each_step import EachStep
from dualpath_cli.training.module import DualPathModule

FIRST, LAST = 10, 12
"""Steps recorded, counted from the start or continuation: all is compiled by then."""


class Profile(EachStep):
    """Records steps FIRST to LAST on each rank to `RUN/profile`."""

    def __init__(self, run_folder: Path, say: Callable[[str], None]) -> None:
        self.folder = run_folder / "profile"
        self.say = say
        self.start = 0
        self.profiler: profile | None = None
        self.written = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Counts from here."""
        super().on_train_start(trainer, pl_module)
        self.start = self.step

    def on_step(self, trainer: Trainer, module: DualPathModule) -> None:
        """Begins after the step before the first one, ends with the last one."""
        made = self.step - self.start
        if self.profiler is None and made == FIRST - 1:
            self._begin(module.device)
        elif self.profiler is not None and made == LAST:
            self._end(trainer, module.device)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes what a shorter run has recorded."""
        if self.profiler is not None:
            self._end(trainer, pl_module.device)
        elif not self.written:
            self.say(f"nothing was profiled: steps {FIRST} to {LAST} of a start are recorded")

    def _begin(self, device: torch.device) -> None:
        activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
            torch.cuda.memory._record_memory_history()
        self.profiler = profile(activities=activities, record_shapes=True)
        self.profiler.start()

    def _end(self, trainer: Trainer, device: torch.device) -> None:
        assert self.profiler is not None
        self.profiler.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        files = [self.folder / f"trace-rank-{trainer.global_rank}.json.gz"]
        self.profiler.export_chrome_trace(str(files[0]))
        if device.type == "cuda":
            files.append(self.folder / f"memory-rank-{trainer.global_rank}.pickle")
            torch.cuda.memory._dump_snapshot(str(files[1]))
            torch.cuda.memory._record_memory_history(enabled=None)
        self.profiler = None
        self.written = True
        self.say(f"profile: {', '.join(map(str, files))}")
