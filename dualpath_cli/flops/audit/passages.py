"""Where the paper's text is set against its own figures, captions and other sections.

The evidence is in paper_tables.json: printed colours, orders of tags, captions.
"""

from collections.abc import Sequence

from dualpath_cli.flops import paper
from dualpath_cli.flops.audit.finding import Finding, grade

Colour = Sequence[float]
"""Red, green and blue, from 0 to 1."""


def findings() -> list[Finding]:
    """The claims that another place of the paper decides."""
    return [_most_deep_leaning(), _arithmetic(), _scatter_caption()]


def lean(colour: Colour) -> float:
    """Where a printed token stands on the figure's colour bar: above 0 deep, below 0 wide.

    Red minus blue: the bar runs from blue (wide) over white to red (deep).
    """
    red, _, blue = colour
    return red - blue


def _most_deep_leaning() -> Finding:
    figure = paper.stated("printed_tokens")
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


def _arithmetic() -> Finding:
    order, classes = paper.stated("tag_order"), paper.stated("deep_classes")
    place = {tag: where for where, tags in order.items() for tag in tags}
    astray = [
        f"{tag}, of {name}, among the {place[tag]}"
        for name, tags in classes.items()
        for tag in tags
        if place[tag] != "highest"
    ]
    figure = paper.stated("printed_tokens")
    sides = []
    for part in ("question", "answer"):
        colours = figure["gsm8k_numbers"][part]
        deep = sum(lean(colour) > 0 for _, colour in colours)
        sides.append(f"{deep} of {len(colours)} in the {part}")
    return Finding(
        f"Tokens of these classes trend deep (abstract): {', '.join(classes)}.",
        f"Section 4.3 puts {' and '.join(astray) or 'none of them lower'}. Of the numbers in the "
        f"printed GSM8K sequence, {' and '.join(sides)} are on the deep side.",
        grade(not astray),
    )


def _scatter_caption() -> Finding:
    said = paper.stated("scatter_loops_from_left")
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
