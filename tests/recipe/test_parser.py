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
    ("values", "message"),
    [
        ({"path": None}, "x.path must be text, not 'null'"),
        ({"sed": 1}, "unknown key 'x.sed'; did you mean 'seed'?"),
        ({"qqqq": 1}, "unknown key 'x.qqqq'; there are path, weight,"),
        ({"weight": -1}, "x: weight must be above 0, not -1"),
        ({"path": ["a"]}, "x.path must be text, not '['a']'"),
        ({"seed": 2.0}, "x.seed must be a whole number, not '2.0'"),
        ({"seed": None}, "x.seed must be a whole number, not 'null'"),
        ({"seed": True}, "x.seed must be a whole number, not 'true'"),
        ({"tokens": "lots"}, "x.tokens must be a whole number from 1 to 10^18 such as 80M"),
        ({"tokens": 0}, "or null, not '0'"),
        ({"keep": "al"}, "x.keep must be one of all, none, not 'al'; did you mean"),
        ({"ends": [1]}, "x.ends must be a list (a number and a number), not '[1]'"),
        ({"ends": [1, "a"]}, "x.ends must be a list (a number and a number), not '[1, 'a']'"),
        ({"kinds": ["dual", "wid"]}, "not '['dual', 'wid']'; did you mean 'wide'?"),
        (
            {"names": {"a": 3}},
            "x.names must be a mapping of names to values (each text), not '{'a'",
        ),
    ],
)
def test_a_mistake_is_one_line_with_key_value_and_what_would_be_right(values, message):
    with pytest.raises(UserError) as error:
        build(Mix, {"path": "a", **values}, "x.")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
