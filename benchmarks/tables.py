"""Tables of benchmarks."""

from collections.abc import Iterable, Sequence
from statistics import median

from rich.console import Console
from rich.table import Table


def show(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table."""
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    Console(width=100).print(table)


def median_and_rounds(ratios: Sequence[float]) -> tuple[str, str]:
    """Returns two cells. A ratio is of one round, as a machine's speed changes between rounds."""
    return f"{median(ratios):.2f}", " ".join(f"{ratio:.2f}" for ratio in ratios)
