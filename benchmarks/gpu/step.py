"""Training steps as `dualpath fit` makes them, without Lightning's loop: tokens/s and
peak memory.

Also what the device can do at most, and `dualpath fit` itself.
"""

import csv
import os
import subprocess
import sys
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.gpu.bench import MAIN, Bench
from benchmarks.llama import TransformersLlama
from benchmarks.results import Row, Rows
from benchmarks.turns import seconds_of
from dualpath_cli.flops.count import training_flops_per_token
from dualpath_cli.model.layer_pass import LayerPass
from dualpath_cli.model.positions import whole_sequences
from dualpath_cli.recipe.settings import OptimSettings
from dualpath_cli.spec.config import Checkpointing, ModelConfig
from dualpath_cli.training.optim import build_optimizer
from dualpath_cli.training.parallel import build_model

BATCHES = 4
"""Random micro-batches that a step takes by turns."""
PEAK = 989e12
"""FLOP/s of dense bf16 matrix products in the data sheets of H100 and H200 (SXM)."""


class TrainingStep:
    """A model with its optimizer and random tokens; each call makes one optimizer
    step."""

    def __init__(
        self,
        bench: Bench,
        config: ModelConfig,
        micro_batch: int,
        checkpointing: Checkpointing = "selective",
        compiled: bool = True,
        bfloat16: bool = True,
        llama_layers: int | None = None,
    ) -> None:
        """Under bf16 autocast if `bfloat16`; weights are float32 anyway.

        With `llama_layers` the model is a Llama of as many, with the training FLOPs of
        `config`.
        """
        self.config, self._bfloat16, self._compiled = config, bfloat16, compiled
        optim = OptimSettings(lr=1e-5)  # random tokens teach nothing
        if llama_layers is None:
            with bench.device:
                self.model: Any = build_model(
                    config, seed=0, checkpointing=checkpointing
                )
            parts = [*self.model.blocks, self.model.loss]
            self.optimizer = build_optimizer(
                self.model.named_parameters(), optim, total_steps=1, config=config
            )
        else:
            flops = training_flops_per_token(config)
            self.model = TransformersLlama(config, llama_layers, flops).to(bench.device)
            parts = [self.model]
            self.optimizer = torch.optim.AdamW(
                self.model.parameters(), lr=optim.lr, fused=True
            )
        for part in parts if compiled else ():
            part.compile(dynamic=False, **bench.sizes.compiler)
        shape = (micro_batch, config.max_seq_len + 1)
        self._batches = cycle(
            [
                torch.randint(config.vocab_size, shape, device=bench.device)
                for _ in range(BATCHES)
            ]
        )
        self.tokens_per_step = micro_batch * config.max_seq_len

    def __call__(self) -> None:
        """Forward, loss, backward, clipping and the optimizer; nothing waits for the
        device."""
        self.losses(next(self._batches)).mean().backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def losses(self, tokens: torch.Tensor) -> torch.Tensor:
        """Losses of tokens (B, T + 1), (B, T), or the mean of a Llama's, ()."""
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=self._bfloat16):
            return self.model(tokens[:, :-1], tokens[:, 1:])

    def compile_by_one_block(self) -> None:
        """Compiles all there is by one block of a kind, in a fraction of a step's
        memory."""
        tokens = next(self._batches)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        kinds = dict(zip(self.config.layers, self.model.blocks, strict=True))
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=self._bfloat16):
            for block in kinds.values():
                x_BTD = self.model.embed(inputs)
                positions = whole_sequences(self.config, inputs, like=x_BTD)
                block(x_BTD, LayerPass(positions)).sum().backward()
            x_BTD = self.model.norm(self.model.embed(inputs))
            self.model.loss(x_BTD, self.model.head.weight, targets).mean().backward()
        self.optimizer.zero_grad()
        self.check_compiled()

    def check_compiled(self) -> None:
        """Raises RuntimeError where a step was to be compiled, and torch ran it without
        a word."""
        if self._compiled and not graphs():
            raise RuntimeError("nothing was compiled: the step runs eagerly")


