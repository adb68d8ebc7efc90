"""Checked dataclasses: what is let through, and what each mistake is called."""

from dataclasses import dataclass, field
from typing import Literal

import pytest

from dualpath_cli.errors import UserError
from dualpath_cli.recipe.parser import build
from dualpath_cli.sizes import Size


@dataclass(frozen=True)
class Source:
    path: str
    weight: float | None = None

    def __post_init__(self) -> None:
        if self.weight is not None and self.weight <= 0:
            raise ValueError(f"weight must be above 0, not {self.weight}")


@dataclass(frozen=True)
class Mix:
    sources: tuple[Source, ...]
    tokens: Size | None = None
    seed: int = 0
    keep: Literal["all", "none"] = "all"
    ends: tuple[float, float] = (0.0, 1.0)
    kinds: list[Literal["dual", "wide"]] | Literal["dual", "wide"] = "dual"
    names: dict[str, str] = field(default_factory=dict)


def test_plain_values_become_nested_dataclasses_tuples_and_sizes():
    values = {"sources": [{"path": "a", "weight": 2}], "tokens": "1.5M", "ends": [1, 2]}
    mix = build(Mix, values)
    assert mix == Mix((Source("a", 2.0),), Size(1_500_000), ends=(1.0, 2.0))
    assert type(mix.tokens) is Size
    assert type(mix.sources[0].weight) is float
    assert build(Mix, {"sources": []}).names is not build(Mix, {"sources": []}).names


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "x.sources is missing"),
        ({"sources": [], "sed": 1}, "unknown key 'x.sed'; did you mean 'seed'?"),
        ({"sources": [], "qqqq": 1, "seed": "a"}, "unknown key 'x.qqqq'; there are sources,"),
        ({"sources": [{"path": "a", None: 1}]}, "unknown key 'x.sources.0.null'"),
        ({"sources": [{"path": "a"}, {}]}, "x.sources.1.path is missing"),
        ({"sources": [{"path": "a", "weight": -1}]}, "x.sources.0: weight must be above 0, not -1"),
        ({"sources": "a"}, "x.sources must be a list (each a mapping of names to values), not 'a'"),
        ({"sources": [], "seed": 2.0}, "x.seed must be a whole number, not '2.0'"),
        ({"sources": [], "seed": True}, "x.seed must be a whole number, not 'true'"),
        ({"sources": [], "seed": "2"}, "x.seed must be a whole number, not '2'"),
        ({"sources": [], "tokens": "lots"}, "x.tokens must be a whole number above 0 such as 80M"),
        ({"sources": [], "tokens": 0}, "or null, not '0'"),
        ({"sources": [], "keep": "al"}, "x.keep must be one of all, none, not 'al'; did you mean"),
        ({"sources": [], "ends": [1]}, "x.ends must be a list of 2 (each a number), not '[1]'"),
        ({"sources": [], "ends": [1, "a"]}, "x.ends.1 must be a number, not 'a'"),
        ({"sources": [], "kinds": ["dual", "wid"]}, "not 'wid'; did you mean 'wide'?"),
        ({"sources": [], "names": {"a": 3}}, "x.names.a must be text, not '3'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_key_value_and_what_would_be_right(values, message):
    with pytest.raises(UserError) as error:
        build(Mix, values, "x.")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
