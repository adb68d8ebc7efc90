"""Plain prose: short tales put together from a grammar, with a thread that runs through each."""

from collections.abc import Iterator
from random import Random

from data_prep.sources.sample.world import GRAMMAR

_TALES: dict[str, list[str]] = GRAMMAR["tales"]
_THEIR = {"she": "her", "he": "his"}
_THEM = {"she": "her", "he": "him"}


def tales(random: Random) -> Iterator[str]:
    """Yields tales without end. Each keeps to its people, their pronouns and one thing."""
    while True:
        yield _tale(random)


def _tale(random: Random) -> str:
    they, they2 = random.choice(list(_THEIR)), random.choice(list(_THEIR))
    name = random.choice(_TALES[they])
    thread = {"name": name, "they": they, "their": _THEIR[they], "them": _THEM[they]}
    thread["trade"], thread["trade2"] = random.sample(_TALES["trades"], 2)
    thread["thing"], thread["thing2"] = random.sample(_TALES["things"], 2)
    thread["they2"] = they2
    thread["friend"] = random.choice([other for other in _TALES[they2] if other != name])
    thread["place"], *others = random.sample(_TALES["places"], 5)
    thread["day"] = random.choice(_TALES["days"])

    def patterns(kind: str, most: int = 1, least: int | None = None) -> list[str]:
        count = most if least is None else random.randint(least, most)
        return random.sample(_TALES[kind], count)

    paragraphs = [
        [*patterns("openings"), *patterns("purposes"), *patterns("ways", 2)],
        [*patterns("troubles"), *patterns("talks", 3, least=1)],
        [*patterns("turns", 2, least=1), *patterns("endings")],
    ]
    return "\n".join(
        " ".join(_fill(pattern, random, thread | {"place2": place}) for pattern in paragraph)
        for paragraph, place in zip(paragraphs, others, strict=False)
    )


def _fill(pattern: str, random: Random, thread: dict[str, str]) -> str:
    weather, weather2 = random.sample(_TALES["weather"], 2)
    old, old2 = random.sample(_TALES["old"], 2)
    return pattern.format(
        **thread,
        They=thread["they"].capitalize(),
        weather=weather,
        weather2=weather2,
        Weather2=weather2[0].upper() + weather2[1:],
        sound=random.choice(_TALES["sounds"]),
        mood=random.choice(_TALES["moods"]),
        old=old,
        old2=old2,
        reason=random.choice(_TALES["reasons"]).format(their=thread["their"]),
        saying=random.choice(_TALES["sayings"]),
        years=random.randint(2, 40),
        count=random.randint(20, 900),
    )
