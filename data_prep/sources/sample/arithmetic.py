"""Arithmetic word problems with worked answers, annotated as GSM8K's are: <<3*4=12>>12."""

# ruff: noqa: SIM905 - word lists are easier to read and extend as one string

from collections.abc import Callable, Iterator
from random import Random

NAMES = (
    "Ada Amir Anneke Bela Bruno Carmen Chidi Clara Dalia Daniel Edda Emil Farah Felix Greta Hana "
    "Hugo Ines Ivo Jamila Jonas Kaito Kira Lena Leo Luz Magda Malik Mara Milo Nadia Noor Olga "
    "Omar Paula Pilar Quentin Rana Rosa Ruben Sami Selma Tariq Thea Tomas Ursula Vera Viktor "
    "Wanda Xenia Yara Yusuf Zara Zeno"
).split()
GOODS = (
    "apples bananas beads bolts books bottles bricks buns buttons candles cards carrots cups "
    "eggs envelopes erasers figs hooks jars kites lamps lemons marbles melons mugs nails olives "
    "onions pears pencils plates plums postcards potatoes ribbons rolls scarves seeds shells "
    "spoons stamps stickers tiles tomatoes"
).split()
HOLDERS = "bags baskets boxes crates drawers jars shelves trays".split()
PLACES = "bakery bookshop factory garden harbour library market mill museum orchard school".split()
TIMES = ["on Monday", "on Tuesday", "on Friday", "in March", "in the morning", "last week"]
LATER = ["on Wednesday", "on Thursday", "on Saturday", "in April", "in the evening", "this week"]
VERBS = {
    "collect": "collected",
    "count": "counted",
    "pack": "packed",
    "sell": "sold",
    "unload": "unloaded",
    "wrap": "wrapped",
}
MULTIPLES = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}
PARTS = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}

Problem = tuple[str, int]
"""A question and its result."""


