"""The rows of an ablation as a table on the screen, as JSON and as CSV."""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from dualpath_cli.atomic import write_text

MEANINGS = {
    "gates=1,0": "deep only",
    "gates=0,1": "wide only",
    "gates=0.5,0.5": "uniform",
    "gates=1,1": "fully open",
}
"""What the paper calls its gate overrides (table `ablations`)."""


@dataclass(frozen=True)
class Row:
    """One intervention on one source; all numbers are nats per token."""

    intervention: str
    """Its name (`Intervention.name`)."""
    source: str
    loss: float
    """Mean next-token cross-entropy."""
    difference: float
    """Loss less that of the learned router on the same windows."""
    low: float
    """Lower end of the difference's 95 % interval; nan where the source is a single window."""
    high: float
    """Upper end of the difference's 95 % interval."""


def source_table(title: str, rows: Sequence[Row], loops: int) -> Table:
    """A table of one source's rows; `loops` is the trained K, whose row says so."""
    meanings = {**MEANINGS, f"K={loops}": "as trained"}
    table = Table(title=title, title_justify="left")
    table.add_column("intervention", no_wrap=True)
    for column in ("loss", "difference", "95 % interval"):
        table.add_column(column, justify="right")
    for row in rows:
        meaning = meanings.get(row.intervention)
        table.add_row(
            f"{row.intervention} ({meaning})" if meaning else row.intervention,
            f"{row.loss:.4f}",
            f"{row.difference:+.4f}",
            "" if math.isnan(row.low) else f"{row.low:+.4f} to {row.high:+.4f}",
        )
    return table


def write(folder: Path, report: dict[str, Any], rows: Sequence[Row]) -> list[Path]:
    """Writes `ablations.json` (the report and its rows) and `ablations.csv` (the rows), each whole.

    Returns their paths. A missing interval is null in JSON and empty in CSV.
    """
    records = [
        {key: None if value != value else value for key, value in dataclasses.asdict(row).items()}
        for row in rows
    ]
    table = io.StringIO()
    names = [field.name for field in dataclasses.fields(Row)]
    writer = csv.DictWriter(table, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    texts = {
        folder / "ablations.json": json.dumps({**report, "rows": records}, indent=2) + "\n",
        folder / "ablations.csv": table.getvalue(),
    }
    for path, text in texts.items():
        write_text(path, text)
    return list(texts)
