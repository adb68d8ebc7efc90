"""Schedules over a run's steps: learning rate, decay, loops, micro-batches.
Torch-free."""

import math
from dataclasses import dataclass, replace
from typing import Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.seeds import seed_from
from dualpath_cli.recipe.settings import OptimSettings, RunSettings, Settings
from dualpath_cli.spec.config import GROUP_OF, Kind, ModelConfig
from dualpath_cli.spec.intervention import Intervention


def learning_rate(step: int, total_steps: int, settings: OptimSettings) -> float:
    """Learning rate of optimizer step `step` (from 0) of `total_steps`.

    Linear from `lr_start` to `lr` over `warmup_steps`; then a half cosine that arrives
    at `lr_end` after the last step (appendix A of the paper). Under `wsd`: `lr` up to
    `cooldown_start`, then linear to `lr_end`.
    """
    warmup = settings.warmup_steps
    peak = settings.lr
    if step < warmup:
        return settings.lr_start + (peak - settings.lr_start) * step / warmup

    start = warmup
    if settings.schedule == "wsd":
        start = cooldown_start(total_steps, settings)
    since_start = max(0, step - start)
    falling_steps = max(1, total_steps - start)
    progress = min(1.0, since_start / falling_steps)

    share = 1 - progress
    if settings.schedule == "cosine":
        share = 0.5 * (1 + math.cos(math.pi * progress))
    return settings.lr_end + (peak - settings.lr_end) * share


def cooldown_start(total_steps: int, settings: OptimSettings) -> int:
    """The last step at the peak rate under `wsd`; up to it, longer runs are the
    same."""
    cooldown = round(settings.cooldown * total_steps)
    return max(settings.warmup_steps, total_steps - cooldown)


def weight_decay(total_steps: int, settings: OptimSettings) -> float:
    """Weight decay of a run of `total_steps`: `weight_decay`, or from `decay_sum`."""
    if settings.decay_sum is None:
        return settings.weight_decay
    rates = (learning_rate(step, total_steps, settings) for step in range(total_steps))
    return settings.decay_sum / math.fsum(rates)


@dataclass(frozen=True)
class StepLoops:
    """The number of loops of each optimizer step: set by its phase, or drawn from
    several.

    It depends only on step and seed, so that ranks, micro-batches and continued runs
    agree.
    """

    phases: tuple[tuple[int, tuple[int, ...]], ...]
    """The first step of each phase, from 0 on, and the numbers that its steps draw
    from."""
    steps: int
    """Optimizer steps of the run."""
    seed: int = 0
    """Seed of the draws; all numbers are equally probable."""

    def choices(self, step: int) -> tuple[int, ...]:
        """The numbers that an optimizer step, from 0 on, draws from."""
        begun = [choices for first, choices in self.phases if first <= step]
        return begun[-1]

    def at(self, step: int) -> int:
        """The number of loops of an optimizer step, from 0 on."""
        choices = self.choices(step)
        draw = seed_from("train_loops", self.seed, step)
        return choices[draw % len(choices)]

    def counts(self) -> dict[int, float]:
        """Steps that run each number of loops; for draws, the expected number."""
        ends = [first for first, _ in self.phases[1:]]
        ends.append(self.steps)

        counts: dict[int, float] = {}
        for (first, choices), end in zip(self.phases, ends, strict=True):
            of_each = (end - first) / len(choices)
            for loops in choices:
                counts[loops] = counts.get(loops, 0) + of_each
        return counts


def step_loops(run: RunSettings, seed: int = 0) -> StepLoops | None:
    """The loops of a run's steps; None if all steps run `model.loops`."""
    if run.train_loops is not None:
        whole_run = (0, tuple(run.train_loops))
        return StepLoops((whole_run,), run.steps, seed)

    if run.loop_schedule is not None:
        phases = [
            (round(part * run.steps), (loops,)) for part, loops in run.loop_schedule
        ]
        return StepLoops(tuple(phases), run.steps)
    return None


def check_loops(run: RunSettings, model: ModelConfig) -> None:
    """Raises UserError for keys of loops that a model cannot obey, or that have no
    effect on it."""
    for key in ("train_loops", "loop_schedule"):
        if getattr(run, key) is not None:
            _check_varied(key, run, model)

    if run.backprop_loops is not None:
        _check_backprop(run.backprop_loops, run, model)
    if run.loop_losses and not model.repeats_core:
        raise UserError(
            f"run.loop_losses={run.loop_losses:g} has no effect without a core that is "
            "repeated: set model.core and model.core_loops, or leave it out"
        )


def _check_varied(key: str, run: RunSettings, model: ModelConfig) -> None:
    """Raises UserError for loops of `key` that the model cannot run, for another end
    than the model's, and for a phase without a step."""
    field = model.varied_loops
    trained = getattr(model, field)
    if not isinstance(trained, int):
        raise UserError(
            f"run.{key} needs one number in model.loops, not {trained!s:.60}; give one "
            "number"
        )

    if run.loop_schedule is not None:
        _, last = run.loop_schedule[-1]
        if last != trained:
            raise UserError(
                f"run.loop_schedule ends with {last} loops, but validation uses "
                f"model.{field}={trained}; end the schedule with {trained}, or leave "
                "the schedule out"
            )

    for number, steps in loop_counts(run).items():
        problem = Intervention.of_loops(model, number).problem(model)
        if problem:
            raise UserError(f"run.{key} has {number}: {problem}")
        if run.steps and not steps:
            raise UserError(
                f"run.{key} trains with {number} in none of the run's steps; leave it "
                "out, or raise run.max_tokens"
            )


