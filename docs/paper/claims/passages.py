"""Where the paper's text is set against its own figures, captions and other sections.

The evidence is in stated.json: printed colours, orders of tags, captions.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from statistics import mean

from dualpath_cli.config import effective_width
from dualpath_cli.flops import paper
from dualpath_cli.flops.widths import solve_widths

from .finding import Finding, by_reading, grade
from .stated import stated

Colour = Sequence[float]
"""Red, green and blue, from 0 to 1."""


def findings() -> list[Finding]:
    """The claims that another place of the paper decides."""
    return [
        _most_deep_leaning(),
        *map(_classes, PLACES),
        _deepest_examples(),
        _middle(),
        _scatter_caption(),
        _standard_width(),
        _wide_is_a_loop(),
    ]


def lean(colour: Colour) -> float:
    """Where a printed token stands on the figure's colour bar: above 0 deep, below 0 wide.

    Red minus blue: the bar runs from blue (wide) over white to red (deep).
    """
    red, _, blue = colour
    return red - blue


def _most_deep_leaning() -> Finding:
    figure = stated("printed_tokens")
    token = figure["most_deep_leaning"]
    leans = [(lean(colour), name) for name, colour in figure["triviaqa"]]
    (colour,) = [colour for name, colour in figure["triviaqa"] if name == token]
    at_end = [end for end, value in figure["colour_bar"].items() if value == colour]
    rank = sorted(leans, reverse=True).index((lean(colour), token)) + 1
    printed = f"the {at_end[0]} end of the colour bar itself" if at_end else "inside the colour bar"
    return Finding(
        f"`{token}` is the most deep-leaning token of the printed TriviaQA sequence.",
        f"It is printed in rgb {', '.join(f'{c:.3f}' for c in colour)}, {printed}: number {rank} "
        f"of {len(leans)} from the deep side. The deepest printed token is `{max(leans)[1]}`.",
        grade(lean(colour) == max(leans)[0]),
    )


PLACES = {"deep": "highest", "wide": "lowest"}
"""Where Section 4.3, which orders tags by their deep share, has those that trend to a path."""


def _classes(path: str) -> Finding:
    order, classes = stated("tag_order"), stated("classes")[path]
    place = {tag: where for where, tags in order.items() for tag in tags}
    tags = [(tag, name) for name, tags in classes.items() for tag in tags]
    astray = [f"{tag}, of {name}, among the {place[tag]}" for tag, name in tags
              if place.get(tag, PLACES[path]) != PLACES[path]]  # fmt: skip
    unplaced = [
        f"{', '.join(missing)} of {name}"
        for name, all_of in classes.items()
        if (missing := [tag for tag in all_of if tag not in place])
    ]
    texts = [f"Section 4.3 puts {' and '.join(astray) or 'none of them elsewhere'}."]
    if unplaced:
        texts.append(f"It does not place {' and '.join(unplaced)}.")
    return Finding(
        f"Tokens of these classes trend {path} (abstract): {', '.join(classes)}.",
        " ".join([*texts, _numbers() if path == "deep" else _lexical_content()]),
        grade(*(place.get(tag) == PLACES[path] for tag, _ in tags)),
    )


def _lexical_content() -> str:
    """What other sections call lexical content."""
    functional = stated("classes")["wide"]["function words"]
    called = stated("lexical_content")
    wrong = [tag for tag in called["Section 4.3"] if tag in functional]
    return (
        f"It calls {' and '.join(wrong)}, which are function words, lexical content; to the "
        f"introduction that is {' and '.join(called['introduction'])} alone."
    )


def _numbers() -> str:
    """On which side the numbers are printed."""
    sides = []
    for part, tokens in stated("printed_tokens")["gsm8k"].items():
        numbers = [lean(colour) for token, colour in tokens if token.isdigit()]
        sides.append(f"{sum(value > 0 for value in numbers)} of {len(numbers)} in the {part}")
    return (
        f"Of the numbers in the printed GSM8K sequence, {' and '.join(sides)} are on the deep side."
    )


def _deepest_examples() -> Finding:
    """An example is deep where its printed tokens are on average."""
    examples = stated("deepest_examples")
    leans: dict[str, list[float]] = {token: [] for tokens in examples.values() for token in tokens}
    for token, colour in chain(*stated("printed_tokens")["gsm8k"].values()):
        if token in leans:
            leans[token].append(lean(colour))
    printed = {token: values for token, values in leans.items() if values}
    sides = [
        f"`{t}` {sum(v > 0 for v in values)} of {len(values)}" for t, values in printed.items()
    ]
    absent = " and ".join(f"`{token}`" for token in leans if token not in printed)
    named = "; ".join(f"{tag}: {' '.join(f'`{t}`' for t in of)}" for tag, of in examples.items())
    return Finding(
        f"These examples of the deepest tags (Section 4.3) lean deep: {named}.",
        f"On the deep side of the printed GSM8K sequence are {', '.join(sides)}"
        f"{f'; {absent} is not in it' if absent else ''}.",
        grade(*(mean(values) > 0 for values in printed.values())),
    )


def _middle() -> Finding:
    spans = stated("middle_layers")
    sets = [set(range(first, last + 1)) for first, last in spans.values()]
    named = ", ".join(f"{first} to {last} {where}" for where, (first, last) in spans.items())
    return Finding(
        "Which layers are the middle of the network, which the conclusion calls wide?",
        f"Layers {named}: {len(set.intersection(*sets))} of {len(set.union(*sets))} are in both.",
        "note",
    )


def _standard_width() -> Finding:
    loops = [row for row in paper.configurations() if row.block == "loop"]
    widths = sorted({row.d_ffn for row in loops if row.d_ffn is not None})
    return Finding(
        "PureLoop has the standard FFN width (Section 4.1).",
        f"Its {len(loops)} configurations have {len(widths)} widths, "
        f"{', '.join(map(str, widths))}, each solved for its "
        "budget and K. No width is given as the standard one.",
        grade(len(widths) == 1),
    )


def _wide_is_a_loop() -> Finding:
    """A block with K = 1 has no router, so equal effective widths are equal models."""
    wide = [row for row in paper.configurations() if row.block == "wide"]
    pairs = [
        (solve_widths(replace(row.target, block="loop", loops=1)).d_ffn or 0, row.d_ffn_wide or 0)
        for row in wide
    ]

    def judge(reading: paper.Reading) -> tuple[str, bool]:
        multiple = paper.reading_fields(reading)["ffn_multiple_of"]
        effective = [tuple(effective_width(w, multiple) for w in pair) for pair in pairs]
        text = " and ".join(f"{one} against {other}" for one, other in effective)
        return f"effective {text}", all(one == other for one, other in effective)

    solved = ", ".join(
        f"{one} against {other} at {row.budget_name}"
        for (one, other), row in zip(pairs, wide, strict=True)
    )
    quantity = f"PureLoop's width is rounded down, PureWide's up: {solved}; "
    claim = "PureWide is PureLoop with K = 1 (caption of the parameter-quality figure)."
    return by_reading(claim, judge, quantity)


def _scatter_caption() -> Finding:
    said = stated("scatter_loops_from_left")
    orders = []
    for budget in paper.BUDGETS:
        loops = [row for row in paper.configurations(budget) if row.block == "loop"]
        by_size = sorted(loops, key=lambda row: row.params_millions)
        orders.append([row.loops for row in by_size])
    listed = ", ".join(map(str, orders[0]))
    return Finding(
        "In the parameter-quality figure PureLoop's points are K = "
        f"{', '.join(map(str, said))} from left to right.",
        f"Parameters fall with K, so over the axis on which the text has fewer parameters on the "
        f"left, they are K = {listed}.",
        grade(all(order == said for order in orders)),
    )
