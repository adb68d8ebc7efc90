"""Checked dataclasses: what is let through, and what each mistake is called."""

from dataclasses import dataclass, field
from typing import Literal

import pytest

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import Size
from dualpath_cli.recipe.parser import build


@dataclass(frozen=True)
class Mix:
    path: str
    weight: float | None = None
    tokens: Size | None = None
    seed: int = 0
    keep: Literal["all", "none"] = "all"
    ends: tuple[float, float] = (0.0, 1.0)
    kinds: list[Literal["dual", "wide"]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.weight is not None and self.weight <= 0:
            raise ValueError(f"weight must be above 0, not {self.weight}")


def test_plain_values_become_tuples_and_sizes():
    mix = build(Mix, {"path": "a", "weight": 2, "tokens": "1.5M", "ends": [1, 2]})
    assert mix == Mix("a", 2.0, Size(1_500_000), ends=(1.0, 2.0))
    assert type(mix.tokens) is Size
    assert type(mix.weight) is float
    assert build(Mix, {"path": "a"}).names is not build(Mix, {"path": "a"}).names


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("path", None, "null"), ("path", ["a"], "['a']"), ("sed", 1, "seed"), ("weight", -1, "-1"),
        ("seed", 2.0, "2.0"), ("seed", None, "null"), ("seed", True, "true"),
        ("tokens", "lots", "lots"), ("tokens", 0, "'0'"), ("keep", "al", "'all'"),
        ("ends", [1], "[1]"), ("ends", [1, "a"], "[1, 'a']"), ("names", {"a": 3}, "{'a': 3}"),
        ("kinds", ["dual", "wid"], "'wide'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_key_and_value_or_what_would_be_right(key, value, shown):
    with pytest.raises(UserError) as error:
        build(Mix, {"path": "a", key: value}, "x.")
    assert key in str(error.value)
    assert shown in str(error.value)
    assert "\n" not in str(error.value)
