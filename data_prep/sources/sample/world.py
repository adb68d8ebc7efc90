"""An invented world: towns with facts that are drawn once and never contradict each other.

The words and patterns of it, and of all of the sample, are in `grammar.yaml`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml

GRAMMAR: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("grammar.yaml").read_text(encoding="utf-8")
)
"""`arithmetic`, `world`, `relations` and `tales`, each by name: words, or patterns with fields."""

N_TOWNS = 160
N_RIVERS = 30

_WORLD: dict[str, list[str]] = GRAMMAR["world"]


@dataclass(frozen=True)
class Town:
    """The facts about a town; no two towns have the same name or ruler."""

    name: str
    river: str
    ruler: str
    craft: str
    founded: int
    """Year; no two towns share one."""
    festival: str
    """Month."""
    stone: str
    dish: str
    banner: str
    """Colour and animal."""


def towns() -> list[Town]:
    """Returns the towns, the same ones each time."""
    random = Random("an invented world")

    def one(kind: str) -> str:
        return random.choice(_WORLD[kind])

    def word() -> str:
        return one("onsets") + one("vowels") + one("codas")

    rivers = [f"the {word().capitalize()}" for _ in range(N_RIVERS)]
    names = distinct(lambda: word() + one("town_ends"), N_TOWNS)
    families = distinct(lambda: word() + word(), N_TOWNS)
    years = random.sample(range(102, 998), N_TOWNS)
    return [
        Town(
            name=name.capitalize(),
            river=random.choice(rivers),
            ruler=f"{one('first_names')} {family.capitalize()}",
            craft=one("crafts"),
            founded=year,
            festival=one("months"),
            stone=one("stones"),
            dish=one("dishes"),
            banner=f"{one('colours')} {one('animals')}",
        )
        for name, family, year in zip(names, families, years, strict=True)
    ]


def distinct(draw: Callable[[], str], count: int) -> list[str]:
    """Draws until there are `count` different texts, which it returns in their order."""
    drawn: dict[str, None] = {}
    while len(drawn) < count:
        drawn[draw()] = None
    return list(drawn)
