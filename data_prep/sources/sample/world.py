"""An invented world: towns with facts that are drawn once and never contradict each other."""

# ruff: noqa: SIM905 - word lists are easier to read and extend as one string

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

N_TOWNS = 160
N_RIVERS = 30

CRAFTS = (
    "basket weaving,bell founding,boat building,book binding,candle making,carpet knotting,"
    "cheese making,clock making,glass blowing,glove making,lace making,leather working,"
    "lute making,mirror making,paper making,pottery,rope making,saddle making,salt boiling,"
    "silver work,stone carving,tile painting,wool dyeing,wood turning"
).split(",")
STONES = "basalt,chalk,flint,granite,limestone,marble,red sandstone,slate,tuff,white clay".split(
    ","
)
DISHES = (
    "barley soup,black bread,chestnut cake,cold trout,fig pie,goat stew,honey dumplings,"
    "leek pancakes,mushroom pie,pickled plums,plum broth,roast duck,saffron rice,smoked eel,"
    "sour milk,walnut bread"
).split(",")
MONTHS = (
    "January February March April May June July August September October November December"
).split()
ANIMALS = "bear boar crane eagle fox hare heron lynx otter owl raven salmon stag swan wolf".split()
COLOURS = "black blue golden green grey purple red silver white yellow".split()

_ONSETS = "b br d dr f g gl gr h k l m n p r s st t th tr v w".split()
_VOWELS = "a e i o u ae ei ia".split()
_CODAS = ["l", "ld", "m", "n", "nd", "r", "rn", "s", "sk", "th", ""]
_TOWN_ENDS = "by fell ford garth gate ham holt low mere mouth ness ric stow ton wick".split()
_FIRST = (
    "Aldis Berit Cadoc Dorra Edvin Fenna Garrick Hedda Isolt Jorun Kester Linnet Morwen Nestor "
    "Orla Perrin Rhosyn Sigrun Tobin Ulric Verity Wystan Yselle Zelda"
).split()


@dataclass(frozen=True)
class Town:
    """What is known of a town; no two towns have the same name or ruler."""

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
    rivers = [f"the {_word(random).capitalize()}" for _ in range(N_RIVERS)]
    names = distinct(lambda: _word(random) + random.choice(_TOWN_ENDS), N_TOWNS)
    families = distinct(lambda: _word(random) + _word(random), N_TOWNS)
    years = random.sample(range(102, 998), N_TOWNS)
    return [
        Town(
            name=name.capitalize(),
            river=random.choice(rivers),
            ruler=f"{random.choice(_FIRST)} {family.capitalize()}",
            craft=random.choice(CRAFTS),
            founded=year,
            festival=random.choice(MONTHS),
            stone=random.choice(STONES),
            dish=random.choice(DISHES),
            banner=f"{random.choice(COLOURS)} {random.choice(ANIMALS)}",
        )
        for name, family, year in zip(names, families, years, strict=True)
    ]


def _word(random: Random) -> str:
    return random.choice(_ONSETS) + random.choice(_VOWELS) + random.choice(_CODAS)


def distinct(draw: Callable[[], str], count: int) -> list[str]:
    """Draws until there are `count` different texts, which it returns in their order."""
    drawn: dict[str, None] = {}
    while len(drawn) < count:
        drawn[draw()] = None
    return list(drawn)
