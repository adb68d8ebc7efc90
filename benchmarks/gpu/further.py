"""What else only a GPU shows of `dualpath fit`: strategies on one device, and lack of
room.

Under fsdp and ddp, hooks surround each block: is one graph still compiled for all
layers, and what do the hooks cost? And does a run go on where memory ends while its
CUDA graph is recorded, or in a validation beside that graph?
"""

import json
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.runs import SMALL, Run, Turn, turns
from benchmarks.gpu.step import work_folder
from benchmarks.results import Row, Rows
from dualpath_cli.training.module import DualPathModule

STRATEGIES = ("auto", "fsdp", "ddp")
LAYERS = f"""{SMALL["width 256"]} --model.n_layers 16 --run.batch_tokens 32768
    --run.compile true"""
At = Literal["capture", "validation"]
SHARES: dict[At, float] = {"capture": 0.75, "validation": 0.05}
"""What is left of the memory that a micro-batch takes: at the capture enough for half
of one, at the validation next to nothing."""
NO_ROOM_STEPS = 16


def layers(bench: Bench, strategy: str) -> Rows:
    """Times steps of 16 layers under a strategy, launched: fsdp and ddp record no
    graph."""
    warm, steps = (3, 5) if bench.sizes.run else (10, 20)
    watch = (Turn, {"warm": warm, "steps": steps, "graphs": False})
    words = f"{LAYERS} --trainer.strategy {strategy}"
    run = Run(bench, f"layers-{strategy}", words, warm + steps + 1, watch)
    (found,) = turns(bench, [run])
    seconds = found["seconds a step"]
    row: Row = {"tokens/s": run.number("--run.batch_tokens") / seconds}
    row |= {"step, ms": 1e3 * seconds, "compiled graphs": found["compiled graphs"]}
    if "peak, GB" in found:
        row["peak, GB"] = found["peak, GB"]
    return {f"width 256, 16 layers, {strategy}": row}


def no_room(bench: Bench, at: At) -> Rows:
    """Lets a run's memory end once, at its capture or at the first validation after it.

    Right if the run ends well, with half the micro-batch after the capture, and with
    the same one after the validation. Nothing is right or wrong without a graph.
    """
    words = f"{SMALL['width 256']} --run.compile true"
    if at == "validation":
        text = f"{work_folder()}/sample/val/prose.jsonl"
        words = f"{words} --run.validate_every 8 --data.val.prose {text}"
    run = Run(bench, f"no-room-{at}", words, NO_ROOM_STEPS, (NoRoom, {"at": at}))
    code = run.process.wait()
    facts = json.loads((run.folder / "versions.json").read_text())
    given = run.number("--run.micro_batch")
    row: Row = {
        "exit code": code,
        "micro-batch": f"{facts['micro_batch']} of {given}",
        "limit, GB": None,
    }
    if run.out.exists():
        row |= json.loads(run.out.read_text())
    if bench.device.type == "cuda":
        kept = given // 2 if at == "capture" else given
        ended_well = code == 0 and facts["micro_batch"] == kept
        row["right"] = run.out.exists() and ended_well
    else:
        run.end()  # raises where it has failed
        row["limit, GB"] = "none: a CPU records no graph"
    return {f"no room, {at}": row}


class NoRoom(Callback):
    """Limits the memory of this process once, and writes the limit to `out`."""

    limited: ClassVar = False
    """Whether this process has its limit, which stays for a restart within it."""

    def __init__(self, out: str, at: At) -> None:
        self.out, self.at = Path(out), at

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, DualPathModule)
        if self.at != "capture" or pl_module.graph is None or NoRoom.limited:
            return
        begin = torch.cuda.CUDAGraph.capture_begin

        # Later than any hook: the micro-batches before the capture have room.
        def limited_begin(graph: Any, *args: Any, **kwargs: Any) -> None:
            torch.cuda.CUDAGraph.capture_begin = begin
            self.limit()
            begin(graph, *args, **kwargs)

        torch.cuda.CUDAGraph.capture_begin = limited_begin

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == 1 and torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()  # of the step that compiled

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, DualPathModule)
        graph = pl_module.graph
        recorded = graph is not None and graph.recorded
        if self.at == "validation" and recorded and not NoRoom.limited:
            torch.cuda.empty_cache()
            self.limit()

    def limit(self) -> None:
        """Leaves room for SHARES of a micro-batch beside all that is held."""
        NoRoom.limited = True
        held, used = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
        takes = torch.cuda.max_memory_allocated() - used
        most = held + SHARES[self.at] * takes
        total = torch.cuda.get_device_properties(
            torch.cuda.current_device()
        ).total_memory
        torch.cuda.set_per_process_memory_fraction(most / total)
        found = {"limit, GB": most / 1e9, "held, GB": held / 1e9}
        self.out.write_text(json.dumps(found | {"a micro-batch, GB": takes / 1e9}))
