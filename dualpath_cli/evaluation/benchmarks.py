"""The benchmarks: lm-evaluation-harness's task files in `tasks/`, read without the
harness.

The task files' `metadata` adds the main metric of a benchmark (`primary`), its name in
the paper's tables (`paper`), other names of its local file (`files`), and the `subject`
of its rows if a file holds several benchmarks. A report's scores get the paper's means.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.pointers import refuse_pointer
from dualpath_cli.report.table import Column, Table, with_error

TASKS = Path(__file__).parent / "tasks"
FOLDER = "evaluations"  # in a run folder, unless --out names another
RESULTS = "results.json"  # the report, in the folder of a model
SAMPLES = "samples"  # beside it: a line for each document
REQUESTS = "requests"  # in --out, with --requests
ROLLING = "rolling_bpb"
"""Bits per byte of texts; each window is read after the preceding token, as in OLMES.
Windows of `validate` are read after end-of-text (docs/validate.md)."""
SPLITS = ("", "_test", "_val", "_validation")  # ends of a local file's name
PAPER_LIMIT = 1024  # most documents of a benchmark in the paper's evaluations

MATH = "minerva_math"  # the task file of all subsets of MATH
_SUBSETS = {
    "algebra": "Algebra",
    "counting_and_probability": "Counting & Probability",
    "geometry": "Geometry",
    "intermediate_algebra": "Intermediate Algebra",
    "number_theory": "Number Theory",
    "prealgebra": "Prealgebra",
    "precalculus": "Precalculus",
}
SUBJECTS = tuple(_SUBSETS.values())
"""Subjects of the rows of MATH."""
SUITES: dict[str, tuple[str, ...]] = {
    "lm": ("c4", "wikitext_103"),
    "commonsense": (
        "arc_challenge",
        "arc_easy",
        "hellaswag",
        "piqa",
        "socialiqa",
        "winogrande",
    ),
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
    """One of the paper's benchmarks."""

    name: str

    @cached_property
    def config(self) -> dict[str, Any]:
        """The benchmark's task file; of a file with several tasks, its own."""
        config = _read(f"{MATH if self.name.startswith(MATH) else self.name}.yaml")
        if config.pop("group", None) is not None:
            config |= next(
                one for one in config["task"] if f"{MATH}_{one['task']}" == self.name
            )
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
        """Changes to the task file that take documents from `folders`; no change
        without folders.

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
                "num_fewshot": 0,
                "fewshot_split": None,
                "description": _template(prefix),
            }
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
    found = next((path for path in paths if path.is_file() or path.is_symlink()), None)
    if found is not None:
        refuse_pointer(found)
    return found


def _template(path: Path) -> str:
    """A template of the harness that renders a file's text byte for byte."""
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError:
        raise UserError(f"{path} is no UTF-8") from None
    if not text.strip():
        raise UserError(f"{path} holds no worked example")
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


# Scores

Report = Mapping[str, Any]  # the harness's report: `results`, `samples`, `n-samples`
Score = tuple[float, float | None]  # with its standard error over documents

# Columns of the paper's tables.
COMMONSENSE_COLUMNS = ("ARC-c", "ARC-e", "HellaSwag", "PIQA", "SIQA", "WinoGrande")
MATH_COLUMNS = (
    "Algebra",
    "Counting",
    "Geometry",
    "Int. Algebra",
    "Number Theory",
    "Pre-algebra",
    "Pre-calculus",
)
MEANS: Mapping[str, tuple[str, ...]] = {
    "Commonsense Acc.": tuple(f"{task} Acc." for task in COMMONSENSE_COLUMNS),
    "Commonsense BPB": tuple(f"{task} BPB" for task in COMMONSENSE_COLUMNS),
    "Easy math avg BPB": tuple(f"{task} BPB" for task in MATH_COLUMNS),
    "aggregate BPB": ("C4", "WikiText-103", "Commonsense BPB", "Easy math avg BPB"),
    "mean BPB of 17": (
        *("C4", "WikiText-103"),
        *(
            f"{task} BPB"
            for task in (*COMMONSENSE_COLUMNS, *MATH_COLUMNS, "LAMBADA", "QASPER")
        ),
    ),
}
"""Of which scores or earlier means each of the paper's means is; the last is that of
its parameter-quality figure."""


def scores_of(report: Report) -> dict[str, float]:
    """The scores of the paper's benchmarks by the columns of its tables: `PIQA Acc.`,
    `C4`."""
    return {
        column: score[0]
        for task in _benchmarks(report)
        for column, score in zip(
            Benchmark(task).paper, _accuracy_and_bits(report, task), strict=True
        )
        if column is not None and score is not None
    }


def means_of(scores: Mapping[str, float]) -> dict[str, float]:
    """The paper's means of `scores_of`; a mean that lacks one of its scores is left
    out."""
    known = dict(scores)
    for name, parts in MEANS.items():
        if all(part in known for part in parts):
            known[name] = mean(known[part] for part in parts)
    return {name: value for name, value in known.items() if name not in scores}


def score_table(model: Mapping[str, Any], report: Report) -> Table:
    """A row for each benchmark, then the paper's means; `model` are the facts of
    results.json."""
    how = [
        f"window {model['window']:,}",
        f"batches of {model['batch_size']}",
        model["precision"],
    ]
    if model["intervention"] != "learned":
        how.insert(0, model["intervention"])
    columns = [
        Column("benchmark"),
        Column("by"),
        Column("documents", ","),
        Column("accuracy", with_error(".4f")),
        Column("bits/byte", with_error(".4f")),
    ]
    rows: list[list[Any]] = []
    for task in _benchmarks(report):
        documents = report["n-samples"][task]["effective"]
        scores = _accuracy_and_bits(report, task)
        rows.append([task, Benchmark(task).primary, documents, *scores])
    for name, value in means_of(scores_of(report)).items():
        score = (value, None)
        cells = [score, None] if name.endswith("Acc.") else [None, score]
        rows.append([name, "mean", None, *cells])
    caption = "± is one standard error over documents"
    if any(Benchmark(task).is_text for task in _benchmarks(report)):
        caption += (
            f"; {ROLLING}: each window of a text is read after the preceding token"
        )
    return Table(columns, rows, f"{model['name']}: {', '.join(how)}", caption)


def _benchmarks(report: Report) -> list[str]:
    """The benchmarks with scores; an earlier version also scored texts, by other
    names."""
    return [task for task in report["results"] if task in NAMES]


def _accuracy_and_bits(report: Report, task: str) -> tuple[Score | None, Score | None]:
    """The primary accuracy, and the bits per byte of continuations or of texts."""
    primary = Benchmark(task).primary
    accuracy = _score(report, task, primary) if primary.startswith("acc") else None
    return accuracy, _score(report, task, ROLLING) or _score(report, task, "bpb")


def _score(report: Report, task: str, metric: str) -> Score | None:
    scores = report["results"][task]
    if f"{metric},none" not in scores:
        return None
    error = scores[f"{metric}_stderr,none"]
    return scores[f"{metric},none"], None if error == "N/A" else error
