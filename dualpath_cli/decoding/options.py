"""Options of commands that run a model without a Trainer: `generate` and `evaluate`.

Torch-free, so that a mistake in them shows at once.
"""

import re
from dataclasses import dataclass
from typing import Literal

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.processes import visible_gpus
from dualpath_cli.base.ranges import check_ranges
from dualpath_cli.spec.intervention import Intervention, parse_overrides


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Where a model runs, and in which precision.

    Raises:
        UserError: for a device that is not here.
    """

    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of matrix products: float32 or bfloat16."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""

    def __post_init__(self) -> None:
        name = self.device
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", name):
            raise UserError(
                f"unknown device '{name}'; choose from auto, cpu, cuda, cuda:N"
            )
        if not name.startswith("cuda"):
            return

        gpus = visible_gpus()
        number = int(name.removeprefix("cuda").removeprefix(":") or 0)
        if gpus is not None and number >= gpus:
            raise UserError(
                f"--device {name}: {gpus} such devices are here; give cpu or auto"
            )


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """Options of a command that forces a model's loops or gates: see
    `parse_overrides`."""

    loops: int | None = None
    """Forced loops of every deep path."""
    intervention: tuple[str, ...] = ()
    """Other overrides, named as in results: gates=1,0, shuffled, shuffled:7, experts=1,
    experts=random:7, halting=0.1, skip=0.1, kv_slots=1, layers=0,2; K=3 is --loops
    3."""

    def __post_init__(self) -> None:
        check_ranges(self, {"loops": (1, 1000)})


def read_overrides(options: Overrides) -> Intervention | None:
    """Reads `--intervention` and `--loops`; None without an override."""
    loops = [] if options.loops is None else [f"K={options.loops}"]
    change = parse_overrides([*loops, *options.intervention])
    if change is not None and change.tokens is not None:
        raise UserError(
            f"--intervention tokens={change.tokens}: only `dualpath ablate --suite "
            "token-classes` tags classes of tokens"
        )
    return change


@dataclass(frozen=True)
class Sampling:
    """Changes of probabilities before an id is drawn, as in transformers; by default
    none.

    Raises:
        ValueError: for a number out of its range.
    """

    temperature: float = 1.0
    """Divide logits by this: below 1, likely tokens become likelier."""
    top_k: int | None = None
    """Draw from the K likeliest tokens, with ties at the last; 0 is off."""
    top_p: float = 1.0
    """Draw from the likeliest tokens that together have this probability."""
    greedy: bool = False
    """Always take the likeliest token."""

    def __post_init__(self) -> None:
        if self.temperature == 0:
            raise ValueError(
                "temperature must be above 0, not 0; greedy takes the likeliest"
            )
        ranges = {"temperature": (1e-6, 1e6), "top_k": (0, 1 << 24), "top_p": (1e-9, 1)}
        check_ranges(self, ranges)
