"""The benchmarks: lm-evaluation-harness's task files in `tasks/`, read without it.

Beside what it knows, their `metadata` has the metric that stands for a benchmark (`primary`), its
name in the paper's tables (`paper`), other names of its local file (`files`), and the `subject` of
its rows where such a file holds several benchmarks.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

TASKS = Path(__file__).parent / "tasks"
TEXT = "text"  # the task file of the user's texts
ROLLING = "rolling_bpb"
"""Bits per byte of texts whose windows are read after the token before them, as in OLMES; those of
`validate` are read after end-of-text (docs/validate.md)."""
PAPER_LIMIT = 1024  # documents of a benchmark that the paper's evaluations were capped at

_MATH = ("algebra", "counting_and_probability", "geometry", "intermediate_algebra",
         "number_theory", "prealgebra", "precalculus")  # fmt: skip
SUITES: dict[str, tuple[str, ...]] = {
    "lm": ("c4", "wikitext_103"),
    "commonsense": ("arc_challenge", "arc_easy", "hellaswag", "piqa", "socialiqa", "winogrande"),
    "math": ("gsm8k", *(f"minerva_math_{subset}" for subset in _MATH)),
    "qa": ("lambada", "qasper_yesno"),
}
NAMES = sum(SUITES.values(), ())
"""All benchmarks, in the order of the paper's table."""
SUITES["paper"] = SUITES["all"] = NAMES


@dataclass(frozen=True)
class Benchmark:
    """One of the paper's benchmarks, or a text of the user's by any other name."""

    name: str

    @cached_property
    def config(self) -> dict[str, Any]:
        """Its task file."""
        return _read(f"{self.name if self.name in NAMES else TEXT}.yaml")

    @property
    def primary(self) -> str:
        """The metric that stands for it."""
        return str(self.config["metadata"]["primary"])

    @property
    def is_text(self) -> bool:
        return self.primary == ROLLING

    @property
    def is_written(self) -> bool:
        """Whether a model writes the answers."""
        return bool(self.config["output_type"] == "generate_until")

    @property
    def paper(self) -> tuple[str | None, str | None]:
        """The columns of the paper's tables: of its accuracy, of its bits per byte."""
        name = self.config["metadata"].get("paper")
        if name is None or self.is_text:
            return None, name
        return f"{name} Acc.", f"{name} BPB"


class _Loader(yaml.SafeLoader):
    """Leaves `!function` the name that it is."""


_Loader.add_constructor("!function", lambda loader, node: str(node.value))


def _read(file: str) -> dict[str, Any]:
    config = yaml.load((TASKS / file).read_text(encoding="utf-8"), _Loader)
    return (_read(config["include"]) if "include" in config else {}) | config
