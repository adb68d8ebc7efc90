"""A callback that writes down how much CPU time a `fit` took up to its first optimizer step."""

import json
import os
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer


class Marks(Callback):
    """Marks the ends of the phases of `startup.PHASES`, writes them to `out` and ends the process.

    Seconds of the CPU, this process's own and the system's for it, from its start on; and seconds
    from `began`, by the clock.
    """

    def __init__(self, out: str, began: float) -> None:
        self.out, self.began = Path(out), began
        self.marks: dict[str, tuple[float, float]] = {}
        self._mark("imports")

    def _mark(self, phase: str) -> None:
        self.marks[phase] = time.process_time(), time.time() - self.began

    def setup(self, *ignored: Any, **named: Any) -> None:
        """Trainer, tokenizer, module and data module are there."""
        self._mark("trainer")

    def on_sanity_check_start(self, *ignored: Any) -> None:
        """So is the model with its weights, and the optimizer."""
        self._mark("model")

    def on_sanity_check_end(self, *ignored: Any) -> None:
        """The validation of step 0 is over."""
        self._mark("validation")

    def on_train_batch_start(self, *ignored: Any) -> None:
        """The first micro-batch was read."""
        self.marks.setdefault("data", (time.process_time(), time.time() - self.began))

    def on_train_batch_end(self, trainer: Trainer, *ignored: Any) -> None:
        """Ends the process once a step was made."""
        if trainer.global_step:
            self._mark("first step")
            self.out.write_text(json.dumps(self.marks))
            os._exit(0)
