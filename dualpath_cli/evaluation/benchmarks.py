"""The benchmarks: lm-evaluation-harness's task files in `tasks/`, read without the harness.

Their `metadata` adds the main metric of a benchmark (`primary`), its name in the paper's tables
(`paper`), other names of its local file (`files`), and the `subject` of its rows if a file holds
several benchmarks.
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
FOLDER = "evaluations"  # in a run folder, unless --out names another
RESULTS = "results.json"  # the report, in the folder of a model
TEXT = "text"  # the task file of the user's texts
ROLLING = "rolling_bpb"
"""Bits per byte of texts; each window is read after the preceding token, as in OLMES. Windows of
`validate` are read after end-of-text (docs/validate.md)."""
SPLITS = ("", "_test", "_val", "_validation")  # ends of a local file's name
PAPER_LIMIT = 1024  # most documents of a benchmark in the paper's evaluations

MATH = "minerva_math"  # the task file of all subsets of MATH
_SUBSETS = ("algebra", "counting_and_probability", "geometry", "intermediate_algebra",
            "number_theory", "prealgebra", "precalculus")  # fmt: skip
SUITES: dict[str, tuple[str, ...]] = {
    "lm": ("c4", "wikitext_103"),
    "commonsense": ("arc_challenge", "arc_easy", "hellaswag", "piqa", "socialiqa", "winogrande"),
    "math": ("gsm8k", *(f"{MATH}_{subset}" for subset in _SUBSETS)),
    "qa": ("lambada", "qasper_yesno"),
}
NAMES = sum(SUITES.values(), ())
"""All benchmarks, in the order of the paper's table."""
SUITES["all"] = NAMES


class NoData(UserError):
    """A benchmark without documents or few-shot examples in the given places."""


@dataclass(frozen=True)
class Benchmark:
    """One of the paper's benchmarks, or, by any other name, a text of the user."""

    name: str

    @cached_property
    def config(self) -> dict[str, Any]:
        """The benchmark's task file; of a file with several tasks, its own."""
        name = self.name if self.name in NAMES else TEXT
        config = _read(f"{MATH if name.startswith(MATH) else name}.yaml")
        if config.pop("group", None) is not None:
            config |= next(one for one in config["task"] if f"{MATH}_{one['task']}" == name)
        return config

    @property
    def primary(self) -> str:
        return str(self.config["metadata"]["primary"])

    @property
    def is_text(self) -> bool:
        return self.primary == ROLLING

    @property
    def paper(self) -> tuple[str | None, str | None]:
        """The columns in the paper's tables: for accuracy, for bits per byte."""
        name = self.config["metadata"].get("paper")
        if name is None or self.is_text:
            return None, name
        return f"{name} Acc.", f"{name} BPB"

    def local(self, folders: Sequence[Path]) -> dict[str, Any]:
        """Changes to the task file that take documents from `folders`; no change without folders.

        Raises:
            NoData: if no folder has the benchmark's file, or its few-shot examples.
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
            f"{self.name} needs {shots} worked examples: give --data DIR with "
            f"{self.name}.fewshot.txt or {self.name}_train.jsonl"
        )


def _find(folders: Sequence[Path], names: Sequence[str]) -> Path | None:
    files = [name + suffix for name in names for suffix in ("", ".gz", ".zst")]
    paths = (folder / file for folder in folders for file in files)
    return next((path for path in paths if path.is_file()), None)


def _template(path: Path) -> str:
    """A template of the harness that renders a file's text byte for byte."""
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError:
        raise UserError(f"{path} is no UTF-8") from None
    if not text.endswith("\n\n"):
        raise UserError(f"{path} must end in a blank line, before the question")
    return "{{" + json.dumps(text, ensure_ascii=False) + "}}"


class Function(str):
    """The name of a function of `tasks/olmes.py`, after `!function` in a task file."""


class _Loader(yaml.SafeLoader):
    """Reads task files without importing their functions."""


_Loader.add_constructor(
    "!function", lambda loader, node: Function(node.value.removeprefix("olmes."))
)


def _read(file: str) -> dict[str, Any]:
    config = yaml.load((TASKS / file).read_text(encoding="utf-8"), _Loader)
    included = config.pop("include", None)
    return (_read(included) if included else {}) | config