def graphs() -> int:
    """Graphs that were compiled in this process."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def compare_exactly() -> None:
    """Sets torch for this process: fixed shapes, as in a run; no TF32; no step that
    runs eagerly.

    Where there are too many graphs, torch would go on without compiling.
    """
    torch.set_float32_matmul_precision("highest")
    torch._dynamo.config.automatic_dynamic_shapes = False
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def step(
    bench: Bench,
    recipe: str,
    checkpointing: Checkpointing = "selective",
    llama: bool = False,
) -> Rows:
    """Times a step of a recipe, or of a Llama of its FLOPs.

    FLOPs are those of forward and backward without recomputation, causal attention
    halved.
    """
    sizes, cuda = bench.sizes, bench.device.type == "cuda"
    micro_batch = sizes.micro_batch
    config = sizes.model(recipe)
    layers = config.n_layers if llama else None
    made = TrainingStep(bench, config, micro_batch, checkpointing, llama_layers=layers)
    if llama:
        made()  # its layers are one graph
        made.optimizer.state.clear()  # room for the others until its turn
    else:
        made.compile_by_one_block()
    bench.alone()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    seconds = seconds_of(made, bench.device, sizes.repeats, sizes.warm_up)
    row = speed(made.config, made.tokens_per_step / median(seconds))
    row |= {"step, ms": 1e3 * median(seconds), "graphs": graphs(), "seconds": seconds}
    if cuda:
        row["peak, GB"] = torch.cuda.max_memory_allocated() / 1e9
    name = f"{recipe}, micro-batch {micro_batch}, {checkpointing}"
    return {
        name if layers is None else f"Llama of {recipe}'s FLOPs, {layers} layers": row
    }


def speed(config: ModelConfig, tokens_per_second: float) -> Row:
    """Tokens and FLOPs per second, and these as a share of the data sheet's."""
    flops = tokens_per_second * training_flops_per_token(config)
    return {
        "tokens/s": tokens_per_second,
        "TFLOP/s": flops / 1e12,
        "MFU, %": 100 * flops / PEAK,
    }


def ceilings(bench: Bench) -> Rows:
    """bf16 products and copies, read and written.

    On random data: zeros draw less power, and run faster than any real data.
    """
    n, device, repeats = bench.sizes.matmul, bench.device, bench.sizes.kernel_repeats
    matrices = [
        torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(4)
    ]
    out, turn = torch.empty_like(matrices[0]), cycle([matrices[:2], matrices[2:]])
    source = torch.randn(bench.sizes.copy_bytes // 4, device=device)
    target = torch.empty_like(source)
    bench.alone()
    product = seconds_of(
        lambda: torch.mm(*next(turn), out=out), device, repeats, warm_up=5
    )
    copy = seconds_of(lambda: target.copy_(source), device, repeats, warm_up=5)
    return {
        "measured": {
            "bf16 products, TFLOP/s": 2 * n**3 / median(product) / 1e12,
            "copies, TB/s read and written": 2 * source.nbytes / median(copy) / 1e12,
        }
    }


def work_folder() -> Path:
    """Where the programme keeps its sample data, its run and compiled kernels."""
    return Path(os.environ["WORK"])


def sample(bench: Bench) -> Rows:
    """Prepares the data of `fit`."""
    command(
        "dualpath_cli",
        "prepare",
        "--source",
        "sample",
        "--out",
        str(work_folder() / "sample"),
    )
    return {}


def fit(bench: Bench) -> Rows:
    """`dualpath fit` itself, on one device, with 16 micro-batches a step."""
    sizes, work = bench.sizes, work_folder()
    batch = 16 * sizes.micro_batch * sizes.seq_len
    words = f"""fit --config {MAIN} --config cluster_1 {sizes.run} --data.path
        {work}/sample --data.max_epochs null --run.dir {work}/runs --run.recipe gpu
        --run.name fit --run.micro_batch {sizes.micro_batch} --run.batch_tokens {batch}
        --run.max_tokens {8 * batch} --run.save_every 8 --run.log_every 2
        --run.gates_every 8 --run.tensorboard false --optim.warmup_steps 4
        --trainer.precision bf16-mixed"""
    bench.alone()
    command("dualpath_cli", *words.split())
    with (work / "runs/gpu/fit/metrics.csv").open() as file:
        tokens = [float(row["tokens_per_second"]) for row in csv.DictReader(file)]
    # the first one has compiling in it
    row = speed(sizes.model(MAIN), median(tokens[1:]))
    return {f"{MAIN}, dualpath fit": row | {"all tokens/s": tokens}}


def command(*words: str) -> None:
    """Runs a module. Raises RuntimeError where it fails; the log has its words."""
    if code := subprocess.call([sys.executable, "-m", *words]):
        raise RuntimeError(
            f"{' '.join(words[:2])} ended with exit code {code}, see the log"
        )
