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

Problem = tuple[str, list[str], int]
"""A question, the lines of its answer, and the result."""


def problems(random: Random) -> Iterator[str]:
    """Yields word problems without end; every number in them is a whole one."""
    while True:
        question, lines, result = random.choice(_TEMPLATES)(random)
        answer = "\n".join([*lines, f"#### {result}"])
        yield f"Question: {question}\nAnswer: {answer}"


def _calculate(left: int, operator: str, right: int, unit: str = "") -> tuple[str, int]:
    """Returns "3*4 = <<3*4=12>>12" and 12; `unit` ($) stands before the result."""
    results = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}
    if operator == "/" and left % right:
        raise ValueError(f"{left}/{right} is not whole")
    result = results[operator]
    term = f"{left}{operator}{right}"
    return f"{term} = {unit}<<{term}={result}>>{result}", result


def _shopping(random: Random) -> Problem:
    name, (first, second) = random.choice(NAMES), random.sample(GOODS, 2)
    a, b, p, q = (random.randint(2, n) for n in (15, 15, 12, 12))
    one, cost_1 = _calculate(a, "*", p, "$")
    two, cost_2 = _calculate(b, "*", q, "$")
    both, total = _calculate(cost_1, "+", cost_2, "$")
    lines = [f"The {first} cost {one}.", f"The {second} cost {two}."]
    lines.append(f"Together {name} pays {both}.")
    opening = f"{name} buys {a} {first} for ${p} each and {b} {second} for ${q} each."
    if random.random() < 0.5:
        return f"{opening} How much does {name} pay in all?", lines, total
    paid = total + random.randint(1, 40)
    rest, change = _calculate(paid, "-", total, "$")
    lines.append(f"The change is {rest}.")
    return f"{opening} How much change does {name} get back from ${paid}?", lines, change


def _two_days(random: Random) -> Problem:
    name, goods, i = random.choice(NAMES), random.choice(GOODS), random.randrange(len(TIMES))
    first, times = random.randint(4, 60), random.choice(list(MULTIPLES))
    verb, past = random.choice(list(VERBS.items()))
    if random.random() < 0.5:
        step, second = _calculate(first, "*", times)
        relation = f"{MULTIPLES[times]} as many"
    else:
        first *= times
        step, second = _calculate(first, "/", times)
        relation = f"{PARTS[times]} as many"
    add, total = _calculate(first, "+", second)
    question = (
        f"{name} {past} {first} {goods} {TIMES[i]} and {relation} {LATER[i]}. "
        f"How many {goods} did {name} {verb} altogether?"
    )
    lines = [f"{name} {past} {step} {goods} {LATER[i]}.", f"Altogether that makes {add} {goods}."]
    return question, lines, total


def _sharing(random: Random) -> Problem:
    name, goods, holder = random.choice(NAMES), random.choice(GOODS), random.choice(HOLDERS)
    friends, each = random.randint(2, 9), random.randint(3, 25)
    boxes = random.choice([n for n in range(2, 13) if (friends * each) % n == 0] or [1])
    inside = friends * each // boxes
    total_text, total = _calculate(boxes, "*", inside)
    share_text, share = _calculate(total, "/", friends)
    question = (
        f"{name} has {boxes} {holder} with {inside} {goods} in each and shares all of them "
        f"equally among {friends} friends. How many {goods} does each friend get?"
    )
    lines = [f"There are {total_text} {goods}.", f"Each friend gets {share_text} {goods}."]
    return question, lines, share


def _wages(random: Random) -> Problem:
    name, place = random.choice(NAMES), random.choice(PLACES)
    wage, hours, days = random.randint(8, 30), random.randint(2, 9), random.randint(2, 6)
    day_text, day = _calculate(wage, "*", hours, "$")
    week_text, week = _calculate(day, "*", days, "$")
    lines = [f"In one day {name} earns {day_text}.", f"In {days} days that is {week_text}."]
    opening = (
        f"{name} works at the {place} for ${wage} an hour, {hours} hours a day and {days} days "
        "a week."
    )
    if random.random() < 0.5:
        return f"{opening} How much does {name} earn in a week?", lines, week
    rent = random.randint(5, week - 1)
    left_text, left = _calculate(week, "-", rent, "$")
    lines.append(f"After the rent, {left_text} is left.")
    question = f"{opening} The rent is ${rent} a week. How much is left after paying it?"
    return question, lines, left


