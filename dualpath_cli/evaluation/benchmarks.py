"""The benchmarks: lm-eval's task files in `tasks/`, read without lm-eval.

The task files' `metadata` adds the main metric of a benchmark (`primary`), its name in
the paper's tables (`paper`), other names of its local file (`files`), and the `subject`
of its rows if a file holds several benchmarks. A report's scores get the paper's means.
Reasoning primitives are made from a seed, and are not the paper's.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.pointers import refuse_pointer
from dualpath_cli.data import primitives
from dualpath_cli.report.table import Column, Table, with_error

TASKS = Path(__file__).parent / "tasks"
FOLDER = "evaluations"  # in a run folder, unless --out names another
RESULTS = "results.json"  # the report, in the folder of a model
SAMPLES = "samples"  # beside it: a line for each document
HARNESS = "harness"
"""The part of a report, and of its samples, with tasks of lm-evaluation-harness by its
own rules; `harness:piqa` asks for its task where a benchmark has the same name."""
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
PAPER = sum(SUITES.values(), ())
"""The paper's benchmarks, in the order of its table."""
SUITES["all"] = PAPER

PRIMITIVES = "primitives"  # the suite, and the task file, of reasoning primitives
_LEVELS = primitives.names_of_tests()
SUITES |= {family: tuple(names) for family, names in _LEVELS.items()}
SUITES[PRIMITIVES] = tuple(chain(*_LEVELS.values()))
NAMES = (*PAPER, *SUITES[PRIMITIVES])
"""All benchmarks, in the order of tables."""


class NoData(UserError):
    """A benchmark without documents or few-shot examples in the given places."""


