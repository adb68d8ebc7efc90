"""The sample: a small English corpus of three kinds, equal each time.

Arithmetic with worked answers, questions about an invented world, and plain prose differ in what
they ask of a model, so that routing has something to separate. Held-out texts are new problems, new
tales, and known facts asked in other ways.

The words and patterns are in `grammar.yaml`. Each fact about the world can be asked in eight ways;
two of them, other ones for each fact, are held out. So the held-out questions ask for known facts
in words that are known from other facts.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Literal

import yaml

from data_prep.sources.arithmetic import problems
from dualpath_cli.base.system import write_text
from dualpath_cli.data.tokenizer import Tokenizer, train_bpe

GRAMMAR: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("grammar.yaml").read_text(encoding="utf-8")
)  # `arithmetic`, `world`, `relations` and `tales`, each by name: words, or patterns with fields


@dataclass(frozen=True)
class Town:
    """The facts about a town; no two towns have the same name or ruler."""

    name: str
    river: str
    ruler: str
    craft: str
    founded: int  # year; no two towns share one
    festival: str  # month
    stone: str
    dish: str
    banner: str  # colour and animal


def towns() -> list[Town]:
    random = Random("an invented world")

    def one(kind: str) -> str:
        return random.choice(GRAMMAR["world"][kind])

    def word() -> str:
        return one("onsets") + one("vowels") + one("codas")

    rivers = [f"the {word().capitalize()}" for _ in range(30)]
    names = distinct(lambda: word() + one("town_ends"), 160)
    families = distinct(lambda: word() + word(), len(names))
    years = random.sample(range(102, 998), len(names))
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


N_HELD_OUT_WAYS = 2


@dataclass(frozen=True)
class Relation:
    """One kind of fact: patterns over the fields of `Town`, whose name is `town`."""

    answer: str
    statements: list[str]  # sentences that state it; the first one names the town
    questions: list[str]  # the eight ways to ask for it
    of_that_town: str = ""
    """How to ask it of a town that is not named; empty where that would give the answer away."""


RELATIONS = {name: Relation(**patterns) for name, patterns in GRAMMAR["relations"].items()}


def _facts_held_out() -> list[str]:
    """Returns questions about facts of the training text, each asked in a way held out for it."""
    random = Random("facts held out")
    return random.sample(_questions(training=False), 900)


def _facts_to_train() -> list[str]:
    """Returns questions with one fact or two, and descriptions, in the order of their kinds."""
    random = Random("facts")
    texts = _questions(training=True)
    texts += [_description(town, random) for town in towns() for _ in range(5)]
    steps = _two_facts(random)
    return texts + distinct(lambda: next(steps), 5000)


def fill(pattern: str, town: Town) -> str:
    """Puts a town's facts into a pattern and begins it with a capital letter."""
    text = pattern.format(town=town.name, **vars(town))
    return text[:1].upper() + text[1:]


def _questions(training: bool) -> list[str]:
    random = Random("ways to ask")
    texts = []
    for town in towns():
        for relation in RELATIONS.values():
            ways = random.sample(relation.questions, len(relation.questions))
            chosen = ways[N_HELD_OUT_WAYS:] if training else ways[:N_HELD_OUT_WAYS]
            answer = fill(relation.answer, town)
            texts += [f"Question: {fill(way, town)}\nAnswer: {answer}." for way in chosen]
    return texts


def _description(town: Town, random: Random) -> str:
    relations = random.sample(list(RELATIONS.values()), random.randint(4, len(RELATIONS)))
    first, *others = relations
    # Only the first pattern is sure to name the town.
    sentences = [fill(first.statements[0], town)]
    sentences += [fill(random.choice(relation.statements), town) for relation in others]
    return " ".join(sentences)


def _two_facts(random: Random) -> Iterator[str]:
    """Yields questions whose answer takes two facts, which it states before it concludes."""

    def stated(relation: str, *about: Town) -> list[str]:
        return [fill(RELATIONS[relation].statements[0], town) for town in about]

    places = towns()
    asked_of_that_town = [name for name, relation in RELATIONS.items() if relation.of_that_town]
    while True:
        one, two = random.sample(places, 2)
        kind = random.randrange(4)
        older, younger = sorted((one, two), key=lambda town: town.founded)
        if kind == 0:
            question = f"Which town is older, {one.name} or {two.name}?"
            steps = [*stated("age", one, two), f"So {older.name} is older."]
        elif kind == 1:
            name = random.choice(asked_of_that_town)
            question = f"{one.ruler} rules a town. {RELATIONS[name].of_that_town}"
            answer = RELATIONS[name].answer.format(**vars(one))
            rules = f"{one.ruler} rules {one.name}."
            steps = [rules, *stated(name, one), f"So the answer is {answer}."]
        elif kind == 2:
            question = f"Do {one.name} and {two.name} lie on the same river?"
            end = "Yes, they do." if one.river == two.river else "No, they do not."
            steps = [*stated("river", one, two), end]
        else:
            question = f"How many years before {younger.name} was {older.name} founded?"
            years = younger.founded - older.founded
            end = f"{younger.founded} - {older.founded} = {years} years."
            steps = [*stated("age", older, younger), end]
        yield f"Question: {question}\nAnswer: {' '.join(steps)}"


_TALES: dict[str, list[str]] = GRAMMAR["tales"]
_THEIR = {"she": "her", "he": "his"}
_THEM = {"she": "her", "he": "him"}


def _tale(random: Random) -> str:
    """A short tale, which keeps to its people, their pronouns and one thing."""
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


Kind = Literal["arithmetic", "facts", "prose"]
Split = Literal["train", "val"]
KINDS: list[Kind] = ["arithmetic", "facts", "prose"]

N_TRAIN = {"arithmetic": 6000, "prose": 1500}
N_VAL = {"arithmetic": 320, "prose": 80}

VOCAB_SIZE = 2048


def documents(split: Split, kind: Kind | None = None, n: int | None = None) -> Iterator[str]:
    """Yields the first `n` texts (or all) of a split, of one kind or of all in one seeded order."""
    if kind is None:
        texts = [text for member in KINDS for text in _texts(split, member)]
        Random("order").shuffle(texts)
    else:
        texts = _texts(split, kind)
    return islice(texts, n)


def write_val(folder: Path) -> None:
    """Writes the held-out texts as `arithmetic.jsonl`, `facts.jsonl` and `prose.jsonl`."""
    for kind in KINDS:
        lines = [json.dumps({"text": text}) + "\n" for text in documents("val", kind)]
        write_text(folder / f"{kind}.jsonl", "".join(lines))


def tokenizer() -> Tokenizer:
    return Tokenizer(json.loads(train_bpe(documents("train"), VOCAB_SIZE)), "the sample's own")


def _texts(split: Split, kind: Kind) -> list[str]:
    if kind == "facts":
        texts = _facts_to_train() if split == "train" else _facts_held_out()
        Random(f"order of {kind}").shuffle(texts)
        return texts
    random = Random(kind)
    endless = problems(random, GRAMMAR["arithmetic"])
    draw = partial(next, endless) if kind == "arithmetic" else partial(_tale, random)
    # All texts are distinct; the first are held out, those after them are for training.
    texts = distinct(draw, N_VAL[kind] + N_TRAIN[kind])
    return texts[: N_VAL[kind]] if split == "val" else texts[N_VAL[kind] :]