def _journey(random: Random) -> Problem:
    name, way = random.choice(NAMES), random.choice(["cycles", "drives", "rides", "sails", "walks"])
    v, w = random.randint(3, 40), random.randint(3, 40)
    s, t = random.randint(1, 6), random.randint(1, 6)
    one, d = _calculate(v, "*", s)
    two, e = _calculate(w, "*", t)
    both, total = _calculate(d, "+", e)
    question = (
        f"{name} {way} for {s} hours at {v} km an hour and then for {t} hours at {w} km an hour. "
        f"How many kilometres is that in total?"
    )
    lines = [f"The first part is {one} km.", f"The second part is {two} km."]
    return question, [*lines, f"The whole way is {both} km."], total


def _saving(random: Random) -> Problem:
    name, goods = random.choice(NAMES), random.choice(["bicycle", "drum", "guitar", "tent", "boat"])
    week, weeks, start = random.randint(3, 25), random.randint(3, 20), random.randint(5, 80)
    price = start + week * weeks
    missing_text, missing = _calculate(price, "-", start, "$")
    weeks_text, _ = _calculate(missing, "/", week)
    question = (
        f"A {goods} costs ${price}. {name} has ${start} and saves ${week} a week. "
        f"After how many weeks can {name} buy the {goods}?"
    )
    lines = [f"{name} still needs {missing_text}.", f"That takes {weeks_text} weeks."]
    return question, lines, weeks


def _ages(random: Random) -> Problem:
    (young, old), times = random.sample(NAMES, 2), random.choice(list(MULTIPLES))
    age, years = random.randint(3, 16), random.randint(2, 20)
    old_text, old_age = _calculate(age, "*", times)
    sum_text, both = _calculate(age, "+", old_age)
    lines = [f"{old} is {old_text} years old.", f"Together they are {sum_text} years old."]
    opening = f"{young} is {age} years old and {old} is {MULTIPLES[times]} as old."
    if random.random() < 0.5:
        return f"{opening} How old are they together?", lines, both
    later, result = _calculate(old_age, "+", years)
    lines = [lines[0], f"In {years} years {old} will be {later}."]
    return f"{opening} How old will {old} be in {years} years?", lines, result


