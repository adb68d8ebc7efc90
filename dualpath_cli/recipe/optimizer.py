"""The section `optim` of a recipe: the optimizer, its rates and its decay. Torch-free."""

from dataclasses import dataclass, field
from typing import Literal

from dualpath_cli.config import GROUP_OF, RANGES, Kind, ParameterGroup
from dualpath_cli.errors import did_you_mean
from dualpath_cli.ranges import Range, check_range, check_ranges


@dataclass(frozen=True)
class OptimSettings:
    """The optimizer and its learning rate. The defaults are the paper's (appendix A)."""

    name: Literal["adamw", "muon"] = "adamw"
    """adamw; or muon, for the matrices of attention and FFNs, and AdamW for all others."""
    lr: float = 5e-4
    """Peak learning rate."""
    lr_start: float = 5e-6
    """Learning rate of the first warm-up step."""
    lr_end: float = 5e-5
    """Learning rate that is reached with the last token."""
    warmup_steps: int = 184
    """Optimizer steps from lr_start to lr."""
    schedule: Literal["cosine", "wsd"] = "cosine"
    """After the warm-up: half a cosine to lr_end; or wsd, constant, then linear over `cooldown`."""
    cooldown: float = 0.2
    """The last part of all steps, in which schedule wsd goes down."""
    muon_lr: float | None = None
    """Peak learning rate of Muon's matrices, on the schedule of lr with all rates in proportion;
    null is lr. Only under name muon, as the next two."""
    muon_momentum: float = 0.95
    """Decay rate of Muon's momentum, which is Nesterov's."""
    muon_adjust: Literal["match_rms_adamw", "original"] = "match_rms_adamw"
    """Factor on Muon's rate by a matrix's shape: match_rms_adamw is 0.2 sqrt(max(rows, columns)),
    so that Muon takes a rate and decay that suit AdamW (arXiv 2502.16982); original is
    sqrt(max(1, rows / columns)), Keller Jordan's, whose muon_lr is 0.02."""
    lr_scale: dict[str, float] = field(default_factory=dict)
    """Factors of the learning rate by kind of parameter: hidden (projections of attention, FFNs),
    embedding (also as a tied head), head, router, gate (their matrices), norms, gains, biases,
    conditioning. A kind that is not named has 1; 0 freezes it, and it does not decay."""
    base_width: int | None = None
    """Width transfer: the model.d_model that lr and model.init_std were tuned at. With r =
    base_width / d_model, the rate of hidden, head, router and gate is r times lr, and their initial
    standard deviation times sqrt(r) (hidden) or r (the others): table 3 of arXiv 2203.03466.
    Muon's rate is times sqrt(r) under match_rms_adamw, else as it is (arXiv 2310.17813). Keep the
    head size and d_ffn / d_model. null scales nothing."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates of the two moments."""
    eps: float = 1e-8
    """Epsilon in AdamW's denominator."""
    weight_decay: float = 0.3
    """Decoupled weight decay of the groups in `decay`: a step shrinks by it times the rate of the
    kind, with lr_scale and base_width."""
    decay_sum: float | None = None
    """Sum of learning rate times weight decay over all steps, which then replaces
    weight_decay: runs of any length and peak rate shrink their weights alike, and so do kinds of
    any lr_scale but 0 and base_width. The paper's is 1.51; null keeps weight_decay."""
    decay: list[ParameterGroup] = field(
        default_factory=lambda: ["matrices", "norms", "gains", "biases"]
    )
    """Groups that decay: matrices, embeddings (with the head when tied), norms, gains, biases,
    conditioning (scales and shifts of steps)."""
    clip: float = 1.0
    """Global L2 norm that gradients are clipped to; 0 switches clipping off."""
    skip_sigma: float | None = None
    """Leaves out steps whose gradient norm is this many standard deviations above its mean (of the
    logarithm, over the last 100 steps); null leaves none out. 6 is a good value."""

    def __post_init__(self) -> None:
        ranges: dict[str, Range] = dict.fromkeys(("lr", "muon_lr"), (1e-30, 1e9))
        ranges |= dict.fromkeys(("lr_start", "lr_end", "eps", "weight_decay"), (0, 1e9))
        ranges |= dict.fromkeys(("betas", "muon_momentum"), (0, 0.999999))
        ranges |= {"warmup_steps": (0, 10**12), "clip": (0, 1e12), "skip_sigma": (0.1, 1000)}
        ranges |= {"cooldown": (0, 1), "decay_sum": (0, 1e6), "base_width": RANGES["d_model"]}
        check_ranges(self, ranges)
        for kind, factor in self.lr_scale.items():
            if kind not in GROUP_OF:
                hint = did_you_mean(kind, GROUP_OF) or f"; there are {', '.join(GROUP_OF)}"
                raise ValueError(f"lr_scale has no kind '{kind:.60}'{hint}")
            check_range(f"lr_scale.{kind}", factor, (0, 1000))


ADAMW: dict[Kind, tuple[float, float]] = {"hidden": (1, 0.5)}
ADAMW |= dict.fromkeys(("head", "router", "gate"), (1, 1))
"""Powers of base_width / d_model, by which a kind's learning rate and initial standard deviation
change: muP for Adam without multipliers, table 3 of Yang et al. 2022, "Tensor Programs V" (arXiv
2203.03466). Hidden weights map a width to a width; the head, routers and gates map a width to a
number that stays, as output weights do. All other kinds are as input weights: nothing changes."""

MUON = {"match_rms_adamw": (0.5, 0.5), "original": (0, 0.5)}
"""Of `hidden` under Muon, by `muon_adjust`. The spectral norm of an update must stay as widths grow
in proportion (arXiv 2310.17813): an orthogonal update's does, and `original` keeps it;
`match_rms_adamw` multiplies it by the root of the width."""


def rate_factor(kind: Kind, settings: OptimSettings, d_model: int) -> float:
    """The learning rate of a kind, as a multiple of the schedule's.

    It is `lr_scale`, with `base_width` times that of the model's width, with `muon_lr` times its
    ratio to `lr` for what Muon moves.
    """
    factor = settings.lr_scale.get(kind, 1.0) * _of_width(kind, settings, d_model)[0]
    if settings.name == "muon" and kind == "hidden" and settings.muon_lr is not None:
        factor *= settings.muon_lr / settings.lr
    return factor


def std_factors(settings: OptimSettings, d_model: int) -> dict[Kind, float]:
    """The initial standard deviation of each kind, as a multiple of that by `init_std`."""
    return {kind: _of_width(kind, settings, d_model)[1] for kind in GROUP_OF}


def _of_width(kind: Kind, settings: OptimSettings, d_model: int) -> tuple[float, float]:
    """The factors of a kind's learning rate and standard deviation, 1 without `base_width`."""
    ratio = (settings.base_width or d_model) / d_model
    moved = settings.name == "muon" and kind == "hidden"
    rate, std = MUON[settings.muon_adjust] if moved else ADAMW.get(kind, (0, 0))
    return ratio**rate, ratio**std
