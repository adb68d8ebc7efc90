"""What sets kinds of parameters apart in a run: factors of learning rate and initial values.

Torch-free.
"""

from typing import NamedTuple

from dualpath_cli.config import GROUP_OF, Kind
from dualpath_cli.recipe.optimizer import OptimSettings


class Powers(NamedTuple):
    """Powers of base_width / d_model, by which a kind's numbers change with the model's width."""

    rate: float
    """Of the learning rate."""
    std: float
    """Of the standard deviation of what is drawn at the start."""


_OUTPUT = Powers(rate=1, std=1)
ADAMW: dict[Kind, Powers] = {
    "hidden": Powers(rate=1, std=0.5),
    "head": _OUTPUT,
    "router": _OUTPUT,
    "gate": _OUTPUT,
}
"""muP for Adam without multipliers: table 3 of Yang et al. 2022, "Tensor Programs V" (arXiv
2203.03466). Hidden weights map a width to a width; the head, routers and gates map a width to a
number that stays, as output weights do. All other kinds are as input weights: nothing changes."""


MUON = {"match_rms_adamw": Powers(rate=0.5, std=0.5), "original": Powers(rate=0, std=0.5)}
"""Of `hidden` under Muon, by `muon_adjust`. The spectral norm of an update must stay as widths grow
in proportion (arXiv 2310.17813): an orthogonal update's does, and `original` keeps it;
`match_rms_adamw` multiplies it by the root of the width."""


def rate_factor(kind: Kind, settings: OptimSettings, d_model: int) -> float:
    """The learning rate of a kind, as a multiple of the schedule's.

    It is `lr_scale`, with `base_width` times that of the model's width, with `muon_lr` times its
    ratio to `lr` for what Muon moves.
    """
    factor = settings.lr_scale.get(kind, 1.0) * _of_width(kind, settings, d_model).rate
    if settings.name == "muon" and kind == "hidden" and settings.muon_lr is not None:
        factor *= settings.muon_lr / settings.lr
    return factor


def std_factors(settings: OptimSettings, d_model: int) -> dict[Kind, float]:
    """The initial standard deviation of each kind, as a multiple of that by `init_std`."""
    return {kind: _of_width(kind, settings, d_model).std for kind in GROUP_OF}


def _of_width(kind: Kind, settings: OptimSettings, d_model: int) -> Powers:
    """The factors of a kind, 1 each without `base_width`."""
    ratio = (settings.base_width or d_model) / d_model
    powers = ADAMW.get(kind, Powers(0, 0))
    if settings.name == "muon" and kind == "hidden":
        powers = MUON[settings.muon_adjust]
    return Powers(ratio**powers.rate, ratio**powers.std)
