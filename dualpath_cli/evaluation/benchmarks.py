"""The benchmarks: lm-evaluation-harness's task files in `tasks/`, read without it.

Beside what it knows, their `metadata` has the metric that stands for a benchmark (`primary`), its
name in the paper's tables (`paper`), other names of its local file (`files`), and the `subject` of
its rows where such a file holds several benchmarks.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from dualpath_cli.base.errors import UserError

TASKS = Path(__file__).parent / "tasks"
TEXT = "text"  # the task file of the user's texts
ROLLING = "rolling_bpb"
"""Bits per byte of texts whose windows are read after the token before them, as in OLMES; those of
`validate` are read after end-of-text (docs/validate.md)."""
SPLITS = ("", "_test", "_val", "_validation")  # ends of a local file's name
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


class NoData(UserError):
    """A benchmark whose documents or few-shot examples are not where they were looked for."""


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

    def local(self, folders: Sequence[Path]) -> dict[str, Any]:
        """Changes to its task file that take its documents from folders; none without any.

        Raises:
            NoData: where none has a file of it, or of few-shot examples.
        """
        if not folders:
            return {}
        names = (self.name, *self.config["metadata"].get("files", ()))
        every = [f"{name}{split}" for name in names for split in SPLITS]
        path = _find(folders, [f"{name}.jsonl" for name in every])
        shots = self.config["num_fewshot"]
        if path is None:
            raise NoData(f"no {self.name}.jsonl in {', '.join(map(str, folders))}")
        files = {self.config["test_split"]: str(path)}
        changes: dict[str, Any] = {"dataset_path": "json", "dataset_name": None}
        changes["dataset_kwargs"] = {"data_files": files}
        if not shots:
            return changes
        if prefix := _find(folders, [f"{name}.fewshot.txt" for name in every]):
            return changes | {
                "num_fewshot": 0, "fewshot_split": None, "description": _template(prefix)
            }  # fmt: skip
        if rows := _find(folders, [f"{name}_train.jsonl" for name in names]):
            files[self.config["fewshot_split"]] = str(rows)
            return changes
        raise NoData(
            f"{self.name} is asked after {shots} worked examples: give --data DIR with "
            f"{self.name}.fewshot.txt or {self.name}_train.jsonl"
        )


def _find(folders: Sequence[Path], names: Sequence[str]) -> Path | None:
    files = [name + suffix for name in names for suffix in ("", ".gz", ".zst")]
    paths = (folder / file for folder in folders for file in files)
    return next((path for path in paths if path.is_file()), None)


def _template(path: Path) -> str:
    """A file's text as a template of the harness that gives it byte for byte."""
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError:
        raise UserError(f"{path} is no UTF-8") from None
    if not text.endswith("\n\n"):
        raise UserError(f"{path} must end in a blank line, which parts it from the question")
    return "{{" + json.dumps(text, ensure_ascii=False) + "}}"


class _Loader(yaml.SafeLoader):
    """Leaves `!function` the name that it is."""


_Loader.add_constructor("!function", lambda loader, node: str(node.value))


def _read(file: str) -> dict[str, Any]:
    config = yaml.load((TASKS / file).read_text(encoding="utf-8"), _Loader)
    return (_read(config["include"]) if "include" in config else {}) | config
