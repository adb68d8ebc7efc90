"""The page of a comparison: its tables, which can be sorted, and its figures."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dualpath_cli.output.page import page, pictures, tables, terms
from dualpath_cli.output.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPTIONS = {
    "quality": "Bits per byte against parameters; lower and further left is better.",
    "places": "Bits per byte less those of the baseline, by the only layer with a deep path, and "
    "their 95 % intervals; lower is better.",
    "tokens": "Training loss against tokens: mean over seeds, band from the lowest to the highest.",
    "hours": "Training loss against measured hours, which are those of the machine that trained.",
}


def text(
    facts: Sequence[tuple[str, str]],
    main: Sequence[Table],
    tests: Sequence[Table],
    figures: Mapping[str, "Figure | None"],
) -> str:
    """Returns the page as HTML."""
    sections = [terms(facts), tables(main), pictures(figures, CAPTIONS), tables(tests)]
    return page("Comparison of runs", sections)
