"""`dualpath fit` itself: its gradients, small models by graphs and without, equal
runs."""

import csv
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from safetensors.torch import load_file

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.correct import KINDS, LIMITS
from benchmarks.gpu.step import graphs as compiled_graphs
from benchmarks.gpu.step import work_folder
from benchmarks.results import Row, Rows
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.layer_pass import AuxiliaryLoss, ModelPass
from dualpath_cli.training.module import DualPathModule
from tests.model import reference

SMALL = {
    "width 256": """--model.d_model 256 --model.n_heads 4 --model.n_kv_heads 4
        --model.max_seq_len 512 --model.vocab_size 8192 --model.d_ffn 384
        --model.d_ffn_wide 3072 --run.batch_tokens 16384 --run.micro_batch 32""",
    "small_text": "--run.batch_tokens 4096",
}
"""Models as people sweep them, as changes to the recipe small_text."""
TINY = """--model.vocab_size 2048 --model.n_layers 2 --model.d_model 32 --model.n_heads
    2 --model.n_kv_heads 2 --model.max_seq_len 64 --model.d_ffn 24 --model.d_ffn_wide 96
    --model.ffn_multiple_of 8 --run.micro_batch 2 --run.batch_tokens 256"""
"""The same for a rehearsal, and for what is compared with float64 or with itself."""
TRAINED: dict[str, tuple[str, str]] = {
    **{kind: (kind, "") for kind in KINDS},
    "dual last step": ("dual", "--run.backprop_loops 1"),
    "core last repetition": ("core", "--run.backprop_loops 1 --run.loop_losses 0.5"),
    "documents": ("dual", "--model.document_start EOT"),
}
"""Kinds that `fit` is checked with: one of KINDS, and more options."""


class Run:
    """A `dualpath fit` of its own process, whose output is in the cell's log."""

    def __init__(
        self,
        bench: Bench,
        name: str,
        words: str,
        steps: int,
        watch: tuple[type[Callback], dict[str, Any]] | None = None,
    ) -> None:
        """`words` are as for `options_of`, with EOT for the data's end-of-text token;
        `watch` is a callback and its arguments."""
        manifest = work_folder() / "sample/manifest.json"
        while not manifest.exists():
            time.sleep(0.1)
        self.folder = work_folder() / "small" / name
        self.out = work_folder() / f"{name}.json"
        cuda = bench.device.type == "cuda"
        device = (
            "--trainer.accelerator gpu --trainer.precision bf16-mixed" if cuda else ""
        )
        if bench.sizes.run:
            words = f"{words} {TINY} --run.compile false"
        self.options = options_of(
            f"""--config small_text --data.path {work_folder()}/sample
            --data.max_epochs null --run.dir {work_folder()} --run.recipe small
            --run.name {name} --run.budget null --run.tensorboard false
            --run.validate_every 0 --run.save_every 100000 --run.log_every 10
            --run.gates_every 100 --data.workers 1 --optim.warmup_steps 5 {device}
            {words}"""
        )
        if "EOT" in self.options.values():
            eot = str(json.loads(manifest.read_text())["eot_id"])
            self.options = {
                option: eot if value == "EOT" else value
                for option, value in self.options.items()
            }
        tokens = steps * self.number("--run.batch_tokens")
        self.options["--run.max_tokens"] = str(tokens)
        if watch is not None:
            callback, given = watch
            path = f"{callback.__module__}.{callback.__qualname__}"
            init_args = {"out": str(self.out), **given}
            one = [{"class_path": path, "init_args": init_args}]
            self.options["--trainer.callbacks"] = json.dumps(one)
        given_words = chain.from_iterable(self.options.items())
        command = [sys.executable, "-m", "dualpath_cli", "fit", *given_words]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def number(self, option: str) -> int:
        """The value of an option of this run."""
        return int(self.options[option])

    def until(self, path: Path) -> None:
        """Waits for a file. Raises RuntimeError where the run has ended without it."""
        while not path.exists():
            if self.process.poll() is not None and not path.exists():
                code = self.process.returncode
                raise RuntimeError(f"fit ended with exit code {code}, see the log")
            time.sleep(0.02)

    def end(self) -> None:
        """Waits for the run's own end. Raises RuntimeError where it is none."""
        if code := self.process.wait():
            raise RuntimeError(f"fit ended with exit code {code}, see the log")

    def tensors(self, step: int) -> dict[str, torch.Tensor]:
        """Weights and moments of a checkpoint."""
        files = sorted(
            (self.folder / f"checkpoints/step-{step:08d}").glob("*.safetensors")
        )
        return {
            name: tensor for path in files for name, tensor in load_file(path).items()
        }


def options_of(words: str) -> dict[str, str]:
    """Options and their values, by turns, without spaces; of equal ones, the last."""
    given = words.split()
    return dict(zip(given[::2], given[1::2], strict=True))