@dataclass(frozen=True)
class Benchmark:
    """One of the paper's benchmarks, or a level of a reasoning primitive."""

    name: str

    @cached_property
    def config(self) -> dict[str, Any]:
        """The benchmark's task file; of a file with several tasks, its own."""
        if self.is_made:
            return dict(_read_task_file(f"{PRIMITIVES}.yaml"))

        file = MATH if self.name.startswith(MATH) else self.name
        config = dict(_read_task_file(f"{file}.yaml"))
        if config.pop("group", None) is not None:
            by_name = {f"{MATH}_{task['task']}": task for task in config["task"]}
            config |= by_name[self.name]

        return config

    @property
    def primary(self) -> str:
        return str(self.config["metadata"]["primary"])

    @property
    def is_made(self) -> bool:
        """Whether its documents are made from a seed, so that it needs no file."""
        return self.name in SUITES[PRIMITIVES]

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
        without folders, and for documents that are made.

        Raises:
            NoData: if no folder has the benchmark's file, or its few-shot examples.
            UserError: if the benchmark's file is empty.
        """
        if self.is_made or not folders:
            return {}
        names = (self.name, *self.config["metadata"].get("files", ()))
        with_splits = [f"{name}{split}" for name in names for split in SPLITS]
        path = _find(folders, [f"{name}.jsonl" for name in with_splits])
        if path is None:
            raise NoData(f"no {self.name}.jsonl in {', '.join(map(str, folders))}")
        if not path.stat().st_size:
            raise UserError(f"{path} is empty")

        files = {self.config["test_split"]: str(path)}
        changes: dict[str, Any] = {
            "dataset_path": "json",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": files},
        }
        shots = self.config["num_fewshot"]
        if not shots:
            return changes

        # Rendered examples stand before each question, as they are in their file.
        examples = _find(folders, [f"{name}.fewshot.txt" for name in with_splits])
        if examples is not None:
            return changes | {
                "num_fewshot": 0,
                "fewshot_split": None,
                "description": verbatim(_read_examples(examples)),
            }

        # Rows are rendered by the harness.
        rows = _find(folders, [f"{name}_train.jsonl" for name in names])
        if rows is not None:
            files[self.config["fewshot_split"]] = str(rows)
            return changes

        raise NoData(
            f"{self.name} needs {shots} worked examples: give --data DIR with "
            f"{self.name}.fewshot.txt or {self.name}_train.jsonl"
        )


def _find(folders: Sequence[Path], names: Sequence[str]) -> Path | None:
    """The first of these files, also compressed, in the first folder that has any."""
    files = [name + suffix for name in names for suffix in ("", ".gz", ".zst")]
    for folder in folders:
        for file in files:
            path = folder / file
            # A link of git-annex whose file is missing is reported, not passed over.
            if path.is_file() or path.is_symlink():
                refuse_pointer(path)
                return path

    return None


def _read_examples(path: Path) -> str:
    """The rendered examples in a file."""
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8") from None

    if not text.strip():
        raise UserError(f"{path} holds no worked example")
    if not text.endswith("\n\n"):
        raise UserError(f"{path} must end in a blank line, before the question")
    return text


def verbatim(text: str) -> str:
    """A template of the harness that renders a text byte for byte."""
    return "{{" + json.dumps(text, ensure_ascii=False) + "}}"


class Function(str):
    """The name of a function of `tasks/olmes.py`, after `!function` in a task file."""


class _Loader(yaml.SafeLoader):
    """Reads task files without importing their functions."""


def _function(loader: _Loader, node: Any) -> Function:
    return Function(node.value.removeprefix("olmes."))


_Loader.add_constructor("!function", _function)


@cache
def _read_task_file(file: str) -> dict[str, Any]:
    """A task file over the one that it includes."""
    config = yaml.load((TASKS / file).read_text(encoding="utf-8"), _Loader)
    included = config.pop("include", None)
    if included is None:
        return config
    return _read_task_file(included) | config


# Scores

Report = Mapping[str, Any]  # the harness's report: `results`, `samples`, `n-samples`
Score = tuple[float, float | None]  # with its standard error over documents
LogLikelihood = tuple[float, bool]
"""Of a text, in nats, and whether greedy decoding would write this text."""

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
        "C4",
        "WikiText-103",
        *(f"{task} BPB" for task in COMMONSENSE_COLUMNS),
        *(f"{task} BPB" for task in MATH_COLUMNS),
        "LAMBADA BPB",
        "QASPER BPB",
    ),
}
"""The scores or earlier means in each of the paper's means; the last is that of its
parameter-quality figure."""


def scores_of(report: Report) -> dict[str, float]:
    """The scores of the paper's benchmarks by the columns of its tables: `PIQA Acc.`,
    `C4`."""
    scores = {}
    for task in benchmarks_in(report):
        columns = Benchmark(task).paper
        task_scores = _accuracy_and_bits(report, task)
        for column, score in zip(columns, task_scores, strict=True):
            if column is not None and score is not None:
                scores[column], _ = score

    return scores


def documents_of(report: Report) -> dict[str, int]:
    """The documents that each score of `scores_of` comes from."""
    return {
        column: report["n-samples"][task]["effective"]
        for task in benchmarks_in(report)
        for column in Benchmark(task).paper
        if column is not None
    }


def means_of(
    scores: Mapping[str, float],
    together: Callable[[Iterable[float]], float] = mean,
) -> dict[str, float]:
    """The paper's means of `scores_of`; a mean that lacks one of its scores is left
    out.

    `together` combines the parts of each mean: `mean` itself, or the sum, for the
    numbers of `documents_of`.
    """
    known = dict(scores)
    for name, parts in MEANS.items():
        if all(part in known for part in parts):
            known[name] = together(known[part] for part in parts)

    return {name: value for name, value in known.items() if name not in scores}


def score_table(model: Mapping[str, Any], report: Report) -> Table:
    """A row for each benchmark, then the paper's means; `model` are the facts of
    results.json."""
    benchmarks = benchmarks_in(report)
    columns = [
        Column("benchmark"),
        Column("metric"),
        Column("documents", ","),
        Column("accuracy", with_error(".4f")),
        Column("bits/byte", with_error(".4f")),
    ]
    rows: list[list[Any]] = []
    for task in benchmarks:
        documents = report["n-samples"][task]["effective"]
        scores = _accuracy_and_bits(report, task)
        rows.append([task, Benchmark(task).primary, documents, *scores])

    documents_of_means = means_of(documents_of(report), sum)
    for name, value in means_of(scores_of(report)).items():
        score = (value, None)
        is_accuracy = name.endswith("Acc.")
        cells = [score, None] if is_accuracy else [None, score]
        rows.append([name, "mean", documents_of_means[name], *cells])

    how = [
        f"window {model['window']:,}",
        f"batches of {model['batch_size']}",
        model["precision"],
    ]
    if model["intervention"] != "learned":
        how.insert(0, model["intervention"])
    title = f"{model['name']}: {', '.join(how)}"

    caption = "± is one standard error over documents"
    if any(Benchmark(task).is_text for task in benchmarks):
        caption += (
            f"; {ROLLING}: each window of a text is read after the preceding token"
        )
    caption += _note_on_examples(report, benchmarks)
    return Table(columns, rows, title, caption)


def _note_on_examples(report: Report, benchmarks: Sequence[str]) -> str:
    """For a caption: the benchmarks whose worked examples are the harness's, which
    takes the first rows; empty if there are none.

    To the harness the examples of a file `.fewshot.txt` are no examples, but a
    description.
    """
    with_examples = [
        task for task in benchmarks if Benchmark(task).config["num_fewshot"]
    ]
    shots = report.get("n-shot", {})
    of_rows = [task for task in with_examples if shots.get(task)]
    if not of_rows:
        return ""

    of = "" if of_rows == with_examples else f" of {', '.join(of_rows)}"
    return (
        f"; examples{of}: first training rows, not OLMES's; not comparable with the "
        "paper"
    )


def benchmarks_in(report: Report) -> list[str]:
    """The benchmarks with scores; an earlier version also scored texts, by other
    names."""
    return [task for task in report["results"] if task in NAMES]


def _accuracy_and_bits(report: Report, task: str) -> tuple[Score | None, Score | None]:
    """The primary accuracy, and the bits per byte of continuations or of texts."""
    primary = Benchmark(task).primary
    accuracy = _score(report, task, primary) if primary.startswith("acc") else None
    bits = _score(report, task, ROLLING) or _score(report, task, "bpb")
    return accuracy, bits


def _score(report: Report, task: str, metric: str) -> Score | None:
    """A metric in the harness's report; None if the task has no such metric."""
    scores = report["results"][task]
    if f"{metric},none" not in scores:
        return None

    value = scores[f"{metric},none"]
    error = scores[f"{metric}_stderr,none"]
    if error == "N/A":
        error = None
    return value, error