def _check_backprop(last: int, run: RunSettings, model: ModelConfig) -> None:
    """Raises UserError if the last loops are all loops of every step, or leave weights
    before them without a gradient."""
    models = [model]
    if counts := loop_counts(run):
        varied: list[dict[str, Any]] = [{model.varied_loops: n} for n in counts]
        models = [replace(model, **loops) for loops in varied]

    key = f"run.backprop_loops={last}"
    longest = [max(trained.most_loops, trained.core_loops) for trained in models]
    if last >= max(longest):
        raise UserError(f"{key} has no effect, as no step runs a longer loop")
    for trained in models:
        _check_reached(last, key, trained)


def _check_reached(last: int, key: str, model: ModelConfig) -> None:
    """Raises UserError for weights before the last loops without a gradient; `key` is
    for the message."""
    for number, layer in enumerate(model.layers):
        if layer.block == "wide" or layer.loops <= last:
            continue
        if layer.block == "loop":
            raise UserError(
                f"{key} of {layer.loops} steps leaves all weights before layer "
                f"{number}, a 'loop' block, without a gradient; choose dual blocks, or "
                "leave it out"
            )
        if layer.untied_steps:
            raise UserError(
                f"{key} of {layer.loops} steps leaves the sublayers of earlier steps "
                f"in layer {number} without a gradient, as model.untied_steps gives "
                "each step its own"
            )

    if model.core_loops > last and model.injection == "none":
        raise UserError(
            f"{key} of {model.core_loops} repetitions leaves all weights before the "
            "core without a gradient; choose model.injection: add or linear"
        )


def micro_batches(batch_tokens: int, length: int, ranks: int, micro_batch: int) -> int:
    """Returns the number of micro-batches of a rank in each step; sequences have
    `length` tokens.

    Raises UserError unless the step's tokens divide into whole, equally many
    micro-batches.
    """
    sequences, rest = divmod(batch_tokens, length * ranks)  # of a rank
    if not rest and sequences % micro_batch == 0:
        return sequences // micro_batch

    unit = length * ranks * micro_batch
    if rest:
        rounded_up = -(-batch_tokens // unit) * unit
        way_out = f"--run.batch_tokens {rounded_up}"
    else:
        divisors = [n for n in range(1, micro_batch) if sequences % n == 0]
        way_out = f"--run.micro_batch {max(divisors)}"
    raise UserError(
        f"run.batch_tokens={batch_tokens} is not a multiple of {unit}, the product of "
        f"model.max_seq_len={length}, run.micro_batch={micro_batch} and "
        f"{ranks} device{'s' * (ranks > 1)}; {way_out} fits"
    )


def loop_counts(run: RunSettings) -> dict[int, float]:
    """`StepLoops.counts` of a run; empty if all steps run `model.loops`."""
    loops = step_loops(run)
    return {} if loops is None else loops.counts()


def stable_steps(settings: Settings) -> int:
    """Steps at the start of a run under `wsd` that are the same in longer runs of its
    settings.

    They end where the cool-down, or the second phase of `run.loop_schedule`, begins.
    """
    stable = cooldown_start(settings.run.steps, settings.optim)
    loops = step_loops(settings.run)
    if loops is None or len(loops.phases) == 1:
        return stable

    second_phase, _ = loops.phases[1]
    return min(stable, second_phase)


ADAMW: dict[Kind, tuple[float, float]] = {"hidden": (1, 0.5)}
ADAMW |= dict.fromkeys(("head", "router", "gate"), (1, 1))
"""Powers of base_width / d_model in the factors of a kind's learning rate and initial
standard deviation: muP for Adam without multipliers, table 3 of Yang et al. 2022,
"Tensor Programs V" (arXiv 2203.03466). Hidden weights map a width to a width; the head,
routers and gates map a width to a fixed number, as output weights do. All other kinds
are like input weights, with factor 1."""

MUON = {"match_rms_adamw": (0.5, 0.5), "original": (0, 0.5)}
"""The powers of `hidden` under Muon, by `muon_adjust`. The spectral norm of an update
must stay the same as widths grow in proportion (arXiv 2310.17813). The norm of an
orthogonal update does, also under `original`; `match_rms_adamw` multiplies the update
by the root of the width."""


def rate_factor(kind: Kind, settings: OptimSettings, d_model: int) -> float:
    """The learning rate of a kind, as a multiple of the schedule's.

    A product of `lr_scale`, the factor of the width (with `base_width`) and, for Muon's
    matrices, `muon_lr` / `lr`.
    """
    of_width, _ = _width_factors(kind, settings, d_model)
    factor = settings.lr_scale.get(kind, 1.0) * of_width
    if settings.name == "muon" and kind == "hidden" and settings.muon_lr is not None:
        factor *= settings.muon_lr / settings.lr
    return factor


def std_factors(settings: OptimSettings, d_model: int) -> dict[Kind, float]:
    """The initial standard deviation of each kind, as a multiple of the usual one."""
    factors: dict[Kind, float] = {}
    for kind in GROUP_OF:
        _, factors[kind] = _width_factors(kind, settings, d_model)
    return factors


def _width_factors(
    kind: Kind, settings: OptimSettings, d_model: int
) -> tuple[float, float]:
    """Factors of a kind's learning rate and standard deviation; 1 without
    `base_width`."""
    ratio = (settings.base_width or d_model) / d_model
    by_muon = settings.name == "muon" and kind == "hidden"
    rate, std = MUON[settings.muon_adjust] if by_muon else ADAMW.get(kind, (0, 0))
    return ratio**rate, ratio**std
