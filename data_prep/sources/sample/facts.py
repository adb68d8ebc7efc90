"""Questions and answers about the invented world, and descriptions of its towns.

Each fact can be asked in eight ways; two of them, other ones for each fact, are held out. So the
held-out questions ask for known facts in words that are known from other facts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from data_prep.sources.sample.world import GRAMMAR, Town, distinct, towns

N_HELD_OUT_WAYS = 2
N_HELD_OUT_QUESTIONS = 900
N_STEPS = 5000
"""Questions that need two facts."""
N_DESCRIPTIONS = 5
"""Descriptions of each town."""


@dataclass(frozen=True)
class Relation:
    """One kind of fact: patterns over the fields of `Town`, whose name is `town`."""

    answer: str
    statements: list[str]
    """Sentences that state it; the first one names the town."""
    questions: list[str]
    """The eight ways to ask for it."""
    of_that_town: str = ""
    """How to ask it of a town that is not named; empty where that would give the answer away."""


RELATIONS = {name: Relation(**patterns) for name, patterns in GRAMMAR["relations"].items()}


def held_out() -> list[str]:
    """Returns questions about facts of the training text, each asked in a way held out for it."""
    random = Random("facts held out")
    return random.sample(_questions(training=False), N_HELD_OUT_QUESTIONS)


def training() -> list[str]:
    """Returns questions with one fact or two, and descriptions, in the order of their kinds."""
    random = Random("facts")
    texts = _questions(training=True)
    texts += [_description(town, random) for town in towns() for _ in range(N_DESCRIPTIONS)]
    steps = _two_facts(random)
    return texts + distinct(lambda: next(steps), N_STEPS)


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