def words_of(changes: dict[str, Any]) -> str:
    """Changes to a model as options of `fit`."""
    words = []
    for key, value in changes.items():
        # A space within a list would part it.
        text = json.dumps(value, separators=(",", ":"))
        words += [f"--model.{key}", value if isinstance(value, str) else text]
    return " ".join(words)


def gradients(bench: Bench, kind: str) -> Rows:
    """Of each parameter of a kind of block as `fit` makes them: launched, and by a
    graph."""
    model, more = TRAINED[kind]
    width = bench.sizes.check_width
    words = f"""--model.n_layers 2 --model.d_model {width} --model.n_heads {width // 64}
        --model.n_kv_heads {width // 64} --model.max_seq_len {bench.sizes.check_len}
        --model.d_ffn {width} --model.d_ffn_wide {3 * width} --model.ffn_multiple_of 16
        --model.loops 3 --model.vocab_size 2048 --run.micro_batch 2 --optim.clip 0
        --run.batch_tokens {4 * bench.sizes.check_len} --optim.lr 1e-6 --optim.lr_start
        1e-6 --optim.lr_end 1e-6 --run.activation_checkpointing selective --run.compile
        true {words_of(KINDS[model])} {more}"""
    watch = (Gradients, {"steps": [2, 5]})
    run = Run(bench, f"gradients-{kind.replace(' ', '-')}", words, 6, watch)
    run.end()
    found = json.loads(run.out.read_text())
    rows: Rows = {}
    for how, one in found.items():
        _, limit = LIMITS["bf16"]
        rows[f"bf16, fit, {how}, {kind}"] = {
            "gradients off": one["off"],
            "at most": f"{limit:.0e} of each of {one['parameters']}",
            "worst": one["worst"],
            "right": one["off"] <= limit,
        }
    return rows


FEW = 8
"""Most numbers of a parameter whose gradient is not compared with itself alone."""
LAYER = re.compile(r"^blocks\.\d+\.")


