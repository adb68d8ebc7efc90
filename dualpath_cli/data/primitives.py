"""Reasoning primitives: problems drawn by a seed, to train on and to test with.

    347+586=933              addition of n digits

    a=4 b=a c=9 d=c e=b      variable assignment: the number of `e` is found over three
    e=4                      hops, from e to b, from b to a, from a to 4
    d=9

Both are after the reasoning primitives of Saunshi et al. (arXiv 2409.19044). A program
has the same form at all hops, so levels differ only in the variable that is asked for.
A problem belongs either to texts for training or to tests, by a hash of the problem.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from string import ascii_lowercase, digits

CHAINS = 3
"""Chains of variables in a program; a guess among their numbers is right by 1/3."""
MOST_HOPS = 4  # variables in a chain
TEST_SHARE = 8  # one of so many problems is kept for tests
DOCUMENTS = 40_000
"""Documents for training, each with problems of one family: 11.4 MB."""
HELD_OUT = 200  # documents of each family to validate on
ITEMS = 500  # problems of a test


@dataclass(frozen=True)
class Problem:
    """A program, or nothing, and the questions about it."""

    program: str
    questions: tuple[tuple[str, str], ...]  # each with its answer: ("a=", "4")

    @property
    def text(self) -> str:
        """The problem with its answers, as in texts for training and in examples."""
        lines = [f"{question}{answer}\n" for question, answer in self.questions]
        return self.program + "".join(lines)


Draw = Callable[[random.Random, int], Problem]


@dataclass(frozen=True)
class Family:
    """Problems of one kind, by difficulty."""

    draw: Draw  # by a generator and a level
    levels: tuple[int, ...]
    shots: int  # worked problems before the problem of a test
    in_document: int  # problems in a document for training


def draw_addition(rng: random.Random, n_digits: int) -> Problem:
    """A sum of two numbers of `n_digits` digits, without leading zeros."""
    least = 10 ** (n_digits - 1)
    first = rng.randrange(least, 10 * least)
    second = rng.randrange(least, 10 * least)
    return Problem("", ((f"{first}+{second}=", str(first + second)),))


def draw_assignment(rng: random.Random, hops: int) -> Problem:
    """A program of interleaved chains, and two questions for each number of hops; the
    first question has `hops`."""
    # Any order in which each variable follows the one that it is assigned.
    turns = [chain for chain in range(CHAINS) for _ in range(MOST_HOPS)]
    rng.shuffle(turns)

    # Names in order: which variable comes next is no part of the problem.
    numbers = rng.sample(digits, CHAINS)
    chains: list[list[str]] = [[number] for number in numbers]
    lines = []
    for name, turn in zip(ascii_lowercase, turns, strict=False):
        chain = chains[turn]
        lines.append(f"{name}={chain[-1]}")
        chain.append(name)

    others = [*range(1, MOST_HOPS + 1)] * 2
    others.remove(hops)
    rng.shuffle(others)
    questions = []
    for number in (hops, *others):
        chain = rng.choice(chains)
        questions.append((f"{chain[number]}=", chain[0]))
    return Problem(" ".join(lines) + "\n", tuple(questions))


FAMILIES = {
    "addition": Family(draw_addition, levels=(2, 3, 4), shots=5, in_document=20),
    "assignment": Family(draw_assignment, levels=(1, 2, 3, 4), shots=2, in_document=4),
}


def is_for_tests(problem: Problem) -> bool:
    """Whether a problem is kept for tests; a+b is kept exactly if b+a is."""
    question, _ = problem.questions[0]
    terms = sorted(question.strip("=").split("+"))
    identity = problem.program or "+".join(terms)
    return hashlib.sha256(identity.encode()).digest()[0] % TEST_SHARE == 0


def _problems(
    rng: random.Random, family: Family, level: int | None, for_tests: bool
) -> Iterator[Problem]:
    """Yields problems of one side, of a level, or each of any level."""
    while True:
        problem = family.draw(rng, level or rng.choice(family.levels))
        if is_for_tests(problem) == for_tests:
            yield problem


def _documents(
    rng: random.Random, families: Sequence[str], for_tests: bool
) -> Iterator[str]:
    """Yields documents of one side: each has problems of one family, of any level."""
    while True:
        family = FAMILIES[rng.choice(families)]
        problems = _problems(rng, family, level=None, for_tests=for_tests)
        chosen = islice(problems, family.in_document)
        yield "".join(problem.text for problem in chosen)


def training_texts() -> Iterator[str]:
    """Yields the documents for training, always the same."""
    documents = _documents(
        random.Random("primitives for training"), list(FAMILIES), for_tests=False
    )
    return islice(documents, DOCUMENTS)


def held_out_texts(family: str) -> Iterator[str]:
    """Yields documents of a family in the form of those for training, with problems
    that are kept for tests."""
    rng = random.Random(f"primitives held out, {family}")
    return islice(_documents(rng, [family], for_tests=True), HELD_OUT)


# Tests


@dataclass(frozen=True)
class LevelTest:
    """A test of one level: worked problems, and the problems to solve."""

    examples: str  # the text before every question
    questions: list[tuple[str, str]]  # each with its answer


def names_of_tests() -> dict[str, list[str]]:
    """The names of the tests by family: `addition_2`, a level each."""
    return {
        name: [f"{name}_{level}" for level in family.levels]
        for name, family in FAMILIES.items()
    }


def level_test(name: str) -> LevelTest:
    """The test of a name, always the same: `ITEMS` different problems kept for tests,
    after examples that are not."""
    family_name, _, level = name.rpartition("_")
    family = FAMILIES[family_name]
    rng = random.Random(f"primitives for tests, {name}")

    shots = _problems(rng, family, int(level), for_tests=False)
    examples = "".join(problem.text for problem in islice(shots, family.shots))

    asked: dict[str, str] = {}
    kept = _problems(rng, family, int(level), for_tests=True)
    while len(asked) < ITEMS:
        problem = next(kept)
        question, answer = problem.questions[0]
        asked[problem.program + question] = answer
    return LevelTest(examples, list(asked.items()))
