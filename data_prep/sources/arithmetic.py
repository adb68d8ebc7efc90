"""Arithmetic word problems with worked answers, annotated as GSM8K's are: <<3*4=12>>12."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any


class Problem:
    """Draws the words and numbers of a problem, and holds the lines of its worked answer."""

    def __init__(self, random: Random, grammar: dict[str, Any]) -> None:
        self.random, self.grammar = random, grammar
        self.number = random.randint
        self.lines: list[str] = []
        self.result = 0  # of the last line

    def word(self, kind: str) -> str:
        """Draws a word of the grammar."""
        return self.words(kind, 1)[0]

    def words(self, kind: str, count: int) -> list[str]:
        """Draws different words of one kind."""
        return self.random.sample(self.grammar[kind], count)

    def pair(self, kind: str) -> Any:
        """Draws a key of the grammar with its value."""
        return self.random.choice(list(self.grammar[kind].items()))

    def step(self, line: str, left: int, operator: str, right: int, unit: str = "") -> int:
        """Adds a line with a calculation for its {}, such as 3*4 = <<3*4=12>>12; returns 12.

        `unit` ($) stands before the result. Raises ValueError where a division leaves a rest.
        """
        results = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}
        if operator == "/" and left % right:
            raise ValueError(f"{left}/{right} is not whole")
        self.result = results[operator]
        term = f"{left}{operator}{right}"
        self.lines.append(line.format(f"{term} = {unit}<<{term}={self.result}>>{self.result}"))
        return self.result


def problems(random: Random, grammar: dict[str, Any]) -> Iterator[str]:
    """Yields word problems without end, in the words of a grammar; their numbers are whole ones."""
    while True:
        problem = Problem(random, grammar)
        question = random.choice(_TEMPLATES)(problem)
        lines = "\n".join([*problem.lines, f"#### {problem.result}"])
        yield f"Question: {question}\nAnswer: {lines}"


def _shopping(p: Problem) -> str:
    name, (first, second) = p.word("names"), p.words("goods", 2)
    a, b, c, d = (p.number(2, n) for n in (15, 15, 12, 12))
    cost_1 = p.step(f"The {first} cost {{}}.", a, "*", c, "$")
    cost_2 = p.step(f"The {second} cost {{}}.", b, "*", d, "$")
    total = p.step(f"Together {name} pays {{}}.", cost_1, "+", cost_2, "$")
    opening = f"{name} buys {a} {first} for ${c} each and {b} {second} for ${d} each."
    if p.random.random() < 0.5:
        return f"{opening} How much does {name} pay in all?"
    paid = total + p.number(1, 40)
    p.step("The change is {}.", paid, "-", total, "$")
    return f"{opening} How much change does {name} get back from ${paid}?"


def _two_days(p: Problem) -> str:
    name, goods, (time, later) = p.word("names"), p.word("goods"), p.pair("times")
    first, (times, multiple), (verb, past) = p.number(4, 60), p.pair("multiples"), p.pair("verbs")
    line = f"{name} {past} {{}} {goods} {later}."
    if p.random.random() < 0.5:
        second = p.step(line, first, "*", times)
        relation = f"{multiple} as many"
    else:
        first *= times
        second = p.step(line, first, "/", times)
        relation = f"{p.grammar['parts'][times]} as many"
    p.step(f"Altogether that makes {{}} {goods}.", first, "+", second)
    return (
        f"{name} {past} {first} {goods} {time} and {relation} {later}. "
        f"How many {goods} did {name} {verb} altogether?"
    )


def _sharing(p: Problem) -> str:
    name, goods, holder = p.word("names"), p.word("goods"), p.word("holders")
    friends, portion = p.number(2, 9), p.number(3, 25)
    boxes = p.random.choice([n for n in range(2, 13) if (friends * portion) % n == 0] or [1])
    inside = friends * portion // boxes
    total = p.step(f"There are {{}} {goods}.", boxes, "*", inside)
    p.step(f"Each friend gets {{}} {goods}.", total, "/", friends)
    return (
        f"{name} has {boxes} {holder} with {inside} {goods} in each and shares all of them "
        f"equally among {friends} friends. How many {goods} does each friend get?"
    )


def _wages(p: Problem) -> str:
    name, place = p.word("names"), p.word("places")
    wage, hours, days = p.number(8, 30), p.number(2, 9), p.number(2, 6)
    day = p.step(f"In one day {name} earns {{}}.", wage, "*", hours, "$")
    week = p.step(f"In {days} days that is {{}}.", day, "*", days, "$")
    opening = (
        f"{name} works at the {place} for ${wage} an hour, {hours} hours a day and {days} days "
        "a week."
    )
    if p.random.random() < 0.5:
        return f"{opening} How much does {name} earn in a week?"
    rent = p.number(5, week - 1)
    p.step("After the rent, {} is left.", week, "-", rent, "$")
    return f"{opening} The rent is ${rent} a week. How much is left after paying it?"


def _journey(p: Problem) -> str:
    name, way = p.word("names"), p.word("ways")
    v, w = p.number(3, 40), p.number(3, 40)
    s, t = p.number(1, 6), p.number(1, 6)
    first = p.step("The first part is {} km.", v, "*", s)
    second = p.step("The second part is {} km.", w, "*", t)
    p.step("The whole way is {} km.", first, "+", second)
    return (
        f"{name} {way} for {s} hours at {v} km an hour and then for {t} hours at {w} km an hour. "
        f"How many kilometres is that in total?"
    )


def _saving(p: Problem) -> str:
    name, goods = p.word("names"), p.word("savings")
    week, weeks, start = p.number(3, 25), p.number(3, 20), p.number(5, 80)
    price = start + week * weeks
    missing = p.step(f"{name} still needs {{}}.", price, "-", start, "$")
    p.step("That takes {} weeks.", missing, "/", week)
    return (
        f"A {goods} costs ${price}. {name} has ${start} and saves ${week} a week. "
        f"After how many weeks can {name} buy the {goods}?"
    )


def _ages(p: Problem) -> str:
    (young, old), (times, multiple) = p.words("names", 2), p.pair("multiples")
    age, years = p.number(3, 16), p.number(2, 20)
    old_age = p.step(f"{old} is {{}} years old.", age, "*", times)
    opening = f"{young} is {age} years old and {old} is {multiple} as old."
    if p.random.random() < 0.5:
        p.step("Together they are {} years old.", age, "+", old_age)
        return f"{opening} How old are they together?"
    p.step(f"In {years} years {old} will be {{}}.", old_age, "+", years)
    return f"{opening} How old will {old} be in {years} years?"


def _rows(p: Problem) -> str:
    name, plant = p.word("names"), p.word("plants")
    rows, in_row = p.number(3, 15), p.number(4, 20)
    lost = p.number(1, rows * in_row // 2)
    total = p.step(f"{name} sets {{}} plants.", rows, "*", in_row)
    p.step("After the frost, {} plants are left.", total, "-", lost)
    return (
        f"{name} sets {rows} rows of {in_row} {plant} plants. The frost takes {lost} of them. "
        f"How many {plant} plants are left?"
    )


def _tank(p: Problem) -> str:
    place = p.word("places")
    inflow, outflow = p.number(6, 40), p.number(1, 5)
    hours, start = p.number(2, 12), p.number(0, 100)
    net = p.step("The tank gains {} litres an hour.", inflow, "-", outflow)
    gain = p.step(f"In {hours} hours it gains {{}} litres.", net, "*", hours)
    p.step("Then it holds {} litres.", start, "+", gain)
    return (
        f"The tank of the {place} holds {start} litres. Each hour {inflow} litres flow in and "
        f"{outflow} litres leak out. How many litres are in it after {hours} hours?"
    )


def _discount(p: Problem) -> str:
    name, goods = p.word("names"), p.word("goods")
    percent, unit = p.pair("discounts")
    price = unit * p.number(2, 15)
    discount = p.step(f"{percent}% of ${price} is {{}}.", price, "/", unit, "$")
    reduced = p.step("A box now costs {}.", price, "-", discount, "$")
    boxes = p.number(2, 9)
    p.step(f"{name} pays {{}}.", reduced, "*", boxes, "$")
    return (
        f"A box of {goods} costs ${price}, and today it is {percent}% cheaper. "
        f"What does {name} pay for {boxes} boxes?"
    )


def _comparison(p: Problem) -> str:
    (one, two, three), goods = p.words("names", 3), p.word("goods")
    a, more = p.number(5, 60), p.number(2, 30)
    less = p.number(1, a + more - 1)
    b = p.step(f"{two} has {{}} {goods}.", a, "+", more)
    p.step(f"{three} has {{}} {goods}.", b, "-", less)
    return (
        f"{one} has {a} {goods}. {two} has {more} more than {one}, and {three} has {less} fewer "
        f"than {two}. How many {goods} does {three} have?"
    )


def _fence(p: Problem) -> str:
    name, place = p.word("names"), p.word("fields")
    long, wide, price = p.number(8, 40), p.number(3, 20), p.number(2, 9)
    half = p.step("A long and a short side make {} metres.", long, "+", wide)
    metres = p.step("The fence is {} metres long.", half, "*", 2)
    p.step("It costs {}.", metres, "*", price, "$")
    return (
        f"{name} fences a {place} {long} metres long and {wide} metres wide. A metre of fence "
        f"costs ${price}. What does the fence cost?"
    )


def _reading(p: Problem) -> str:
    name, days, pages = p.word("names"), p.number(2, 9), p.number(6, 40)
    rest_days, rest_pages = p.number(2, 9), p.number(5, 30)
    total = days * pages + rest_days * rest_pages
    read = p.step(f"{name} has read {{}} pages.", days, "*", pages)
    left = p.step("{} pages are left.", total, "-", read)
    p.step("That is {} pages a day.", left, "/", rest_days)
    return (
        f"{name}'s book has {total} pages. {name} reads {pages} pages a day for {days} days and "
        f"wants to finish it in {rest_days} more days. How many pages a day is that?"
    )


def _recipe(p: Problem) -> str:
    name, dish = p.word("names"), p.word("dishes")
    people, grams = p.number(2, 6), 10 * p.number(2, 30)
    factor = p.number(2, 8)
    p.step(f"{name} makes the recipe {{}} times.", people * factor, "/", people)
    stuff = p.word("ingredients")
    p.step("That takes {} grams.", grams, "*", factor)
    return (
        f"A recipe of {dish} for {people} people takes {grams} grams of {stuff}. How many grams "
        f"does {name} need for {people * factor} people?"
    )


_TEMPLATES: list[Callable[[Problem], str]] = [
    _shopping, _two_days, _sharing, _wages, _journey, _saving, _ages, _rows, _tank, _discount,
    _comparison, _fence, _reading, _recipe,
]  # fmt: skip
