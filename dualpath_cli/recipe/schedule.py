"""Learning rate and weight decay over a run's optimizer steps. Torch-free."""

import math

from dualpath_cli.recipe.settings import OptimSettings


def learning_rate(step: int, total_steps: int, settings: OptimSettings) -> float:
    """Learning rate of optimizer step `step` (from 0) of `total_steps`.

    Linear from `lr_start` to `lr` over `warmup_steps`; then a half cosine that arrives at `lr_end`
    after the last step (appendix A of the paper), or, under `wsd`, `lr` up to `cooldown_start` and
    a straight line from there.
    """
    if step < settings.warmup_steps:
        return settings.lr_start + (settings.lr - settings.lr_start) * step / settings.warmup_steps
    start = settings.warmup_steps
    if settings.schedule == "wsd":
        start = cooldown_start(total_steps, settings)
    progress = min(1.0, max(0, step - start) / max(1, total_steps - start))
    share = 1 - progress
    if settings.schedule == "cosine":
        share = 0.5 * (1 + math.cos(math.pi * progress))
    return settings.lr_end + (settings.lr - settings.lr_end) * share


def cooldown_start(total_steps: int, settings: OptimSettings) -> int:
    """The first step below the peak rate under `wsd`; shorter runs are alike up to theirs."""
    return max(settings.warmup_steps, total_steps - round(settings.cooldown * total_steps))


def weight_decay(total_steps: int, settings: OptimSettings, rate: float = 1.0) -> float:
    """Weight decay of a run of `total_steps`: as set, or by the sum that is set.

    It is that of parameters whose learning rate is `rate` times `learning_rate`.
    """
    if settings.decay_sum is None:
        return settings.weight_decay
    rates = (learning_rate(step, total_steps, settings) for step in range(total_steps))
    return settings.decay_sum / (rate * math.fsum(rates))
