"""Questions and answers about the invented world, and descriptions of its towns.

Each fact can be asked in eight ways; two of them, other ones for each fact, are held out. So the
held-out questions ask for known facts in words that are known from other facts.
"""

from collections.abc import Iterator
from random import Random

from data_prep.sources.sample.phrasings import AGE, RELATIONS, RIVER
from data_prep.sources.sample.world import Town, distinct, towns

N_HELD_OUT_WAYS = 2
N_HELD_OUT_QUESTIONS = 900
N_STEPS = 5000
"""Questions that need two facts."""
N_DESCRIPTIONS = 5
"""Descriptions of each town."""


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
        for relation in RELATIONS:
            ways = random.sample(relation.questions, len(relation.questions))
            chosen = ways[N_HELD_OUT_WAYS:] if training else ways[:N_HELD_OUT_WAYS]
            answer = fill(relation.answer, town)
            texts += [f"Question: {fill(way, town)}\nAnswer: {answer}." for way in chosen]
    return texts


def _description(town: Town, random: Random) -> str:
    relations = random.sample(RELATIONS, random.randint(4, len(RELATIONS)))
    first, *others = relations
    # Only the first pattern is sure to name the town.
    sentences = [fill(first.statements[0], town)]
    sentences += [fill(random.choice(relation.statements), town) for relation in others]
    return " ".join(sentences)


def _two_facts(random: Random) -> Iterator[str]:
    """Yields questions whose answer takes two facts, which it states before it concludes."""
    places = towns()
    while True:
        one, two = random.sample(places, 2)
        kind = random.randrange(4)
        if kind == 0:
            older = min(one, two, key=lambda town: town.founded)
            question = f"Which town is older, {one.name} or {two.name}?"
            steps = [fill(AGE.statements[0], town) for town in (one, two)]
            end = f"So {older.name} is older."
        elif kind == 1:
            relation = random.choice([relation for relation in RELATIONS if relation.of_that_town])
            question = f"{one.ruler} rules a town. {relation.of_that_town}"
            steps = [f"{one.ruler} rules {one.name}.", fill(relation.statements[0], one)]
            end = f"So the answer is {relation.answer.format(**vars(one))}."
        elif kind == 2:
            same = one.river == two.river
            question = f"Do {one.name} and {two.name} lie on the same river?"
            steps = [fill(RIVER.statements[0], town) for town in (one, two)]
            end = "Yes, they do." if same else "No, they do not."
        else:
            first, later = sorted((one, two), key=lambda town: town.founded)
            question = f"How many years before {later.name} was {first.name} founded?"
            steps = [fill(AGE.statements[0], town) for town in (first, later)]
            end = f"{later.founded} - {first.founded} = {later.founded - first.founded} years."
        yield f"Question: {question}\nAnswer: {' '.join([*steps, end])}"
