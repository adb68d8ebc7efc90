"""What opens the loops of a core that is put into a trained model, at equal FLOPs.

OMP_NUM_THREADS=1 python -m benchmarks.open_loops TEXTS.jsonl.gz \\
    --out docs/benchmarks/loops.json

A model of bytes with eight wide layers is trained first. Then it goes on as it is, or
with layers 2 to 5 as a core (R = 2) on fewer tokens, so that the FLOPs are equal. Arms
differ in the start of the second repetition's gains, in the gains' learning rate, and
in the draws of R. Losses are in nats a byte on held-out texts, with R forced. Some 40
minutes of a core.
"""

import argparse
import gzip
import json
import math
import random
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F

from benchmarks.results import Row, Rows, publish
from dualpath_cli.flops.count import training_flops_per_token
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.block import DualPathBlock
from dualpath_cli.recipe.settings import OptimSettings
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.training.optim import build_optimizer, build_scheduler

LENGTH = 128
BATCH = 4
HELD_OUT = 40  # texts
WINDOWS = 256  # of held-out text
FIRST_STEPS = 600
STEPS = 160  # of the model as it is; fewer with a core
SEEDS = (1, 2, 3)
SILENT = -7.0  # gains before the softplus, as `dualpath retrofit` sets them

SHAPE = ModelConfig(
    vocab_size=256,
    n_layers=8,
    d_model=128,
    n_heads=4,
    n_kv_heads=4,
    max_seq_len=LENGTH,
    block="wide",
    loops=1,
    d_ffn_wide=512,
    ffn_multiple_of=8,
    gain_init=math.log(math.expm1(1)),  # gains of 1, as a pretrained model has
)
CORE = replace(SHAPE, core=[2, 5], core_loops=2)


@dataclass(frozen=True)
class Arm:
    """A way to go on."""

    name: str
    config: ModelConfig = CORE
    damping: float = 0.0
    """The second repetition's gains at the start; 0: silent."""
    gain_rate: float = 1.0
    """Learning rate of gains, as a multiple of `optim.lr`."""
    draws: tuple[int, ...] = ()
    """Numbers of repetitions that steps draw from; empty: R."""


ARMS = (
    Arm("as it is", SHAPE),
    Arm("silent"),
    Arm("silent, gains x10", gain_rate=10),
    Arm("silent, gains x100", gain_rate=100),
    Arm("damping 0.15", damping=0.15),
    Arm("damping 0.15, gains x10", damping=0.15, gain_rate=10),
    Arm("damping 0.15, R of 1 to 3", damping=0.15, draws=(1, 2, 3)),
    Arm("damping 1", damping=1.0),
)


class Texts:
    """Bytes to train on, and windows of held-out texts."""

    def __init__(self, path: Path) -> None:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            texts = [json.loads(line)["text"] for line in file]
        random.Random(0).shuffle(texts)

        self.train = _bytes(texts[HELD_OUT:])
        held_out = _bytes(texts[:HELD_OUT])
        self.windows = _sample(held_out, WINDOWS, random.Random(1))


def _bytes(texts: list[str]) -> torch.Tensor:
    joined = bytearray("\0".join(texts).encode())
    return torch.frombuffer(joined, dtype=torch.uint8).long()


def _sample(tokens: torch.Tensor, count: int, draw: random.Random) -> torch.Tensor:
    """Windows of LENGTH + 1 tokens, (count, LENGTH + 1)."""
    starts = [draw.randrange(len(tokens) - LENGTH - 1) for _ in range(count)]
    return torch.stack([tokens[start : start + LENGTH + 1] for start in starts])


def losses(model: DualPathLM, windows: torch.Tensor, r: int) -> float:
    """The mean loss in nats a byte, with r repetitions."""
    has_core = model.config.core is not None
    change = Intervention(core_loops=r) if has_core else None
    with torch.no_grad():
        parts = [
            model(part[:, :-1], part[:, 1:], intervention=change).mean().item()
            for part in windows.split(16)
        ]
    return sum(parts) / len(parts)


def train(
    model: DualPathLM, texts: Texts, steps: int, rate: float, arm: Arm, seed: int
) -> None:
    settings = OptimSettings(
        lr=rate,
        lr_start=rate / 10,
        lr_end=rate / 10,
        warmup_steps=5,
        decay=["matrices"],
        lr_scale={"gains": arm.gain_rate},
    )
    named = model.named_parameters()
    optimizer = build_optimizer(named, settings, steps, model.config)
    schedule = build_scheduler(optimizer, steps, settings)

    draw = random.Random(seed)
    loops = random.Random(seed)
    for _ in range(steps):
        batch = _sample(texts.train, BATCH, draw)
        change = None
        if arm.draws:
            change = Intervention(core_loops=loops.choice(arm.draws))

        loss = model(batch[:, :-1], batch[:, 1:], intervention=change).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def begun(arm: Arm, first: DualPathLM) -> DualPathLM:
    """The trained model with the arm's core."""
    model = DualPathLM(arm.config, seed=0)
    weights = dict(first.named_parameters())
    start = math.log(math.expm1(arm.damping)) if arm.damping else SILENT
    with torch.no_grad():
        for name, weight in model.named_parameters():
            known = weights[name]
            if weight.shape == known.shape:
                weight.copy_(known)
            else:  # gains, by repetition
                weight[:1] = known
                weight[1:] = start
    return model


def gone_on(arm: Arm, first: DualPathLM, texts: Texts, seed: int) -> Row:
    """Trains an arm; its losses before and after, by R."""
    model = begun(arm, first)
    forced = [1] if arm.config.core is None else [1, 2, 3]
    dearer = training_flops_per_token(arm.config) / training_flops_per_token(SHAPE)
    row: Row = {"seed": seed, "steps": round(STEPS / dearer)}

    for r in forced[:2]:
        row[f"before, R={r}"] = f"{losses(model, texts.windows, r):.4f}"
    train(model, texts, row["steps"], 1e-3, arm, seed)
    for r in forced:
        row[f"after, R={r}"] = f"{losses(model, texts.windows, r):.4f}"

    gains = []
    for block in model.blocks:
        assert isinstance(block, DualPathBlock)
        gains += F.softplus(block.wide.gain.detach())[1:].tolist()
    if gains:
        row["mean gain, r=2"] = f"{sum(gains) / len(gains):.4f}"
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument("--out")
    given = parser.parse_args()

    texts = Texts(given.texts)
    first = DualPathLM(SHAPE, seed=0)
    train(first, texts, FIRST_STEPS, 2e-3, Arm("first", SHAPE), seed=0)

    rows: Rows = {}
    for seed in SEEDS:
        for arm in ARMS:
            row = gone_on(arm, first, texts, seed)
            rows[f"{arm.name} ({seed})"] = row
            print(f"{arm.name}: {row}", flush=True)
    publish(given, {"Nats a byte on held-out texts, by seed": rows})


if __name__ == "__main__":
    main()