def size_beside(name: str, wanted: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The norm that an error of a parameter's gradient is relative to: its own.

    Few numbers may be a small difference of large ones. Up to FEW of them stand beside
    those of the same parameter in all layers, a bias of one beside its weight.
    """
    alike = [name]
    if wanted[name].numel() == 1 and name.endswith(".bias"):
        alike = [f"{name.removesuffix('.bias')}.weight"]
    elif wanted[name].numel() <= FEW:
        place = LAYER.sub("", name)
        alike = [other for other in wanted if LAYER.sub("", other) == place]
    return torch.stack([wanted[other].norm() for other in alike]).norm()


def small(bench: Bench, model: str, graphs: bool = True, copies: int = 1) -> Rows:
    """Steps of a small model once they are warm; several runs share the device."""
    warm, steps = (3, 5) if bench.sizes.run else (40, 200)
    words = f"{SMALL[model]} --run.compile true"
    name = f"{model.replace(' ', '-')}-{'graphs' if graphs else 'launched'}-{copies}"
    watch = (Turn, {"warm": warm, "steps": steps, "graphs": graphs})
    total = warm + steps + 1 + (1000 if copies > 1 else 0)  # several are ended together
    runs = [
        Run(bench, f"{name}-{n}", f"{words} --seed_everything {n}", total, watch)
        for n in range(copies)
    ]
    found = turns(bench, runs)
    tokens = runs[0].number("--run.batch_tokens")
    seconds = median(one["seconds a step"] for one in found)
    row: Row = {"tokens/s": sum(tokens / one["seconds a step"] for one in found)}
    row |= {"step, ms": 1e3 * seconds, "graphs": str(found[0]["graphs"])}
    how = "one graph a micro-batch" if graphs else "launched"
    return {f"{model}, {how}{f', {copies} at once' if copies > 1 else ''}": row}


def turns(bench: Bench, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What `Turn` finds in runs that make their steps at once; ends the runs."""
    for run in runs:
        run.until(run.out.with_suffix(".ready"))
    bench.alone()
    for run in runs:
        run.out.with_suffix(".gate").touch()
    for run in runs:
        run.until(run.out)
    found = [json.loads(run.out.read_text()) for run in runs]
    for run in runs:
        run.process.kill()
    return found


REPEATS = """--model.n_layers 2 --model.d_model 256 --model.n_heads 4 --model.n_kv_heads
    4 --model.max_seq_len 512 --model.vocab_size 2048 --model.d_ffn 384
    --model.d_ffn_wide 1536 --run.micro_batch 2 --run.batch_tokens 2048 --run.save_every
    20 --run.keep 0 --optim.lr 2e-3 --run.compile true"""
STEPS = 60
SAME = {
    "repeats": "",
    "documents": "--model.document_start EOT",
    "experts": "--model.n_experts 4",
    "long": "--model.max_seq_len 4096 --run.batch_tokens 16384",
}
"""Runs that are made several times, as changes to REPEATS."""
ALWAYS_LAUNCHED = ("documents", "experts")
"""Those whose micro-batches are never a graph."""


def repeats(bench: Bench, kind: str, equal: int = 4) -> Rows:
    """Equal runs, one that is killed and continued, and one without graphs where there
    are some: bit for bit?

    Runs whose last tensors are the same have one letter; all must have the first one's.
    """

    def run(name: str, watch: Any = None) -> Run:
        return Run(bench, f"{kind}-{name}", f"{REPEATS} {SAME[kind]}", STEPS, watch)

    runs = {f"equal-{n}": run(f"equal-{n}") for n in range(equal)}
    if kind not in ALWAYS_LAUNCHED:
        without_graphs = {"warm": 10**6, "steps": 1, "graphs": False}
        runs["launched"] = run("launched", (Turn, without_graphs))
    killed = run("killed")
    killed.until(killed.folder / "checkpoints/manifests/step-00000040.json")
    killed.process.send_signal(signal.SIGKILL)
    killed.process.wait()
    runs["killed"] = run("killed")
    for one in runs.values():
        one.end()
    return compared(kind, runs)


def compared(kind: str, runs: Mapping[str, Run]) -> Rows:
    """A letter of each run's last tensors, and its last loss."""
    rows: Rows = {}
    results: list[dict[str, torch.Tensor]] = []
    for name, run in runs.items():
        own = run.tensors(STEPS)
        alike = (all(torch.equal(own[key], one[key]) for key in one) for one in results)
        place = next((n for n, same in enumerate(alike) if same), len(results))
        results += [own] * (place == len(results))
        with (run.folder / "metrics.csv").open() as file:
            last = list(csv.DictReader(file))[-1]["loss"]
        rows[f"{kind}, {name}"] = {
            "result": chr(ord("A") + place),
            "last loss": last,
            "right": place == 0,
        }
    return rows


# Callbacks that runs are given


class Turn(Callback):
    """Times `steps` steps after `warm` ones, once the file `out`.gate is there.

    `out`.ready says that the warm ones are over. Unless `graphs`, all are launched.
    Found are also the graphs that torch has compiled, and the peak of the memory.
    """

    def __init__(self, out: str, warm: int, steps: int, graphs: bool = True) -> None:
        self.out, self.warm, self.steps, self.graphs = Path(out), warm, steps, graphs

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, DualPathModule)
        if not self.graphs:
            pl_module.graph = None
        self.found: dict[str, Any] = {"graphs": pl_module.graph is not None}
        self.before = compiled_graphs()  # of fit's trial of torch.compile

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
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            self.began = time.perf_counter()
        elif made == self.steps:
            seconds = time.perf_counter() - self.began
            self.found["seconds a step"] = seconds / self.steps
            self.found["compiled graphs"] = compiled_graphs() - self.before
            if torch.cuda.is_available():
                self.found["peak, GB"] = torch.cuda.max_memory_allocated() / 1e9
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
        self.batch: Any = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, DualPathModule)
        assert pl_module.model is not None
        reference.load(
            pl_module.model, reference.random_weights(pl_module.config, seed=0)
        )

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.batch = batch

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        assert isinstance(pl_module, DualPathModule)
        step, model = trainer.global_step + 1, pl_module.model
        assert model is not None
        if step not in self.steps:
            return
        exact = DualPathLM(pl_module.config).double()
        exact.load_state_dict(
            {name: t.double().cpu() for name, t in model.state_dict().items()}
        )
        tokens, targets = (part.cpu() for part in self.batch)
        auxiliary = AuxiliaryLoss(pl_module.run_settings.loop_losses)
        model_pass = ModelPass(pl_module.run_settings.backprop_loops)
        nll_BT = exact(tokens, targets, auxiliary=auxiliary, model_pass=model_pass)
        (nll_BT.mean() + auxiliary.total).backward()
        wanted = {
            name: p.grad for name, p in exact.named_parameters() if p.grad is not None
        }
        off = {}
        for name, own in model.named_parameters():
            if name in wanted:
                got = torch.zeros_like(own) if own.grad is None else own.grad
                error = (got.double().cpu() - wanted[name]).norm()
                off[name] = float(error / size_beside(name, wanted))
        kind = "graph" if pl_module.graph and pl_module.graph.recorded else "launched"
        worst = max(off, key=off.__getitem__)
        self.found[kind] = {
            "worst": worst,
            "off": off[worst],
            "parameters": len(off),
            "all": off,
        }
        self.out.write_text(json.dumps(self.found))