def _rows(random: Random) -> Problem:
    name, plant = random.choice(NAMES), random.choice(["bean", "cabbage", "rose", "vine", "tulip"])
    rows, each = random.randint(3, 15), random.randint(4, 20)
    lost = random.randint(1, rows * each // 2)
    text, total = _calculate(rows, "*", each)
    left_text, left = _calculate(total, "-", lost)
    question = (
        f"{name} sets {rows} rows of {each} {plant} plants. The frost takes {lost} of them. "
        f"How many {plant} plants are left?"
    )
    lines = [f"{name} sets {text} plants.", f"After the frost, {left_text} plants are left."]
    return question, lines, left


def _tank(random: Random) -> Problem:
    place = random.choice(PLACES)
    inflow, outflow = random.randint(6, 40), random.randint(1, 5)
    hours, start = random.randint(2, 12), random.randint(0, 100)
    net_text, net = _calculate(inflow, "-", outflow)
    gain_text, gain = _calculate(net, "*", hours)
    end_text, end = _calculate(start, "+", gain)
    question = (
        f"The tank of the {place} holds {start} litres. Each hour {inflow} litres flow in and "
        f"{outflow} litres leak out. How many litres are in it after {hours} hours?"
    )
    lines = [f"The tank gains {net_text} litres an hour."]
    lines += [f"In {hours} hours it gains {gain_text} litres.", f"Then it holds {end_text} litres."]
    return question, lines, end


def _discount(random: Random) -> Problem:
    name, goods = random.choice(NAMES), random.choice(GOODS)
    percent, unit = random.choice([(10, 10), (20, 5), (25, 4), (50, 2)])
    price = unit * random.randint(2, 15)
    off_text, off = _calculate(price, "/", unit, "$")
    new_text, new = _calculate(price, "-", off, "$")
    boxes = random.randint(2, 9)
    total_text, total = _calculate(new, "*", boxes, "$")
    question = (
        f"A box of {goods} costs ${price}, and today it is {percent}% cheaper. "
        f"What does {name} pay for {boxes} boxes?"
    )
    lines = [f"{percent}% of ${price} is {off_text}.", f"A box now costs {new_text}."]
    return question, [*lines, f"{name} pays {total_text}."], total


def _comparison(random: Random) -> Problem:
    (one, two, three), goods = random.sample(NAMES, 3), random.choice(GOODS)
    a, more = random.randint(5, 60), random.randint(2, 30)
    less = random.randint(1, a + more - 1)
    two_text, b = _calculate(a, "+", more)
    three_text, c = _calculate(b, "-", less)
    question = (
        f"{one} has {a} {goods}. {two} has {more} more than {one}, and {three} has {less} fewer "
        f"than {two}. How many {goods} does {three} have?"
    )
    return question, [f"{two} has {two_text} {goods}.", f"{three} has {three_text} {goods}."], c


def _fence(random: Random) -> Problem:
    name, place = random.choice(NAMES), random.choice(["garden", "field", "yard", "meadow"])
    long, wide, price = random.randint(8, 40), random.randint(3, 20), random.randint(2, 9)
    sum_text, half = _calculate(long, "+", wide)
    round_text, metres = _calculate(half, "*", 2)
    cost_text, cost = _calculate(metres, "*", price, "$")
    question = (
        f"{name} fences a {place} {long} metres long and {wide} metres wide. A metre of fence "
        f"costs ${price}. What does the fence cost?"
    )
    lines = [f"A long and a short side make {sum_text} metres."]
    lines += [f"The fence is {round_text} metres long.", f"It costs {cost_text}."]
    return question, lines, cost


def _reading(random: Random) -> Problem:
    name, days, pages = random.choice(NAMES), random.randint(2, 9), random.randint(6, 40)
    rest_days, rest_each = random.randint(2, 9), random.randint(5, 30)
    total = days * pages + rest_days * rest_each
    read_text, read = _calculate(days, "*", pages)
    left_text, left = _calculate(total, "-", read)
    each_text, each = _calculate(left, "/", rest_days)
    question = (
        f"{name}'s book has {total} pages. {name} reads {pages} pages a day for {days} days and "
        f"wants to finish it in {rest_days} more days. How many pages a day is that?"
    )
    lines = [f"{name} has read {read_text} pages.", f"{left_text} pages are left."]
    return question, [*lines, f"That is {each_text} pages a day."], each


def _recipe(random: Random) -> Problem:
    name, dish = random.choice(NAMES), random.choice(["bread", "jam", "pancakes", "soup", "stew"])
    people, grams = random.randint(2, 6), 10 * random.randint(2, 30)
    factor = random.randint(2, 8)
    factor_text, _ = _calculate(people * factor, "/", people)
    grams_text, result = _calculate(grams, "*", factor)
    stuff = random.choice(["barley", "beans", "berries", "flour", "oats", "rice"])
    question = (
        f"A recipe of {dish} for {people} people takes {grams} grams of {stuff}. How many grams "
        f"does {name} need for {people * factor} people?"
    )
    lines = [f"{name} makes the recipe {factor_text} times.", f"That takes {grams_text} grams."]
    return question, lines, result


_TEMPLATES: list[Callable[[Random], Problem]] = [
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