class Answer:
    """The lines of a worked answer."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def step(self, line: str, left: int, operator: str, right: int, unit: str = "") -> int:
        """Adds a line with a calculation for its {}, such as 3*4 = <<3*4=12>>12; returns 12.

        `unit` ($) stands before the result. Raises ValueError where a division leaves a rest.
        """
        results = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}
        if operator == "/" and left % right:
            raise ValueError(f"{left}/{right} is not whole")
        result = results[operator]
        term = f"{left}{operator}{right}"
        self.lines.append(line.format(f"{term} = {unit}<<{term}={result}>>{result}"))
        return result


def problems(random: Random) -> Iterator[str]:
    """Yields word problems without end; every number in them is a whole one."""
    while True:
        answer = Answer()
        question, result = random.choice(_TEMPLATES)(random, answer)
        lines = "\n".join([*answer.lines, f"#### {result}"])
        yield f"Question: {question}\nAnswer: {lines}"


def _shopping(random: Random, answer: Answer) -> Problem:
    name, (first, second) = random.choice(NAMES), random.sample(GOODS, 2)
    a, b, p, q = (random.randint(2, n) for n in (15, 15, 12, 12))
    cost_1 = answer.step(f"The {first} cost {{}}.", a, "*", p, "$")
    cost_2 = answer.step(f"The {second} cost {{}}.", b, "*", q, "$")
    total = answer.step(f"Together {name} pays {{}}.", cost_1, "+", cost_2, "$")
    opening = f"{name} buys {a} {first} for ${p} each and {b} {second} for ${q} each."
    if random.random() < 0.5:
        return f"{opening} How much does {name} pay in all?", total
    paid = total + random.randint(1, 40)
    change = answer.step("The change is {}.", paid, "-", total, "$")
    return f"{opening} How much change does {name} get back from ${paid}?", change


def _two_days(random: Random, answer: Answer) -> Problem:
    name, goods, i = random.choice(NAMES), random.choice(GOODS), random.randrange(len(TIMES))
    first, times = random.randint(4, 60), random.choice(list(MULTIPLES))
    verb, past = random.choice(list(VERBS.items()))
    line = f"{name} {past} {{}} {goods} {LATER[i]}."
    if random.random() < 0.5:
        second = answer.step(line, first, "*", times)
        relation = f"{MULTIPLES[times]} as many"
    else:
        first *= times
        second = answer.step(line, first, "/", times)
        relation = f"{PARTS[times]} as many"
    total = answer.step(f"Altogether that makes {{}} {goods}.", first, "+", second)
    question = (
        f"{name} {past} {first} {goods} {TIMES[i]} and {relation} {LATER[i]}. "
        f"How many {goods} did {name} {verb} altogether?"
    )
    return question, total


def _sharing(random: Random, answer: Answer) -> Problem:
    name, goods, holder = random.choice(NAMES), random.choice(GOODS), random.choice(HOLDERS)
    friends, portion = random.randint(2, 9), random.randint(3, 25)
    boxes = random.choice([n for n in range(2, 13) if (friends * portion) % n == 0] or [1])
    inside = friends * portion // boxes
    total = answer.step(f"There are {{}} {goods}.", boxes, "*", inside)
    share = answer.step(f"Each friend gets {{}} {goods}.", total, "/", friends)
    question = (
        f"{name} has {boxes} {holder} with {inside} {goods} in each and shares all of them "
        f"equally among {friends} friends. How many {goods} does each friend get?"
    )
    return question, share


def _wages(random: Random, answer: Answer) -> Problem:
    name, place = random.choice(NAMES), random.choice(PLACES)
    wage, hours, days = random.randint(8, 30), random.randint(2, 9), random.randint(2, 6)
    day = answer.step(f"In one day {name} earns {{}}.", wage, "*", hours, "$")
    week = answer.step(f"In {days} days that is {{}}.", day, "*", days, "$")
    opening = (
        f"{name} works at the {place} for ${wage} an hour, {hours} hours a day and {days} days "
        "a week."
    )
    if random.random() < 0.5:
        return f"{opening} How much does {name} earn in a week?", week
    rent = random.randint(5, week - 1)
    left = answer.step("After the rent, {} is left.", week, "-", rent, "$")
    return f"{opening} The rent is ${rent} a week. How much is left after paying it?", left


def _journey(random: Random, answer: Answer) -> Problem:
    name, way = random.choice(NAMES), random.choice(["cycles", "drives", "rides", "sails", "walks"])
    v, w = random.randint(3, 40), random.randint(3, 40)
    s, t = random.randint(1, 6), random.randint(1, 6)
    first = answer.step("The first part is {} km.", v, "*", s)
    second = answer.step("The second part is {} km.", w, "*", t)
    question = (
        f"{name} {way} for {s} hours at {v} km an hour and then for {t} hours at {w} km an hour. "
        f"How many kilometres is that in total?"
    )
    return question, answer.step("The whole way is {} km.", first, "+", second)


def _saving(random: Random, answer: Answer) -> Problem:
    name, goods = random.choice(NAMES), random.choice(["bicycle", "drum", "guitar", "tent", "boat"])
    week, weeks, start = random.randint(3, 25), random.randint(3, 20), random.randint(5, 80)
    price = start + week * weeks
    missing = answer.step(f"{name} still needs {{}}.", price, "-", start, "$")
    question = (
        f"A {goods} costs ${price}. {name} has ${start} and saves ${week} a week. "
        f"After how many weeks can {name} buy the {goods}?"
    )
    return question, answer.step("That takes {} weeks.", missing, "/", week)


def _ages(random: Random, answer: Answer) -> Problem:
    (young, old), times = random.sample(NAMES, 2), random.choice(list(MULTIPLES))
    age, years = random.randint(3, 16), random.randint(2, 20)
    old_age = answer.step(f"{old} is {{}} years old.", age, "*", times)
    opening = f"{young} is {age} years old and {old} is {MULTIPLES[times]} as old."
    if random.random() < 0.5:
        both = answer.step("Together they are {} years old.", age, "+", old_age)
        return f"{opening} How old are they together?", both
    result = answer.step(f"In {years} years {old} will be {{}}.", old_age, "+", years)
    return f"{opening} How old will {old} be in {years} years?", result


def _rows(random: Random, answer: Answer) -> Problem:
    name, plant = random.choice(NAMES), random.choice(["bean", "cabbage", "rose", "vine", "tulip"])
    rows, in_row = random.randint(3, 15), random.randint(4, 20)
    lost = random.randint(1, rows * in_row // 2)
    total = answer.step(f"{name} sets {{}} plants.", rows, "*", in_row)
    question = (
        f"{name} sets {rows} rows of {in_row} {plant} plants. The frost takes {lost} of them. "
        f"How many {plant} plants are left?"
    )
    return question, answer.step("After the frost, {} plants are left.", total, "-", lost)


def _tank(random: Random, answer: Answer) -> Problem:
    place = random.choice(PLACES)
    inflow, outflow = random.randint(6, 40), random.randint(1, 5)
    hours, start = random.randint(2, 12), random.randint(0, 100)
    net = answer.step("The tank gains {} litres an hour.", inflow, "-", outflow)
    gain = answer.step(f"In {hours} hours it gains {{}} litres.", net, "*", hours)
    question = (
        f"The tank of the {place} holds {start} litres. Each hour {inflow} litres flow in and "
        f"{outflow} litres leak out. How many litres are in it after {hours} hours?"
    )
    return question, answer.step("Then it holds {} litres.", start, "+", gain)


def _discount(random: Random, answer: Answer) -> Problem:
    name, goods = random.choice(NAMES), random.choice(GOODS)
    percent, unit = random.choice([(10, 10), (20, 5), (25, 4), (50, 2)])
    price = unit * random.randint(2, 15)
    discount = answer.step(f"{percent}% of ${price} is {{}}.", price, "/", unit, "$")
    reduced = answer.step("A box now costs {}.", price, "-", discount, "$")
    boxes = random.randint(2, 9)
    question = (
        f"A box of {goods} costs ${price}, and today it is {percent}% cheaper. "
        f"What does {name} pay for {boxes} boxes?"
    )
    return question, answer.step(f"{name} pays {{}}.", reduced, "*", boxes, "$")


def _comparison(random: Random, answer: Answer) -> Problem:
    (one, two, three), goods = random.sample(NAMES, 3), random.choice(GOODS)
    a, more = random.randint(5, 60), random.randint(2, 30)
    less = random.randint(1, a + more - 1)
    b = answer.step(f"{two} has {{}} {goods}.", a, "+", more)
    question = (
        f"{one} has {a} {goods}. {two} has {more} more than {one}, and {three} has {less} fewer "
        f"than {two}. How many {goods} does {three} have?"
    )
    return question, answer.step(f"{three} has {{}} {goods}.", b, "-", less)


def _fence(random: Random, answer: Answer) -> Problem:
    name, place = random.choice(NAMES), random.choice(["garden", "field", "yard", "meadow"])
    long, wide, price = random.randint(8, 40), random.randint(3, 20), random.randint(2, 9)
    half = answer.step("A long and a short side make {} metres.", long, "+", wide)
    metres = answer.step("The fence is {} metres long.", half, "*", 2)
    question = (
        f"{name} fences a {place} {long} metres long and {wide} metres wide. A metre of fence "
        f"costs ${price}. What does the fence cost?"
    )
    return question, answer.step("It costs {}.", metres, "*", price, "$")


def _reading(random: Random, answer: Answer) -> Problem:
    name, days, pages = random.choice(NAMES), random.randint(2, 9), random.randint(6, 40)
    rest_days, rest_pages = random.randint(2, 9), random.randint(5, 30)
    total = days * pages + rest_days * rest_pages
    read = answer.step(f"{name} has read {{}} pages.", days, "*", pages)
    left = answer.step("{} pages are left.", total, "-", read)
    question = (
        f"{name}'s book has {total} pages. {name} reads {pages} pages a day for {days} days and "
        f"wants to finish it in {rest_days} more days. How many pages a day is that?"
    )
    return question, answer.step("That is {} pages a day.", left, "/", rest_days)


def _recipe(random: Random, answer: Answer) -> Problem:
    name, dish = random.choice(NAMES), random.choice(["bread", "jam", "pancakes", "soup", "stew"])
    people, grams = random.randint(2, 6), 10 * random.randint(2, 30)
    factor = random.randint(2, 8)
    answer.step(f"{name} makes the recipe {{}} times.", people * factor, "/", people)
    stuff = random.choice(["barley", "beans", "berries", "flour", "oats", "rice"])
    question = (
        f"A recipe of {dish} for {people} people takes {grams} grams of {stuff}. How many grams "
        f"does {name} need for {people * factor} people?"
    )
    return question, answer.step("That takes {} grams.", grams, "*", factor)


_TEMPLATES: list[Callable[[Random, Answer], Problem]] = [
    _shopping,
    _two_days,
    _sharing,
    _wages,
    _journey,
    _saving,
    _ages,
    _rows,
    _tank,
    _discount,
    _comparison,
    _fence,
    _reading,
    _recipe,
]
