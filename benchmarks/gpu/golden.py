"""The training steps of tests/golden.py on any device, without the packages that it imports."""

import math
import random

import torch
from torch import nn

from dualpath_cli.config import BlockKind, ModelConfig
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.parameters import kind_of
from dualpath_cli.seeds import seed_from

STEPS = 20
WARM_UP = 4
HIGHEST, LOWEST = 1e-2, 1e-3
"""Learning rates: from the lowest up to the highest and, by a cosine, back."""


def golden_losses(kind: BlockKind, device: torch.device) -> list[float]:
    """Returns the losses in nats per token of 20 steps of a model of two layers, in float32."""
    config = ModelConfig(
        vocab_size=24, n_layers=2, d_model=32, n_heads=4, n_kv_heads=2, max_seq_len=32, block=kind,
        loops=3, d_ffn=48, d_ffn_wide=96, ffn_multiple_of=8, gain_init=0.0,
    )  # fmt: skip
    with device:
        model = DualPathLM(config, seed=0)
    add_noise(model)
    groups = [
        {"params": [parameter], "weight_decay": 0.0 if group == "embeddings" else 0.3}
        for group, parameter in ((kind_of(n).group, p) for n, p in model.named_parameters())
    ]
    optimizer = torch.optim.AdamW(groups, lr=HIGHEST, betas=(0.9, 0.95), eps=1e-8, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step) / HIGHEST)
    draw = random.Random(0)
    losses = []
    for _ in range(STEPS):
        halves = [draw.choices(range(config.vocab_size), k=16) for _ in range(4)]
        tokens = torch.tensor([[*half, *half] for half in halves], device=device)
        loss = model(tokens[:, :-1], tokens[:, 1:]).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def add_noise(model: nn.Module) -> None:
    """Adds noise to all parameters: gates would start at zero, where the paths could be swapped."""
    for name, parameter in model.named_parameters():
        generator = torch.Generator().manual_seed(seed_from("golden", name) >> 1)
        noise = torch.empty(parameter.shape).normal_(std=0.2, generator=generator)
        parameter.add_(noise.to(parameter.device))


def rate(step: int) -> float:
    """Learning rate of a step, from 0."""
    if step < WARM_UP:
        return LOWEST + (HIGHEST - LOWEST) * step / WARM_UP
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, (step - WARM_UP) / (STEPS - WARM_UP))))
    return LOWEST + (HIGHEST - LOWEST) * cosine
