"""Golden losses: what 20 training steps of three tiny models give, written down beside this file.

`RENEW` writes them anew, after a change that is meant to change them.
"""

import json
import random
from pathlib import Path
from typing import get_args

import torch

from dualpath_cli.model import DualPathLM
from dualpath_cli.recipe.settings import OptimSettings
from dualpath_cli.report.seeds import seed_from
from dualpath_cli.spec.config import BlockKind, ModelConfig
from dualpath_cli.training.module import build_optimizer, build_scheduler

GOLDEN = Path(__file__).with_name("golden_losses.json")
RENEW = "python -m tests.training.golden"
STEPS = 20
OPTIM = OptimSettings(lr=1e-2, lr_start=1e-3, lr_end=1e-3, warmup_steps=4)


def config_of(block: BlockKind) -> ModelConfig:
    """A model of two layers of one kind; sublayers count from the start, unlike the paper's."""
    return ModelConfig(
        vocab_size=24, n_layers=2, d_model=32, n_heads=4, n_kv_heads=2, max_seq_len=32, block=block,
        loops=3, d_ffn=48, d_ffn_wide=96, ffn_multiple_of=8, gain_init=0.0,
    )  # fmt: skip


def train(model: DualPathLM, optim: OptimSettings = OPTIM) -> list[float]:
    """Losses in nats per token of the training steps of a model, in float32 on one thread.

    Each sequence is a random half and its copy. First all parameters get noise: gates start at
    zero, where deep and wide path could change places, and the router's weights at next to nothing.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(seed_from("golden", name) >> 1)
            noise = torch.empty(parameter.shape).normal_(std=0.2, generator=generator)
            parameter.add_(noise)
    draw = random.Random(0)
    optimizer = build_optimizer(model.named_parameters(), optim, STEPS)
    scheduler = build_scheduler(optimizer, STEPS, optim)
    losses = []
    for _ in range(STEPS):
        halves = [draw.choices(range(model.config.vocab_size), k=16) for _ in range(4)]
        tokens = torch.tensor([[*half, *half] for half in halves])
        loss = model(tokens[:, :-1], tokens[:, 1:]).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), optim.clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(round(loss.item(), 7))
    return losses


def main() -> None:
    """Writes the losses of all three kinds of block."""
    torch.set_num_threads(1)
    losses = {kind: train(DualPathLM(config_of(kind), seed=0)) for kind in get_args(BlockKind)}
    GOLDEN.write_text(json.dumps(losses) + "\n")


if __name__ == "__main__":
    main()
