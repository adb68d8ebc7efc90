"""What the paper states in its text, its captions, its bold print and its printed sequences."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from dualpath_cli.flops import paper


@cache
def statements() -> dict[str, Any]:
    """All of stated.json, which stands beside this file."""
    return dict(json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")))


def stated(name: str) -> Any:
    """One statement by its name in stated.json."""
    return statements()[name]


def bold(budget: str) -> dict[str, set[str]]:
    """The labels whose value is printed in bold, by metric of the full results."""
    rows = zip(paper.results(budget), stated("bold")[budget], strict=True)
    return {metric: set(row.split()) for metric, row in rows}
